"""Event-time timers of one operator and task (FLIP-425, "Timers").

Stored in time order, so finding those that are due costs as many steps as are due, never a scan of
all. Timers that fall due within the slice are taken into a heap once; the rest stay in the backend.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterator, Sequence
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
    """The timers of all keys of a task."""

    def __init__(self, backend: StateBackend, last_watermark: int | None) -> None:
        """Load the timers due by `last_watermark`, the last one of the slice or before it (ms)."""
        self._backend = backend
        self._horizon = last_watermark
        self._changed: dict[Timer, bool] = {}
        self._due: list[Timer] = []
        if last_watermark is not None:
            self._due = list(self._stored_until(last_watermark))
        self._live = set(self._due)
        self.fired = 0

    def register(self, timer: Timer) -> None:
        """Register a timer; again is the same as once."""
        self._changed[timer] = True
        if self._horizon is not None and timer.timestamp <= self._horizon and timer not in self._live:
            self._live.add(timer)
            heapq.heappush(self._due, timer)

    def delete(self, timer: Timer) -> None:
        """Take a timer back; nothing happens if there is none."""
        self._changed[timer] = False
        self._live.discard(timer)

    def pop_due(self, watermark: int) -> Iterator[Timer]:
        """Take out the timers due at `watermark`, in time order, also those registered meanwhile."""
        while self._due and self._due[0].timestamp <= watermark:
            timer = heapq.heappop(self._due)
            if timer in self._live:
                self._live.discard(timer)
                self._changed[timer] = False
                self.fired += 1
                yield timer

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

    def _stored_until(self, watermark: int) -> Iterator[Timer]:
        end = _EVENT + _TIME.pack(watermark + 1 + _BIAS)
        for entry, _ in self._backend.scan(_EVENT, end):
            (biased,) = _TIME.unpack_from(entry, len(_EVENT))
            yield Timer(biased - _BIAS, entry[_PREFIX:])
