"""Policies of async I/O: what becomes of an element that waits, of one given up on, and of a service that is down."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta


class RecoveryOption(enum.Enum):
    """How much of its timeout an element has left when a later micro-batch takes it up (FLIP-232, "retry state").

    With the last two it keeps its count of attempts. In each case it is taken up when its next attempt is due: a new run is no
    reason to call a service earlier than its back-off says. What is left is never less than
    `timeout / (max_retries + 1)`; the FLIP's formula alone could give a negative one.
    """

    RESTART = "restart"
    """From scratch: the whole timeout, and all attempts once more."""

    LATENCY_FIRST = "latency_first"
    """The timeout minus all the time since the first attempt, between runs as well."""

    COST_TIME = "cost_time"
    """The timeout minus the time that runs have spent on it; time in the table costs nothing."""


class OnFailure(enum.Enum):
    """The way of an element that is given up on: out of retries, or of time, or failed by another error."""

    FAIL = "fail"
    """The run fails with the error; nothing of the micro-batch is committed."""

    QUARANTINE = "quarantine"
    """It goes to the table `quarantine` with its last error; `headrace quarantine JOB --requeue` brings it back."""

    DEFAULT = "default"
    """The records of `AsyncFunction.default` are emitted in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreaker:
    """When a service counts as down, and how it is probed. Each task has a breaker of its own.

    While it is open no call is made. What would be called waits for the next probe, in the task if that is nearer than
    `park_after`, else in the table `async_requests`. One element is the probe; its success closes the breaker. A probe has the
    operator's whole timeout. One that fails, or has no answer in time, costs its element neither an attempt nor time.
    """

    failures: int = 20
    """So many failed calls in a row, with no success among them, open it. Only failures worth a retry count."""

    probe_after: timedelta = timedelta(seconds=30)
    """Time to the first probe."""

    longest: timedelta = timedelta(minutes=10)
    """The time between probes doubles with each that fails, up to this."""

    def __post_init__(self) -> None:
        """Refuse a breaker that would never open, or never close again."""
        if self.failures < 1:
            msg = f"failures must be at least 1, not {self.failures}"
            raise ValueError(msg)
        if not timedelta(0) < self.probe_after <= self.longest:
            msg = f"probe_after must be positive and at most longest ({self.longest}), not {self.probe_after}"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCache:
    """Answers that a task remembers, by `AsyncFunction.cache_key`; equal calls in flight become one call.

    A failure is never remembered, nor is an answer that the retry strategy's result predicate refuses.
    """

    size: int = 10_000
    """Answers at most; the one that was used longest ago goes first."""

    ttl: timedelta | None = None
    """How long an answer may be used after it came; None: as long as the task lives."""

    negative_ttl: timedelta | None = None
    """The same for an answer without records; None: as `ttl`. Zero: such answers are not remembered."""

    def __post_init__(self) -> None:
        """Refuse a cache that holds nothing."""
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
    """How records are grouped for `AsyncFunction.invoke_many`."""

    size: int = 100
    """A call has so many records at most."""

    wait: timedelta = timedelta(milliseconds=5)
    """How long the first record of a call waits for others."""

    def __post_init__(self) -> None:
        """Refuse groups of nothing."""
        if self.size < 1:
            msg = f"size must be at least 1, not {self.size}"
            raise ValueError(msg)
        if self.wait < timedelta(0):
            msg = f"wait must not be negative, not {self.wait}"
            raise ValueError(msg)


def check_limits(name: str, capacity: int, timeout: timedelta, park_after: timedelta | None) -> None:
    """Raise `ValueError` unless `async_wait` can keep these limits."""
    if capacity < 1:
        msg = f"capacity of '{name}' must be at least 1, not {capacity}"
        raise ValueError(msg)
    if timeout <= timedelta(0):
        msg = f"timeout of '{name}' must be positive, not {timeout}"
        raise ValueError(msg)
    if park_after is not None and park_after < timedelta(0):
        msg = f"park_after of '{name}' must not be negative, not {park_after}"
        raise ValueError(msg)
