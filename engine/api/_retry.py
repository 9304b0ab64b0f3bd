"""Retry strategies of async I/O (FLIP-232, "AsyncRetryStrategy")."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol


class AsyncRetryStrategy(Protocol):
    """When to call again after a call that failed. Holds no state about a record."""

    def can_retry(self, retries: int, /) -> bool:
        """Whether another call may follow after `retries` repeated calls (0 after the first)."""
        ...

    def backoff(self, retries: int, /) -> timedelta:
        """How long to wait before the next call."""
        ...

    def retries_exception(self, error: Exception, /) -> bool:
        """Whether `error` is worth another call at all."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limited:
    max_retries: int
    """Calls after the first one. 3 means up to four calls."""

    exceptions: tuple[type[Exception], ...] = (Exception,)
    """Only these are tried again; any other fails at once."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            msg = f"max_retries must not be negative, not {self.max_retries}"
            raise ValueError(msg)

    def can_retry(self, retries: int, /) -> bool:
        """See `AsyncRetryStrategy.can_retry`."""
        return retries < self.max_retries

    def retries_exception(self, error: Exception, /) -> bool:
        """See `AsyncRetryStrategy.retries_exception`."""
        return isinstance(error, self.exceptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedDelay(_Limited):
    """The same wait before each retry (FLIP-232, "FixedDelayRetryStrategy")."""

    delay: timedelta

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("delay", self.delay)

    def backoff(self, retries: int, /) -> timedelta:  # noqa: ARG002 - the protocol's signature
        """See `AsyncRetryStrategy.backoff`."""
        return self.delay


@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialBackoff(_Limited):
    """Waits that grow by `multiplier` up to `max_delay` (FLIP-232, "ExponentialBackoffDelay")."""

    initial_delay: timedelta
    max_delay: timedelta
    multiplier: float = 2.0

    def __post_init__(self) -> None:
        _Limited.__post_init__(self)
        _check_delay("initial_delay", self.initial_delay)
        _check_delay("max_delay", self.max_delay)
        if self.multiplier < 1:
            msg = f"multiplier must be at least 1, not {self.multiplier}"
            raise ValueError(msg)

    def backoff(self, retries: int, /) -> timedelta:
        """See `AsyncRetryStrategy.backoff`. Retry 0 waits `initial_delay`."""
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
