"""Retry strategies of async I/O (FLIP-232, "AsyncRetryStrategy")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from headrace import clock


class AsyncRetryStrategy(Protocol):
    """When to retry a call that failed, or that returned an incomplete answer.

    One strategy serves all records of a task, so it holds no state about any of them: the number of retries is kept
    with the record, and given to each method. Any object with these methods is a strategy.
    """

    def can_retry(self, retries: int, /) -> bool:
        """Return whether another call may follow after `retries` retries (0 after the first call)."""
        ...

    def backoff(self, retries: int, /) -> timedelta:
        """Return the time to wait before the next call, after `retries` retries (0 after the first call)."""
        ...

    def retries_exception(self, error: Exception, /) -> bool:
        """Return whether to retry after `error` (FLIP-232, `exceptionPredicate`)."""
        ...

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Return whether to retry after this answer (FLIP-232, `resultPredicate`).

        Without retries left, such an answer is emitted as it is.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    max_retries: int
    """Calls after the first one: 3 allows four calls."""

    exceptions: tuple[type[Exception], ...] = (Exception,)
    """Exceptions that are retried; any other fails at once."""

    results: Callable[[Sequence[Any]], bool] | None = None
    """Predicate of an answer (a list of records) that is retried; None: every answer is final."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            msg = f"max_retries must not be negative, not {self.max_retries}"
            raise ValueError(msg)

    def can_retry(self, retries: int, /) -> bool:
        """Return whether fewer than `max_retries` retries were made."""
        return retries < self.max_retries

    def retries_exception(self, error: Exception, /) -> bool:
        """Return whether `error` is one of `exceptions`."""
        return isinstance(error, self.exceptions)

    def retries_result(self, results: Sequence[Any], /) -> bool:
        """Return whether the predicate `results` holds for the answer."""
        return self.results is not None and self.results(results)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(_Limited):
    """Constant delay before each retry (FLIP-232, "FixedDelayRetryStrategy").

    Raises `ValueError` for a negative `max_retries` or `delay`.
    """

    delay: timedelta

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("delay", self.delay)

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """Return `delay`."""
        return self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff(_Limited):
    """Delays that grow by `multiplier` up to `max_delay` (FLIP-232, "ExponentialBackoffDelay").

    Raises `ValueError` for a negative `max_retries` or delay, a `multiplier` below 1, and a `jitter` outside of 0 to 1.
    """

    initial_delay: timedelta
    max_delay: timedelta
    multiplier: float = 2.0

    jitter: float = 0.0
    """Random part of each delay, from 0 to 1. With 0.5 a delay of 10 s takes 5 to 10 s.

    It spreads the retries of records that failed together.
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
        """Return the time to wait before the next call. Retry 0 waits `initial_delay`, less the jitter."""
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
    """No retries: the first failure is final."""

    def can_retry(self, retries: int, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """Return no delay."""
        return timedelta(0)

    def retries_exception(self, error: Exception, /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False

    def retries_result(self, results: Sequence[Any], /) -> bool:  # noqa: ARG002 - the protocol's signature
        """Return False."""
        return False
