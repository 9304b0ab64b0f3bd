"""Expiry of entries of a state (FLIP-25), and the TTL history of a job.

Expiry is arithmetic on integers, without entries and backends. A lifetime is measured on a clock that stops during the
gaps that prolong it. An entry is expired when the clock has reached `expires_at`:

    ttl 10, gap 20-50             15      20------50     55
    stamp 15, without the gap     |------------------->  expires at 25
    stamp 15, prolonged           |-- 5 --|      |- 5 -| expires at 55

A pause is measured in processing time, and is known when it is over. Where event time ran ahead of the wall clock, the
watermark has already passed expiries in what turns out to be the pause, and reads and sweeps have removed expired
entries. Expired entries stay expired: for a state that expires by the watermark, a gap begins no earlier than the
watermark at which the job stopped.

    the same, watermark 30        15      20   30----50
    stamp 15                      |------------->           expired at 25, before the gap begins
    stamp 22                           |--- 8 ---|    |- 2 -| expires at 52

The TTL history has the pauses of the job and the declarations of its states. With it, every task, attempt and tool
computes the same lifetime of an entry: none of them reads a clock of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import accumulate
from typing import Literal, NamedTuple, Protocol

import msgspec

from headrace.api.ttl import OnGap, StateTtl, TtlTime, UpdateType, Visibility

TimeRange = tuple[int, int]
"""Start and end (ms), the end not included."""


class Gap(NamedTuple):
    """Pause of the job: from the last checkpoint before it to the first micro-batch after it (ms, processing time)."""

    start: int
    end: int
    watermark: int | None = None
    """Watermark at which the job stopped (ms). None if there was none yet."""
    by_operator: Mapping[str, int | None] = {}
    """Watermarks by operator, where operators stopped at several ones, since their sources never meet."""

    @classmethod
    def at(cls, start: int, end: int, watermarks: Mapping[str, int | None]) -> Gap:
        """Return a pause at which operators had these watermarks."""
        if len({*watermarks.values()}) > 1:
            return cls(start, end, None, watermarks)
        return cls(start, end, next(iter(watermarks.values()), None))

    def of(self, operator: str) -> Gap:
        """Return the pause as it applies to an operator."""
        return Gap(self.start, self.end, self.by_operator.get(operator, self.watermark))

    @property
    def of_event_time(self) -> TimeRange:
        """Return the part that no watermark had passed when the job stopped. Empty (its end not after its start) if all was passed."""
        return (self.start if self.watermark is None else max(self.start, self.watermark), self.end)


class CountedTime:
    """Clock that stops during gaps, and so reads how much time has counted.

        time      15      20------50     55
        reading   15      20======20     25

    Lifetimes are measured on it. Its reading never goes back; where it stands still, one reading belongs to many times.
    """

    __slots__ = ("_before", "_readings", "_starts", "stops")

    def __init__(self, gaps: Sequence[TimeRange]) -> None:
        """Take the gaps in order, without overlap."""
        self._starts = [start for start, _ in gaps]
        lengths = [end - start for start, end in gaps]
        self._before = [0, *accumulate(lengths)]
        """Length of the gaps before each gap, and of all gaps."""
        self._readings = [start - before for start, before in zip(self._starts, self._before, strict=False)]
        self.stops = list(zip(self._readings, lengths, strict=True))
        """Reading at which the clock stops, and for how long, for each gap."""

    def at(self, time: int) -> int:
        """Return the reading at a time."""
        begun = bisect_right(self._starts, time)
        return max(self._readings[begun - 1], time - self._before[begun]) if begun else time

    def first(self, reading: int) -> int:
        """Return the first time at which the clock shows `reading`."""
        return reading + self._before[bisect_left(self._readings, reading)]

    def last(self, reading: int) -> int:
        """Return the last time at which the clock shows `reading`."""
        return reading + self._before[bisect_right(self._readings, reading)]


class AccessTimes(Protocol):
    """Times of an access to an entry (ms): the context of a record or timer."""

    @property
    def timestamp(self) -> int:
        """Return the record's event time."""
        ...

    @property
    def watermark(self) -> int:
        """Return the last watermark before it, or the one that fires it."""
        ...

    @property
    def expired_until(self) -> int:
        """Return the time up to which the watermark has expired entries: the watermark, or in a timer right before it."""
        ...

    @property
    def processing_time(self) -> int:
        """Return the processing time of the micro-batch."""
        ...


class LiveTtl:
    """TTL of one state in one task.

    An entry's `own_ttl_ms` is its lifetime from a call with a TTL; 0 stands for the state's.
    """

    __slots__ = (
        "_is_even",
        "by_watermark",
        "counted",
        "gaps",
        "in_event_time",
        "milliseconds",
        "renews_on_read",
        "renews_on_write",
        "returns_expired",
        "since",
    )

    def __init__(self, ttl: StateTtl, gaps: Sequence[Gap] = (), since: int | None = None) -> None:
        """Take the parts of the TTL; callers use `of`."""
        self.milliseconds = ttl.milliseconds
        self.renews_on_read = ttl.update is UpdateType.ON_READ_AND_WRITE
        """True: a read renews an entry, unless its stamp is younger."""
        self.renews_on_write = ttl.update is not UpdateType.ON_CREATE
        """True: a write renews a live entry."""
        # With exact cleanup, expired entries are already removed.
        self.returns_expired = ttl.visibility is Visibility.RETURN_IF_NOT_CLEANED_UP and not ttl.cleanup.exact
        """True: an expired entry is visible while it is stored."""
        self.in_event_time = ttl.time is TtlTime.EVENT
        """True: entries are stamped in event time, not in processing time."""
        self.by_watermark = ttl.expires_by_watermark
        """True: the clock is the watermark, not processing time."""
        self.gaps = _counted(gaps, ttl)
        """Time ranges of this state's clock that prolong lifetimes, in order, without overlap."""
        self.counted = CountedTime(self.gaps)
        """Clock that measures lifetimes."""
        self.since = since
        """No lifetime begins before this (ms)."""
        self._is_even = not self.gaps and since is None
        """True: each entry lives as long as its TTL says."""

    @classmethod
    def of(cls, ttl: StateTtl | None, gaps: Sequence[Gap] = (), since: int | None = None) -> LiveTtl | None:
        """Return the logic for a declared TTL; None where nothing expires.

        `gaps` are the job's pauses, oldest first, without overlap. `since` is the access (ms, of the clock that stamps
        entries) at which TTL was switched on for a state that had entries already: no lifetime begins before it.
        """
        return None if ttl is None or not ttl.is_active else cls(ttl, gaps, since)

    def stamp(self, access: AccessTimes) -> int:
        """Return the stamp of an entry that is created or renewed now."""
        return access.timestamp if self.in_event_time else access.processing_time

    def clock(self, access: AccessTimes) -> int:
        """Return the clock that expires entries. Outside of timers an entry is expired when it has reached `expires_at`."""
        return access.watermark if self.by_watermark else access.processing_time

    def is_dead(self, access: AccessTimes, stamp: int, own_ttl_ms: int = 0) -> bool:
        """Return whether an entry is expired."""
        clock = access.expired_until if self.by_watermark else access.processing_time
        return self.is_dead_at(clock, stamp, own_ttl_ms)

    def is_dead_at(self, clock: int, stamp: int, own_ttl_ms: int = 0) -> bool:
        """Return whether an entry is expired when the clock shows `clock` (ms)."""
        # Gaps, and a TTL that was switched on late, only ever prolong a lifetime.
        return stamp + (own_ttl_ms or self.milliseconds) <= clock and (
            self._is_even or self.expires_at(stamp, own_ttl_ms) <= clock
        )

    def expires_at(self, stamp: int, own_ttl_ms: int = 0) -> int:
        """Return when the entry expires (ms), as far as gaps are known."""
        if self.since is not None and stamp < self.since:
            stamp = self.since
        ttl = own_ttl_ms or self.milliseconds
        return self.counted.first(self.counted.at(stamp) + ttl) if self.gaps else stamp + ttl

    def dead_until(self, clock: int, own_ttl_ms: int = 0) -> int | None:
        """Return the youngest expired stamp when the clock shows `clock` (ms), of entries with this lifetime; None without one."""
        ttl = own_ttl_ms or self.milliseconds
        youngest = self.counted.last(self.counted.at(clock) - ttl) if self.gaps else clock - ttl
        return None if self.since is not None and youngest < self.since else youngest

    def age(self, clock: int) -> Age:
        """Return which entries are expired when the clock shows `clock` (ms)."""
        youngest = self.dead_until(clock)
        return Age(self, clock, float("-inf") if youngest is None else youngest)

    def remaining(self, access: AccessTimes, stamp: int, own_ttl_ms: int = 0) -> int:
        """Return how long the entry still lives (ms), 0 when it is expired."""
        return max(0, self.expires_at(stamp, own_ttl_ms) - self.clock(access))


def _counted(gaps: Sequence[Gap], ttl: StateTtl) -> list[TimeRange]:
    if ttl.on_gap is not OnGap.PROLONG or ttl.gap_threshold is None:
        return []
    longest = ttl.gap_threshold // timedelta(milliseconds=1)
    pauses = [gap for gap in gaps if gap.end - gap.start > longest]
    if not ttl.expires_by_watermark:
        return [(gap.start, gap.end) for gap in pauses]
    return [(start, end) for start, end in (gap.of_event_time for gap in pauses) if start < end]


class Age(NamedTuple):
    """Expiry at one timestamp, for many entries at once.

    `youngest` is the youngest expired stamp of entries without their own lifetime.
    """

    live: LiveTtl
    clock: int
    youngest: float

    def is_dead(self, stamp: int, own_ttl_ms: int) -> bool:
        """Return whether an entry is expired."""
        return self.live.is_dead_at(self.clock, stamp, own_ttl_ms) if own_ttl_ms else stamp <= self.youngest


@dataclass(frozen=True, slots=True)
class EntryLifetimes:
    """Data of a job at the beginning of a micro-batch on which lifetimes of entries depend."""

    gaps: Sequence[Gap] = ()
    since: Mapping[str, int] = field(default_factory=dict)
    """By state, when TTL was switched on (ms), as in `LiveTtl.of`."""

    def of(self, ttl: StateTtl | None, state: str) -> LiveTtl | None:
        """Return the logic for a state's TTL; None where nothing expires."""
        return LiveTtl.of(ttl, self.gaps, self.since.get(state))


NO_HISTORY = EntryLifetimes()
"""A job that was never paused, and whose states have always had their TTLs."""


DeclaredTtls = Mapping[str, StateTtl | None]
"""TTL of every declared state, by `operator.state`."""

TimeOf = Callable[[str], int | None]
"""Function from an operator's name to an event time (ms), such as the last watermark seen by any task of its timeline."""

_MILLISECOND = timedelta(milliseconds=1)


class StoredTtl(msgspec.Struct, frozen=True, omit_defaults=True):
    """Everything that decides whether an entry is alive, as a checkpoint records it."""

    ttl_ms: int
    stamped_by: Literal["event", "processing"]
    expires_by: Literal["watermark", "processing"]
    gap_over_ms: int | None = None
    """Pauses of the job that are longer prolong lifetimes; None: no pause does."""

    @classmethod
    def of(cls, ttl: StateTtl | None) -> StoredTtl | None:
        """Return a declared TTL as it is recorded; None where nothing expires."""
        if ttl is None or not ttl.is_active:
            return None
        return cls(
            ttl.ttl // _MILLISECOND,
            "event" if ttl.time is TtlTime.EVENT else "processing",
            "watermark" if ttl.expires_by_watermark else "processing",
            None if ttl.gap_threshold is None else ttl.gap_threshold // _MILLISECOND,
        )

    def __str__(self) -> str:
        """Return a text for people."""
        gap = "" if self.gap_over_ms is None else f", prolonged by gaps over {timedelta(milliseconds=self.gap_over_ms)}"
        clock = "watermark" if self.expires_by == "watermark" else "processing time"
        return f"{timedelta(milliseconds=self.ttl_ms)} from {self.stamped_by} time by {clock}{gap}"


def _unknown(_: str) -> None:
    return None


class TtlHistory(msgspec.Struct, frozen=True):
    """TTL history at the beginning of a micro-batch.

    `gaps` are the pauses long enough for some state's declared threshold, oldest first. `declared` is each state's TTL (None: off) by
    `operator.state`, `since` when it was switched on, for a state that had no TTL before, or was stamped by the other
    clock (ms, of the clock that expires its entries now).
    """

    gaps: tuple[Gap, ...] = ()
    declared: dict[str, StoredTtl | None] = {}
    since: dict[str, int] = {}

    def lifetimes(self, operator: str) -> EntryLifetimes:
        """Return the data on lifetimes for one operator's states."""
        beginning = f"{operator}."
        own = {name.removeprefix(beginning): at for name, at in self.since.items() if name.startswith(beginning)}
        return EntryLifetimes(tuple(gap.of(operator) for gap in self.gaps), own)

    def advanced(
        self,
        declared: DeclaredTtls,
        *,
        paused_since: int | None,
        watermark_of: TimeOf,
        processing_time: int,
        latest_event_of: TimeOf = _unknown,
    ) -> TtlHistory:
        """Return the history for a micro-batch at `processing_time`: this one, its own gap, and the current declarations.

        `paused_since` is when the last micro-batch was committed, None without one; `watermark_of` returns its
        watermark. `latest_event_of` returns the latest event time that an operator's timeline had processed by then, where
        there was no watermark.
        """
        gaps = self.gaps
        if paused_since is not None and processing_time - paused_since > _shortest_gap(declared):
            watermarks = {name.partition(".")[0]: watermark_of(name.partition(".")[0]) for name in declared}
            gaps = (*gaps, Gap.at(paused_since, processing_time, watermarks))

        def event_time_of(operator: str) -> int | None:
            watermark = watermark_of(operator)
            return latest_event_of(operator) if watermark is None else watermark

        return TtlHistory(gaps, _stored(declared), self._switched_on(declared, event_time_of, processing_time))

    def changed(self, declared: DeclaredTtls) -> set[str]:
        """Return the operators with a state whose TTL changed. Their local copies may lack entries that are alive now."""
        now = _stored(declared)
        return {name.partition(".")[0] for name, before in self.declared.items() if now.get(name, before) != before}

    def _switched_on(self, declared: DeclaredTtls, event_time_of: TimeOf, processing_time: int) -> dict[str, int]:
        since: dict[str, int] = {}
        for name, ttl in declared.items():
            if ttl is None or not ttl.is_active:
                continue
            # By the clock that expires entries: by processing time, entries of last year's event time would all expire at once.
            now = event_time_of(name.partition(".")[0]) if ttl.expires_by_watermark else processing_time
            access = self._began(name, ttl, now)
            if access is not None:
                since[name] = access
        return since

    def _began(self, name: str, ttl: StateTtl, now: int | None) -> int | None:
        """Return from when a state's TTL counts, None for a state that always had it; `now` is the time of its clock."""
        known = self.since.get(name)
        if name not in self.declared or now is None:
            return known
        before, stored = self.declared[name], StoredTtl.of(ttl)
        if before is None or stored is None or before.stamped_by != stored.stamped_by:
            return now
        return known if known is None or before.expires_by == stored.expires_by else now


def _shortest_gap(declared: DeclaredTtls) -> float:
    """Return the length (ms) from which a pause counts for some state; infinite if it counts for none."""
    thresholds = (
        ttl.gap_threshold // _MILLISECOND
        for ttl in declared.values()
        if ttl is not None and ttl.is_active and ttl.on_gap is OnGap.PROLONG and ttl.gap_threshold is not None
    )
    return min(thresholds, default=float("inf"))


def _stored(declared: DeclaredTtls) -> dict[str, StoredTtl | None]:
    """Return the declared TTLs as checkpoints record them."""
    return {name: StoredTtl.of(ttl) for name, ttl in declared.items()}
