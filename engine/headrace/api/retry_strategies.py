"""Retry strategies of async I/O (FLIP-232, "AsyncRetryStrategy")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from headrace import clock


class AsyncRetryStrategy(Protocol):
    """When to call again after a call that failed, or answered with what is no answer yet.

    One strategy serves all records of a task, so it holds no state about any of them: how often a record was tried again
    is kept with the record, and given to each method. Any object with these methods is a strategy.
    """

    def can_retry(self, retries: int, /) -> bool:
        """Tell whether another call may follow after `retries` repeated calls (0 after the first)."""
        ...

    def backoff(self, retries: int, /) -> timedelta:
        """How long to wait before the next call."""
        ...

    def retries_exception(self, error: Exception, /) -> bool:
        """Tell whether `error` is worth another call at all (FLIP-232, `exceptionPredicate`)."""
        ...

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Tell whether the answer is worth another call (FLIP-232, `resultPredicate`).

        When no further call is possible, such an answer is emitted as it is.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    max_retries: int
    """Calls after the first one. 3 means up to four calls."""

    exceptions: tuple[type[Exception], ...] = (Exception,)
    """Only these are tried again; any other fails at once."""

    results: Callable[[Sequence[Any]], bool] | None = None
    """Tells whether an answer (a list of records) is worth another call; None: any answer will do."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            msg = f"max_retries must not be negative, not {self.max_retries}"
            raise ValueError(msg)

    def can_retry(self, retries: int, /) -> bool:
        """Tell whether fewer than `max_retries` calls were repeated."""
        return retries < self.max_retries

    def retries_exception(self, error: Exception, /) -> bool:
        """Tell whether `error` is one of `exceptions`."""
        return isinstance(error, self.exceptions)

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Tell whether `results` says that the answer is worth another call."""
        return self.results is not None and self.results(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(_Limited):
    """The same wait before each retry (FLIP-232, "FixedDelayRetryStrategy")."""

    delay: timedelta

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("delay", self.delay)

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """How long to wait before the next call."""
        return self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff(_Limited):
    """Waits that grow by `multiplier` up to `max_delay` (FLIP-232, "ExponentialBackoffDelay")."""

    initial_delay: timedelta
    max_delay: timedelta
    multiplier: float = 2.0

    jitter: float = 0.0
    """The part of each wait that is left to chance, from 0 to 1. With 0.5 a wait of 10 s takes 5 to 10 s.

    Records that failed together then do not call again together.
    """

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("initial_delay", self.initial_delay)
        _check_delay("max_delay", self.max_delay)
        if not self.multiplier >= 1:  # so that NaN is refused as well
            msg = f"multiplier must be at least 1, not {self.multiplier}"
            raise ValueError(msg)
        if not 0 <= self.jitter <= 1:
            msg = f"jitter must be from 0 to 1, not {self.jitter}"
            raise ValueError(msg)

    def backoff(self, retries: int, /) -> timedelta:
        """How long to wait before the next call. Retry 0 waits `initial_delay`, less the jitter."""
        delay = self._grown(retries)
        return delay * (1 - self.jitter * clock.jitter()) if self.jitter else delay

    def _grown(self, retries: int) -> timedelta:
        try:
            grown = self.initial_delay * self.multiplier**retries
        except OverflowError:  # a long outage: 0.1 s doubled 50 times is more than a timedelta holds
            return self.max_delay
        return min(grown, self.max_delay)


def _check_delay(name: str, delay: timedelta) -> None:
    if delay < timedelta(0):
        msg = f"{name} must not be negative, not {delay}"
        raise ValueError(msg)


@dataclass(frozen=True, slots=True)
class NoRetry:
    """The first failure is final."""

    def can_retry(self, retries: int, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Never."""
        return False

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """No wait."""
        return timedelta(0)

    def retries_exception(self, error: Exception, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """None."""
        return False

    def retries_result(self, results: Sequence[Any], /) -> bool:  # noqa: ARG002 - the protocol's signature
        """None."""
        return False
