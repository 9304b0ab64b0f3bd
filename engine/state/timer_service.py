"""Event-time timers of one operator and task (FLIP-425, "Timers").

Stored in time order, so finding those that are due costs as many steps as are due, never a scan of
all. Timers that fall due within the slice are taken into a heap once; the rest stay in the backend.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from engine.state.backend import TIMERS, StateBackend, Write

EVENT_TIME = "event_time"

_EVENT = TIMERS + b"e"
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63  # makes byte order the order of signed numbers
_PREFIX = len(_EVENT) + _TIME.size


class Timer(NamedTuple):
    """A timer; ordered by time, then key."""

    timestamp: int
    key_json: bytes


class TimerChange(NamedTuple):
    """A timer that the task registered, or removed."""

    timer: Timer
    registered: bool


def timer_entry(timer: Timer) -> bytes:
    """The backend's entry for a timer."""
    return _EVENT + _TIME.pack(timer.timestamp + _BIAS) + timer.key_json


class TimerService:
    """The timers of all keys of a task. Registering and looking are synchronous, as the FLIP has it."""

    def __init__(self, backend: StateBackend, last_watermark: int | None) -> None:
        """Load the timers due by `last_watermark`, the last one of the slice or before it (ms)."""
        self._backend = backend
        self._horizon = last_watermark
        self._changed: dict[Timer, bool] = {}
        self._due: list[Timer] = []
        self._times: dict[bytes, list[int]] = {}
        self._live: set[Timer] = set()
        self.fired = 0
        if last_watermark is not None:
            self._make_due(self._stored(None, last_watermark))

    def extend(self, last_watermark: int) -> None:
        """Move the last watermark on, where it wasn't known at the start."""
        if self._horizon is not None and last_watermark <= self._horizon:
            return
        passed, self._horizon = self._horizon, last_watermark
        self._make_due(timer for timer in self._stored(passed, last_watermark) if timer not in self._changed)
        self._make_due(timer for timer, live in self._changed.items() if live and timer.timestamp <= last_watermark)

    def register(self, timer: Timer) -> None:
        """Register a timer; again is the same as once."""
        self._changed[timer] = True
        if self._horizon is not None and timer.timestamp <= self._horizon:
            self._make_due((timer,))

    def delete(self, timer: Timer) -> None:
        """Take a timer back; nothing happens if there is none."""
        self._changed[timer] = False
        self._live.discard(timer)

    @property
    def any_due(self) -> bool:
        """Whether a timer may be due within the slice."""
        return bool(self._times)

    def first_due(self, key_json: bytes, watermark: int) -> Timer | None:
        """The key's earliest timer, if it is due at `watermark`."""
        times = self._times.get(key_json)
        while times:
            timer = Timer(times[0], key_json)
            if timer in self._live:
                return timer if timer.timestamp <= watermark else None
            heapq.heappop(times)
        self._times.pop(key_json, None)
        return None

    def keys_due(self, watermark: int) -> Iterator[bytes]:
        """The keys with a timer that is due at `watermark`, by the time of their first one.

        To be asked once per watermark. Timers may be taken and registered meanwhile, but once a key was given, its timers
        have to be taken by whoever asked.
        """
        while self._due and self._due[0].timestamp <= watermark:
            timer = heapq.heappop(self._due)
            if timer in self._live:
                yield timer.key_json

    def take(self, timer: Timer) -> bool:
        """Take one timer out to fire it now; whether it was still there."""
        if timer not in self._live:
            return False
        self._live.discard(timer)
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
            if timer not in self._live:
                self._live.add(timer)
                heapq.heappush(self._due, timer)
                heapq.heappush(self._times.setdefault(timer.key_json, []), timer.timestamp)

    def _stored(self, after: int | None, until: int) -> Iterator[Timer]:
        start = _EVENT if after is None else _EVENT + _TIME.pack(after + 1 + _BIAS)
        for entry, _ in self._backend.scan(start, _EVENT + _TIME.pack(until + 1 + _BIAS)):
            (biased,) = _TIME.unpack_from(entry, len(_EVENT))
            yield Timer(biased - _BIAS, entry[_PREFIX:])
