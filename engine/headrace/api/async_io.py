"""Policies of async I/O: waiting elements, elements that fail for good, and services that are down."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta


class RecoveryOption(enum.Enum):
    """How much of its timeout an element has left when a later micro-batch resumes it (FLIP-232, "retry state").

    `LATENCY_FIRST` and `COST_TIME` keep the element's count of attempts. In all three cases the element resumes when
    its next attempt is due: a new run never calls a service earlier than the back-off says. The remaining time is never
    less than `timeout / (max_retries + 1)`, whereas the FLIP's formula can give a negative one.
    """

    RESTART = "restart"
    """Start over: the whole timeout and all attempts."""

    LATENCY_FIRST = "latency_first"
    """Keep the timeout minus all time since the first attempt, including the time between runs."""

    COST_TIME = "cost_time"
    """Keep the timeout minus the time that runs spent on the element; time in the table does not count."""


class OnFailure(enum.Enum):
    """Fate of an element that fails for good: no retries left, no time left, or an error that is not retried."""

    FAIL = "fail"
    """Fail the run with the error; commit nothing of the micro-batch."""

    QUARANTINE = "quarantine"
    """Write it to the table `quarantine` with its last error; `headrace quarantine JOB --requeue` brings it back."""

    DEFAULT = "default"
    """Emit the records of `AsyncFunction.default` in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """When a service counts as down, and how it is probed. Each task has its own breaker.

    No call is made while the breaker is open. An element that is due waits for the next probe: in the task if the probe
    is nearer than `park_after`, else in the table `async_requests`. One element is the probe, and its success closes
    the breaker. A probe has the operator's whole timeout. A probe that fails or times out costs its element neither an
    attempt nor time.

    Raises `ValueError` for `failures` below 1, and unless `probe_after` is positive and at most `longest`.
    """

    failures: int = 20
    """Failed calls in a row that open the breaker. Only failures that the retry strategy retries count."""

    probe_after: timedelta = timedelta(seconds=30)
    """Time from opening to the first probe."""

    longest: timedelta = timedelta(minutes=10)
    """Upper limit of the time between probes, which doubles with each failed probe."""

    def __post_init__(self) -> None:
        """Refuse a breaker that never opens, or never closes again."""
        if self.failures < 1:
            msg = f"failures must be at least 1, not {self.failures}"
            raise ValueError(msg)
        if not timedelta(0) < self.probe_after <= self.longest:
            msg = f"probe_after must be positive and at most longest ({self.longest}), not {self.probe_after}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCache:
    """Answers that a task remembers by `AsyncFunction.cache_key`. Equal calls in flight become one call.

    The cache remembers neither failures nor answers that the retry strategy's result predicate rejects.

    Raises `ValueError` for a `size` below 1, a `ttl` that is not positive, and a negative `negative_ttl`.
    """

    size: int = 10_000
    """Largest number of answers; the least recently used one is dropped first."""

    ttl: timedelta | None = None
    """How long an answer may be used after it arrived; None: as long as the task lives."""

    negative_ttl: timedelta | None = None
    """`ttl` of an answer without records; None: as `ttl`. Zero: such answers are not remembered."""

    def __post_init__(self) -> None:
        """Refuse a cache that can hold nothing."""
        if self.size < 1:
            msg = f"size must be at least 1, not {self.size}"
            raise ValueError(msg)
        if self.ttl is not None and self.ttl <= timedelta(0):
            msg = f"ttl must be positive, not {self.ttl}"
            raise ValueError(msg)
        if self.negative_ttl is not None and self.negative_ttl < timedelta(0):
            msg = f"negative_ttl must not be negative, not {self.negative_ttl}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How records are grouped for `AsyncFunction.invoke_many`.

    Raises `ValueError` for a `size` below 1 and a negative `wait`.
    """

    size: int = 100
    """Largest number of records in a call."""

    wait: timedelta = timedelta(milliseconds=5)
    """Longest time that the first record of a call waits for others."""

    def __post_init__(self) -> None:
        """Refuse empty groups and negative waits."""
        if self.size < 1:
            msg = f"size must be at least 1, not {self.size}"
            raise ValueError(msg)
        if self.wait < timedelta(0):
            msg = f"wait must not be negative, not {self.wait}"
            raise ValueError(msg)


def check_limits(name: str, capacity: int, timeout: timedelta | None, park_after: timedelta | None) -> None:
    """Check limits of `async_wait`. Raises `ValueError` for a value out of range, `TypeError` for one that is no duration."""
    spans: dict[str, object] = {"timeout": timeout, "park_after": park_after}
    for option, span in spans.items():
        if span is not None and not isinstance(span, timedelta):
            msg = f"{option} of '{name}' must be a timedelta, or None for no {option}, not {span!r:.200}"
            raise TypeError(msg)
    if capacity < 1:
        msg = f"capacity of '{name}' must be at least 1, not {capacity}"
        raise ValueError(msg)
    if timeout is not None and timeout <= timedelta(0):
        msg = f"timeout of '{name}' must be positive, or None for no timeout, not {timeout}"
        raise ValueError(msg)
    if park_after is not None and park_after < timedelta(0):
        msg = f"park_after of '{name}' must not be negative, not {park_after}"
        raise ValueError(msg)
