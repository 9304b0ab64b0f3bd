"""Timers of one operator and task, in all domains (FLIP-425, "Timers").

Stored in time order, so finding those that are due costs as many steps as are due, never a scan of
all. Timers that fall due within the slice are taken into a heap once; the rest stay in the backend.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from headrace import clock
from headrace.api import TimeDomain
from headrace.state.backend import TIMER_PREFIX, StateBackend, Write

EVENT_TIME, PROCESSING_TIME = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP = "event_time_cleanup", "processing_time_cleanup"


@dataclass(frozen=True, slots=True)
class Domain:
    """Timers of one purpose. Those of two domains never replace each other."""

    name: str
    """The column `domain` of the table."""

    code: bytes
    """One byte in a backend's entries."""

    clock: TimeDomain
    """What makes them fire: of a key, all timers of a clock fire in order of time, whatever their domains."""

    rank: int = 0
    """Which of a key's timers for the same moment fires first: the one of the lowest rank."""

    is_internal: bool = False
    """Whether the engine set them: user code gets none of them, and none of them is counted."""


DOMAINS: Mapping[str, Domain] = {
    domain.name: domain
    for domain in (
        Domain(EVENT_TIME, b"e", EVENT_TIME),
        Domain(PROCESSING_TIME, b"p", PROCESSING_TIME),
        # What is dead at a moment is gone before a user's timer of that moment can see it.
        Domain(EVENT_TIME_CLEANUP, b"E", EVENT_TIME, rank=-1, is_internal=True),
        Domain(PROCESSING_TIME_CLEANUP, b"P", PROCESSING_TIME, rank=-1, is_internal=True),
    )
}
"""All domains by name. A new one is a line here, and a handler in `KeyedProcess`."""

_BEGINNINGS = {domain.name: TIMER_PREFIX + domain.code for domain in DOMAINS.values()}
_NAMES = {beginning: name for name, beginning in _BEGINNINGS.items()}
_OF_CLOCK = {clock_: [each for each in DOMAINS.values() if each.clock is clock_] for clock_ in TimeDomain}
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63  # makes byte order the order of signed numbers
_TIME_BEGINS = len(TIMER_PREFIX) + 1
_KEY_BEGINS = _TIME_BEGINS + _TIME.size
_END_OF_KEY = b"\x00"


class Timer(NamedTuple):
    """A timer; ordered by time, then key. `domain` is the name of a `Domain`."""

    timestamp: int
    key_json: bytes
    domain: str = EVENT_TIME
    namespace: str = ""


class TimerChange(NamedTuple):
    """A timer that the task registered, or removed."""

    timer: Timer
    registered: bool


Turn = tuple[int, int, str, str]
"""A timer's place among those of its key and clock; see `turn`."""


def turn(timer: Timer) -> Turn:
    """When it is a timer's turn among those of its key and clock: by time, rank, domain, namespace."""
    return timer.timestamp, DOMAINS[timer.domain].rank, timer.domain, timer.namespace


def timer_entry(timer: Timer) -> bytes:
    """The backend's entry for a timer. JSON and namespaces have no zero bytes, so the parts can't mix."""
    entry = _BEGINNINGS[timer.domain] + _TIME.pack(timer.timestamp + _BIAS) + timer.key_json
    return entry + _END_OF_KEY + timer.namespace.encode() if timer.namespace else entry


def timer_of(entry: bytes) -> Timer:
    """The timer of a backend's entry."""
    (biased,) = _TIME.unpack_from(entry, _TIME_BEGINS)
    key_json, _, namespace = entry[_KEY_BEGINS:].partition(_END_OF_KEY)
    return Timer(biased - _BIAS, key_json, domain_of(entry), namespace.decode())


def domain_of(entry: bytes) -> str:
    """The domain of a timer's entry, or of entries that begin like this."""
    return _NAMES[entry[:_TIME_BEGINS]]


class _Due:
    """The timers of a clock that are due by `horizon`, the furthest that it is known to get (ms).

    None are stored up to `fired_until`; unless that is None, and nothing is known.
    """

    __slots__ = ("fired_until", "horizon", "in_order", "turns")

    def __init__(self, fired_until: int | None) -> None:
        self.fired_until = fired_until
        self.horizon: int | None = None
        self.in_order: list[Timer] = []
        self.turns: dict[bytes, list[Turn]] = {}

    def add(self, timer: Timer) -> None:
        heapq.heappush(self.in_order, timer)
        heapq.heappush(self.turns.setdefault(timer.key_json, []), turn(timer))


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """The timers of a task at one moment, those of user code and internal ones."""

    due: int
    """Due within the slice, and neither fired nor deleted."""
    changed: int
    """Registered, deleted or fired by the task."""
    fired: int
    """Fired so far, internal ones apart."""


class TimerService:
    """The timers of all keys of a task. Registering and looking are synchronous, as the FLIP has it."""

    def __init__(
        self,
        backend: StateBackend,
        last_watermark: int | None,
        processing_time: int | None = None,
        *,
        fired_until: Mapping[str, int] | None = None,
    ) -> None:
        """Load the timers that are due.

        `last_watermark` is the last one of the slice or before it, `processing_time` that of the micro-batch (ms); unless
        given, it is what the clock says. `fired_until` is what the last task said: timers up to there are not looked for again.
        """
        known = fired_until or {}
        self._backend = backend
        self._changed: dict[Timer, bool] = {}
        self._due = {clock_: _Due(known.get(clock_)) for clock_ in TimeDomain}
        self._due_of = {domain.name: self._due[domain.clock] for domain in DOMAINS.values()}
        self.live: set[Timer] = set()
        """Timers of any domain that are due within the slice, and have neither fired nor been deleted."""
        self.fired = 0
        """Timers taken out, internal ones apart."""
        self.processing_time = clock.now() if processing_time is None else processing_time
        if last_watermark is not None:
            self.extend(last_watermark)
        self.extend(self.processing_time, PROCESSING_TIME)

    def extend(self, horizon: int, clock: TimeDomain = EVENT_TIME) -> None:
        """Move the last watermark, or processing time, on, where it wasn't known at the start."""
        due = self._due[clock]
        if due.horizon is not None and horizon <= due.horizon:
            return
        passed, due.horizon = due.fired_until if due.horizon is None else due.horizon, horizon
        if clock is PROCESSING_TIME:
            self.processing_time = horizon
        changed = self._changed
        for domain in _OF_CLOCK[clock]:
            self._make_due(timer for timer in self._stored(domain.name, passed, horizon) if timer not in changed)
        self._make_due(
            timer
            for timer, live in changed.items()
            if live and timer.timestamp <= horizon and self._due_of[timer.domain] is due
        )

    def register(self, timer: Timer) -> None:
        """Register a timer; again is the same as once."""
        self._changed[timer] = True
        horizon = self._due_of[timer.domain].horizon
        if horizon is not None and timer.timestamp <= horizon:
            self._make_due((timer,))

    def delete(self, timer: Timer) -> None:
        """Take a timer back; nothing happens if there is none."""
        self._changed[timer] = False
        self.live.discard(timer)

    def first_due(self, key_json: bytes, now: int, clock: TimeDomain = EVENT_TIME) -> Timer | None:
        """The key's earliest timer of the clock, if it is due at `now`, a watermark or processing time."""
        due = self._due[clock]
        turns = due.turns.get(key_json)
        while turns:
            timestamp, _, domain, namespace = turns[0]
            timer = Timer(timestamp, key_json, domain, namespace)
            if timer in self.live:
                return timer if timestamp <= now else None
            heapq.heappop(turns)
        due.turns.pop(key_json, None)
        return None

    def keys_due(self, now: int, clock: TimeDomain = EVENT_TIME) -> Iterator[bytes]:
        """The keys with a timer of the clock that is due at `now`, by the time of their first one.

        To be asked once per watermark or processing time. Timers may be taken and registered meanwhile, but once a key was
        given, its timers have to be taken by whoever asked.
        """
        timers = self._due[clock].in_order
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
        self.fired += not DOMAINS[timer.domain].is_internal
        return True

    def fired_until(self) -> dict[str, int]:
        """By clock, the moment (ms) up to which no timer is registered any more: the next task need not look for any.

        That is the horizon, unless timers are left that did not fire. Nothing is said of a clock without a horizon.
        """
        until = {clock_: due.horizon for clock_, due in self._due.items() if due.horizon is not None}
        for timer in self.live:
            clock_ = DOMAINS[timer.domain].clock
            until[clock_] = min(until[clock_], timer.timestamp - 1)
        return {str(clock_): moment for clock_, moment in until.items()}

    def statistics(self) -> TimerStatistics:
        """What is going on, as numbers."""
        return TimerStatistics(due=len(self.live), changed=len(self._changed), fired=self.fired)

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
                self._due_of[timer.domain].add(timer)

    def _stored(self, domain: str, after: int | None, until: int) -> Iterator[Timer]:
        if after is not None and after >= until:
            return
        beginning = _BEGINNINGS[domain]
        start = beginning if after is None else beginning + _TIME.pack(after + 1 + _BIAS)
        for entry, _ in self._backend.scan(start, beginning + _TIME.pack(until + 1 + _BIAS)):
            yield timer_of(entry)
