"""Timers of one operator and task, in both time domains (FLIP-425, "Timers").

Stored in time order, so finding those that are due costs as many steps as are due, never a scan of
all. Timers that fall due within the slice are taken into a heap once; the rest stay in the backend.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine import clock
from engine.api import TimeDomain
from engine.state.backend import TIMERS, StateBackend, Write

EVENT_TIME, PROCESSING_TIME = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME

_DOMAINS = {EVENT_TIME: TIMERS + b"e", PROCESSING_TIME: TIMERS + b"p"}
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63  # makes byte order the order of signed numbers
_TIME_BEGINS = len(TIMERS) + 1
_KEY_BEGINS = _TIME_BEGINS + _TIME.size


class Timer(NamedTuple):
    """A timer; ordered by time, then key."""

    timestamp: int
    key_json: bytes
    domain: TimeDomain = EVENT_TIME


class TimerChange(NamedTuple):
    """A timer that the task registered, or removed."""

    timer: Timer
    registered: bool


def timer_entry(timer: Timer) -> bytes:
    """The backend's entry for a timer."""
    return _DOMAINS[timer.domain] + _TIME.pack(timer.timestamp + _BIAS) + timer.key_json


def domain_of(entry: bytes) -> TimeDomain:
    """The domain of a timer's entry, or of entries that begin like this."""
    return next(domain for domain, beginning in _DOMAINS.items() if entry.startswith(beginning))


class _Due:
    """The timers of a domain that are due by `horizon`, the furthest that its clock is known to get (ms)."""

    __slots__ = ("horizon", "in_order", "times")

    def __init__(self) -> None:
        self.horizon: int | None = None
        self.in_order: list[Timer] = []
        self.times: dict[bytes, list[int]] = {}

    def add(self, timer: Timer) -> None:
        heapq.heappush(self.in_order, timer)
        heapq.heappush(self.times.setdefault(timer.key_json, []), timer.timestamp)


class TimerService:
    """The timers of all keys of a task. Registering and looking are synchronous, as the FLIP has it."""

    def __init__(self, backend: StateBackend, last_watermark: int | None, processing_time: int | None = None) -> None:
        """Load the timers that are due.

        `last_watermark` is the last one of the slice or before it, `processing_time` that of the micro-batch (ms); unless
        given, it is what the clock says.
        """
        self._backend = backend
        self._changed: dict[Timer, bool] = {}
        self._due = {EVENT_TIME: _Due(), PROCESSING_TIME: _Due()}
        self.live: set[Timer] = set()
        """Timers of either domain that are due within the slice, and have neither fired nor been deleted."""
        self.fired = 0
        self.processing_time = clock.now() if processing_time is None else processing_time
        if last_watermark is not None:
            self.extend(last_watermark)
        self.extend(self.processing_time, PROCESSING_TIME)

    def extend(self, horizon: int, domain: TimeDomain = EVENT_TIME) -> None:
        """Move the last watermark, or processing time, on, where it wasn't known at the start."""
        due = self._due[domain]
        if due.horizon is not None and horizon <= due.horizon:
            return
        passed, due.horizon = due.horizon, horizon
        if domain is PROCESSING_TIME:
            self.processing_time = horizon
        changed = self._changed
        self._make_due(timer for timer in self._stored(domain, passed, horizon) if timer not in changed)
        self._make_due(
            timer for timer, live in changed.items() if live and timer.domain is domain and timer.timestamp <= horizon
        )

    def register(self, timer: Timer) -> None:
        """Register a timer; again is the same as once."""
        self._changed[timer] = True
        horizon = self._due[timer.domain].horizon
        if horizon is not None and timer.timestamp <= horizon:
            self._make_due((timer,))

    def delete(self, timer: Timer) -> None:
        """Take a timer back; nothing happens if there is none."""
        self._changed[timer] = False
        self.live.discard(timer)

    def first_due(self, key_json: bytes, now: int, domain: TimeDomain = EVENT_TIME) -> Timer | None:
        """The key's earliest timer of the domain, if it is due at `now`, a watermark or processing time."""
        due = self._due[domain]
        times = due.times.get(key_json)
        while times:
            timer = Timer(times[0], key_json, domain)
            if timer in self.live:
                return timer if timer.timestamp <= now else None
            heapq.heappop(times)
        due.times.pop(key_json, None)
        return None

    def keys_due(self, now: int, domain: TimeDomain = EVENT_TIME) -> Iterator[bytes]:
        """The keys with a timer of the domain that is due at `now`, by the time of their first one.

        To be asked once per watermark or processing time. Timers may be taken and registered meanwhile, but once a key was
        given, its timers have to be taken by whoever asked.
        """
        timers = self._due[domain].in_order
        while timers and timers[0].timestamp <= now:
            timer = heapq.heappop(timers)
            if timer in self.live:
                yield timer.key_json

    def take(self, timer: Timer) -> bool:
        """Take one timer out to fire it now; whether it was still there."""
        if timer not in self.live:
            return False
        self.live.discard(timer)
        self._changed[timer] = False
        self.fired += 1
        return True

    def changes(self) -> list[TimerChange]:
        """What differs from the backend: a timer that came and went leaves no trace."""
        timers = list(self._changed)
        stored = self._backend.get_many([timer_entry(timer) for timer in timers])
        return [
            TimerChange(timer, self._changed[timer])
            for timer, entry in zip(timers, stored, strict=True)
            if self._changed[timer] is (entry is None)
        ]

    def writes(self, changes: Sequence[TimerChange]) -> Iterator[Write]:
        """`changes` as the backend takes them."""
        for change in changes:
            yield timer_entry(change.timer), b"" if change.registered else None

    def _make_due(self, timers: Iterable[Timer]) -> None:
        for timer in timers:
            if timer not in self.live:
                self.live.add(timer)
                self._due[timer.domain].add(timer)

    def _stored(self, domain: TimeDomain, after: int | None, until: int) -> Iterator[Timer]:
        beginning = _DOMAINS[domain]
        start = beginning if after is None else beginning + _TIME.pack(after + 1 + _BIAS)
        for entry, _ in self._backend.scan(start, beginning + _TIME.pack(until + 1 + _BIAS)):
            (biased,) = _TIME.unpack_from(entry, _TIME_BEGINS)
            yield Timer(biased - _BIAS, entry[_KEY_BEGINS:], domain)
