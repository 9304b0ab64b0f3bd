"""Timers of one operator and task, in all domains (FLIP-425, "Timers").

Stored in time order, so finding the due timers costs as many steps as there are due timers, never a scan of
all. Timers that are due within the slice are loaded into a heap once; the others stay in the backend.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from headrace import clock
from headrace.api.functions import TimeDomain
from headrace.state.backend import TIMER_PREFIX, StateBackend, Write

EVENT_TIME, PROCESSING_TIME = TimeDomain.EVENT_TIME, TimeDomain.PROCESSING_TIME
EVENT_TIME_CLEANUP, PROCESSING_TIME_CLEANUP = "event_time_cleanup", "processing_time_cleanup"


@dataclass(frozen=True, slots=True)
class Domain:
    """Timers of one purpose. Timers of different domains never replace each other."""

    name: str
    """Value of the column `domain` of the table."""

    code: bytes
    """One byte in a backend's entries."""

    clock: TimeDomain
    """Clock that makes them fire. A key's timers of a clock fire in order of time, whatever their domains."""

    rank: int = 0
    """Order of a key's timers for the same access: the lowest rank fires first."""

    is_internal: bool = False
    """True: the engine set them. User code does not see them, and they are not counted."""


DOMAINS: Mapping[str, Domain] = {
    domain.name: domain
    for domain in (
        Domain(EVENT_TIME, b"e", EVENT_TIME),
        Domain(PROCESSING_TIME, b"p", PROCESSING_TIME),
        # Entries expire behind a user's timer of the same access.
        Domain(EVENT_TIME_CLEANUP, b"E", EVENT_TIME, rank=1, is_internal=True),
        Domain(PROCESSING_TIME_CLEANUP, b"P", PROCESSING_TIME, rank=1, is_internal=True),
    )
}
"""All domains by name. A new domain is a line here, and a handler in `KeyedProcess`."""

_BEGINNINGS = {domain.name: TIMER_PREFIX + domain.code for domain in DOMAINS.values()}
_NAMES = {beginning: name for name, beginning in _BEGINNINGS.items()}
_OF_CLOCK = {clock_: [domain for domain in DOMAINS.values() if domain.clock is clock_] for clock_ in TimeDomain}
_TIME = struct.Struct(">Q")
_BIAS = 1 << 63  # gives signed numbers the order of their bytes
_TIME_BEGINS = len(TIMER_PREFIX) + 1
_KEY_BEGINS = _TIME_BEGINS + _TIME.size
_END_OF_KEY = b"\x00"
_INTERNAL = frozenset(domain.name for domain in DOMAINS.values() if domain.is_internal)
_USERS = (EVENT_TIME, "")
"""Domain and namespace of the timers that a function takes in bundles."""


class Timer(NamedTuple):
    """A timer, ordered by time, then key. `domain` is the name of a `Domain`."""

    timestamp: int
    key_json: bytes
    domain: str = EVENT_TIME
    namespace: str = ""


class TimerChange(NamedTuple):
    """A timer that the task registered or removed."""

    timer: Timer
    registered: bool


make_timer = partial(tuple.__new__, Timer)
_make_change = partial(tuple.__new__, TimerChange)
"""Make a timer, and its change, from a tuple of all fields, for the reason of `make_emitted`."""

Turn = tuple[int, int, str, str]
"""Sort key of a timer among those of its key and clock, made by `turn`."""


def turn(timer: Timer) -> Turn:
    """Return the sort key of a timer among those of its key and clock: time, rank, domain, namespace."""
    return timer.timestamp, DOMAINS[timer.domain].rank, timer.domain, timer.namespace


def timer_entry(timer: Timer) -> bytes:
    """Return the backend's entry for a timer. JSON and namespaces have no zero bytes, so the parts are unambiguous."""
    entry = _BEGINNINGS[timer.domain] + _TIME.pack(timer.timestamp + _BIAS) + timer.key_json
    return entry + _END_OF_KEY + timer.namespace.encode() if timer.namespace else entry


def timer_of(entry: bytes) -> Timer:
    """Return the timer of a backend's entry."""
    (biased,) = _TIME.unpack_from(entry, _TIME_BEGINS)
    key_json, _, namespace = entry[_KEY_BEGINS:].partition(_END_OF_KEY)
    return make_timer((biased - _BIAS, key_json, domain_of(entry), namespace.decode()))


def domain_of(entry: bytes) -> str:
    """Return the domain of a timer's entry, or of a prefix of entries."""
    return _NAMES[entry[:_TIME_BEGINS]]


class _Due:
    """Timers of a clock that are due by `horizon`, the last time that it is known to reach (ms).

    None are stored up to `fired_until`; if that is None, nothing is known.
    """

    __slots__ = ("fired_until", "horizon", "in_order", "turns")

    def __init__(self, fired_until: int | None) -> None:
        self.fired_until = fired_until
        self.horizon: int | None = None
        self.in_order: list[Timer] = []
        self.turns: dict[bytes, list[Turn]] = {}

    def add(self, timer: Timer) -> None:
        heapq.heappush(self.in_order, timer)
        turns = self.turns.get(timer.key_json)
        if turns is None:  # most keys have one timer that is due
            self.turns[timer.key_json] = [turn(timer)]
        else:
            heapq.heappush(turns, turn(timer))

    def drop_others(self, live: AbstractSet[Timer]) -> None:
        """Drop timers that do not live any more, where they are many. Each of them would be dropped when its turn comes."""
        if len(self.in_order) > 2 * len(live):
            self.in_order[:] = filter(live.__contains__, self.in_order)
            heapq.heapify(self.in_order)


@dataclass(frozen=True, slots=True)
class TimerStatistics:
    """Timers of a task at one time, those of user code and the engine's own."""

    due: int
    """Timers due within the slice that have neither fired nor been deleted."""
    changed: int
    """Timers that the task registered, deleted or fired."""
    fired: int
    """Timers fired so far, without the engine's own."""


class TimerService:
    """Timers of all keys of a task. Registering and reading are synchronous, as in the FLIP."""

    def __init__(
        self,
        backend: StateBackend,
        last_watermark: int | None,
        processing_time: int | None = None,
        *,
        fired_until: Mapping[str, int] | None = None,
    ) -> None:
        """Load the timers that are due.

        `last_watermark` is the last one of the slice or before it, `processing_time` that of the micro-batch (ms), by
        default the clock's. `fired_until` is the last task's `fired_until()`: timers up to these times are not searched
        again.
        """
        known = fired_until or {}
        self._backend = backend
        self._changed: dict[Timer, bool] = {}
        self._due = {clock_: _Due(known.get(clock_)) for clock_ in TimeDomain}
        self._due_of = {domain.name: self._due[domain.clock] for domain in DOMAINS.values()}
        self._found: set[Timer] = set()
        """Timers that the backend has, among those that are due within the slice."""
        self._unread: set[Timer] = set()
        """Timers that the backend does not have, and that the task has registered."""
        self.live: set[Timer] = set()
        """Timers of all domains that are due within the slice, and have neither fired nor been deleted."""
        self.fired = 0
        """Number of timers taken, without the engine's own."""
        self.processing_time = clock.now() if processing_time is None else processing_time
        if last_watermark is not None:
            self.extend(last_watermark)
        self.extend(self.processing_time, PROCESSING_TIME)

    def extend(self, horizon: int, clock: TimeDomain = EVENT_TIME) -> None:
        """Advance the last watermark, or processing time, where it was not known at the start."""
        due = self._due[clock]
        if due.horizon is not None and horizon <= due.horizon:
            return
        passed, due.horizon = due.fired_until if due.horizon is None else due.horizon, horizon
        if clock is PROCESSING_TIME:
            self.processing_time = horizon
        changed = self._changed
        for domain in _OF_CLOCK[clock]:
            stored = list(self._stored(domain.name, passed, horizon))
            self._found.update(stored)
            self._make_due(timer for timer in stored if timer not in changed)
        self._make_due(
            timer
            for timer, live in changed.items()
            if live and timer.timestamp <= horizon and self._due_of[timer.domain] is due
        )

    def register(self, timer: Timer) -> None:
        """Register a timer; registering it again has no effect."""
        self._changed[timer] = True
        due = self._due_of[timer.domain]
        if due.horizon is not None and timer.timestamp <= due.horizon and timer not in self.live:
            self.live.add(timer)
            due.add(timer)

    def register_unread(self, timers: Iterable[Timer]) -> None:
        """Register timers that are not due within the slice, and that the backend does not have: it is not asked for them."""
        timers = [*timers]
        self._changed.update(dict.fromkeys(timers, True))
        self._unread.update(timers)

    def delete(self, timer: Timer) -> None:
        """Delete a timer; do nothing if there is none."""
        self._changed[timer] = False
        self.live.discard(timer)

    def turns_of(self, clock: TimeDomain) -> Mapping[bytes, Sequence[Turn]]:
        """Return, always as the same object, the keys with timers that are due within the slice, each with a heap of their turns.

        Turns of timers that were deleted meanwhile may be among them.
        """
        return self._due[clock].turns

    def take_due(self, key_json: bytes, now: int, clock: TimeDomain = EVENT_TIME) -> Timer | None:
        """Take the key's earliest timer of the clock, if it is due at `now`, a watermark or processing time (ms)."""
        due = self._due[clock]
        turns = due.turns.get(key_json)
        while turns:
            timestamp, _, domain, namespace = turns[0]
            if timestamp > now:
                return None
            heapq.heappop(turns)
            if not turns:
                del due.turns[key_json]
            timer = Timer(timestamp, key_json, domain, namespace)
            if self.take(timer):
                return timer
        return None

    def take_all_due(self, key_json: bytes, now: int) -> list[Timer]:
        """Take the key's next timers of event time without a namespace that are due at `now` (ms), up to the first other one."""
        turns = self._due[EVENT_TIME].turns.get(key_json)
        taken = []
        while turns and turns[0][0] <= now and turns[0][2:] == _USERS:
            timer = Timer(turns[0][0], key_json)
            heapq.heappop(turns)
            if self.take(timer):
                taken.append(timer)
        if turns is not None and not turns:
            del self._due[EVENT_TIME].turns[key_json]
        return taken

    def keys_due(self, now: int, clock: TimeDomain = EVENT_TIME) -> Iterator[bytes]:
        """Yield the keys with a timer of the clock that is due at `now`, by the time of their first one.

        Called once per watermark or processing time. Timers may be taken and registered meanwhile, but the caller must
        take the timers of each key that it gets.
        """
        timers = self._due[clock].in_order
        while timers and timers[0].timestamp <= now:
            timer = heapq.heappop(timers)
            if timer in self.live:
                yield timer.key_json

    def first_due(self, now: int) -> int | None:
        """Return the time of the earliest timer of event time, or of one that was deleted, if it is due at `now` (ms)."""
        timers = self._due[EVENT_TIME].in_order
        return timers[0].timestamp if timers and timers[0].timestamp <= now else None

    def take(self, timer: Timer) -> bool:
        """Take one timer to fire it now; return whether it still existed."""
        if timer not in self.live:
            return False
        self.live.discard(timer)
        self._changed[timer] = False
        self.fired += timer.domain not in _INTERNAL
        return True

    def due_for_users(self) -> list[Timer]:
        """Return the live timers of event time without a namespace that are due within the slice, in no particular order."""
        return [timer for timer in self.live if timer[2:] == _USERS]

    def take_together(self, timers: Iterable[Timer], unregistered: int) -> None:
        """Take live timers, and count others, which fire without having been registered."""
        taken = {*timers}
        self.live -= taken
        self._changed.update(dict.fromkeys(taken, False))
        self.fired += sum(timer.domain not in _INTERNAL for timer in taken) + unregistered
        for due in self._due.values():
            due.drop_others(self.live)

    def fired_until(self) -> dict[str, int]:
        """Return, by clock, the access (ms) up to which no timer is registered any more: the next task need not search for any.

        This access is the horizon, or lies just before the earliest timer that has not fired. Clocks without a horizon are left out.
        """
        until = {clock_: due.horizon for clock_, due in self._due.items() if due.horizon is not None}
        for timer in self.live:
            clock_ = DOMAINS[timer.domain].clock
            until[clock_] = min(until[clock_], timer.timestamp - 1)
        return {str(clock_): access for clock_, access in until.items()}

    def statistics(self) -> TimerStatistics:
        """Return the statistics of the timers."""
        return TimerStatistics(due=len(self.live), changed=len(self._changed), fired=self.fired)

    def changes(self) -> list[TimerChange]:
        """Return the differences from the backend; a timer that was registered and removed leaves no trace."""
        # Most timers are due within the slice, where all stored ones are known.
        unknown = [timer for timer in self._changed if timer not in self._unread and not self._is_due(timer)]
        entries = self._backend.get_many([timer_entry(timer) for timer in unknown])
        stored = self._found.union(timer for timer, entry in zip(unknown, entries, strict=True) if entry is not None)
        return [
            _make_change((timer, registered))
            for timer, registered in self._changed.items()
            if registered is (timer not in stored)
        ]

    def _is_due(self, timer: Timer) -> bool:
        """Return whether a timer is due within the slice."""
        horizon = self._due_of[timer.domain].horizon
        return horizon is not None and timer.timestamp <= horizon

    def writes(self, changes: Sequence[TimerChange]) -> Iterator[Write]:
        """Return `changes` as writes to the backend."""
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
