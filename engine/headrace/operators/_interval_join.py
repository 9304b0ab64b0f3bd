"""Interval join: pairs of records that are close in event time, and with an outer join, unmatched records."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from headrace.api.batches import Bundle, BundledRecord, BundleFunction
from headrace.api.functions import Context, TimeDomain
from headrace.api.graph import name_of
from headrace.api.options import JoinFunction, JoinType
from headrace.api.records import RowKind, Struct
from headrace.api.states import ListState
from headrace.operators._event_time import check_in_calendar, shown_length
from headrace.operators._processing_time import in_time, timed_name
from headrace.operators._regular_join import Condition, fits

In1 = TypeVar("In1", bound=Struct)
In2 = TypeVar("In2", bound=Struct)
Out = TypeVar("Out", bound=Struct)

LATE_LEFT, LATE_RIGHT = "late_left", "late_right"

_SLICES = 4
"""How many slices an interval has: with more of them state is freed sooner, and each record reads more of them."""

_MOST_BOUNDS = 1000
"""How many intervals' namespaces are remembered: making their texts costs as much as reading them."""


class _Kept(Struct, frozen=True):
    """A record of one side, with its event time (ms). The class of a join adds the `record`."""

    at: int


class _OuterKept(_Kept, frozen=True):
    """A record of a side whose records are in the result without a match: `matched` is true if the record has a match."""

    matched: bool


class _Side(Struct, frozen=True):
    """One side of a join. A record of this side at `t` matches records of the other side from `t + low` to `t + high` (ms)."""

    number: int
    name: str
    """Beginning of the namespaces of its timers."""
    low: int
    high: int
    late: str
    """The side output of records that come too late."""
    type: Any
    """The class that its records are stored as."""
    is_kept: bool
    """Tells that its records are in the result without a match."""


class IntervalJoin(JoinFunction[In1, In2, Out], BundleFunction):
    """Joins records whose times lie in an interval of each other, as Flink's `IntervalJoinOperator` and `TimeIntervalJoin` do.

    A side is cut into slices of event time, each a quarter of the interval. A slice is a list in the namespace of its
    start (ms), so a record reads six lists of the other side at most, however many records there are. An event-time
    timer frees a slice when no record of the other side can match it any more. For an outer side, each timestamp with
    records has a timer, too: it emits the records that no later record can match.
    """

    KIND = "join"
    TAKER = "join"

    left: ListState[Any]
    right: ListState[Any]

    def __init__(
        self,
        emit: Callable[..., Any],
        how: JoinType,
        bounds: tuple[int, int],
        types: tuple[type, type],
        on: Condition | None,
    ) -> None:
        """`bounds` are the lower and the upper one, in ms; `types` are the classes that records of both sides are stored as.

        Records match where `on` is true; None: all that are near.
        """
        self._emit = emit
        self._on = self.condition = on
        self._how = how
        self._bounds = low, high = bounds
        self._length = max(-(-(high - low) // _SLICES), 1)
        self._sides = (
            _Side(0, "left", low, high, LATE_LEFT, types[0], how.keeps_left),
            _Side(1, "right", -high, -low, LATE_RIGHT, types[1], how.keeps_right),
        )
        self._both_ways = (self._sides, self._sides[::-1])
        self.retracts = False

    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Join a left record with the stored right records, and store it for later ones."""
        await self._process(record, ctx, *self._sides)

    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Join a right record with the stored left records, and store it for later ones."""
        await self._process(record, ctx, *reversed(self._sides))

    async def _process(self, record: Struct, ctx: Context, side: _Side, other: _Side) -> None:
        _check_kind(ctx.row_kind)
        at = ctx.timestamp
        if at <= ctx.watermark:
            self.set_aside_late(record, ctx, side.late)
            return
        if side.is_kept:
            check_in_calendar(ctx.timestamp, at, _unmatched_at(at, side), what="interval")
        is_matched = await self._join(record, ctx, side, other)
        if at + side.high > ctx.watermark:
            await self._keep(record, ctx, side, is_matched=is_matched)
        elif side.is_kept and not is_matched:
            self._emit_unmatched(record, at, ctx, side)

    @property
    def takes_bundles(self) -> bool:
        """Return whether records may come in bundles: not in an outer join, where each record may change stored ones."""
        return self._how is JoinType.INNER

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Join records with those stored and those before them, with one read of each side, and store them. None is late."""
        emit, on, length, slice_of, watermark = self._emit, self._on, self._length, self._slice_of, ctx.watermark
        lists = [await self._lists_near(bundle.records, side, other) for side, other in self._both_ways]
        new_timers = set[tuple[int, int]]()
        for record in bundle.walk(bundle.records):
            if record.kind:
                _check_kind(RowKind(record.kind))
            side = self._sides[record.input]
            at, value = record.timestamp, record.record
            first, last = at + side.low, at + side.high
            near = lists[side.number]
            for start in range(slice_of(first), last + 1, length) if near else ():
                for kept in near.get(start, ()):
                    if first <= kept.at <= last and (on is None or fits(on, side.number, value, kept.record)):
                        pair = emit(kept.record, value) if side.number else emit(value, kept.record)
                        ctx.collect(pair, timestamp=max(at, kept.at))
            if last <= watermark:
                continue
            start = slice_of(at)
            kept = side.type(at=at, record=value)
            await self._slice(side, str(start)).add(kept)
            lists[1 - side.number].setdefault(start, []).append(kept)
            if (side.number, start) not in new_timers:
                new_timers.add((side.number, start))
                ctx.timers.register_event_time(self._last_of(start) + side.high, f"{side.name} {start}")

    async def _lists_near(self, records: Iterable[BundledRecord], side: _Side, other: _Side) -> dict[int, list[Any]]:
        """Return the stored lists of the other side, by start of their slices, that records of a side may match."""
        slice_of, low, high = self._slice_of, side.low, side.high
        bounds = {
            (slice_of(record.timestamp + low), slice_of(record.timestamp + high))
            for record in records
            if record.input == side.number
        }
        starts = {start for first, last in bounds for start in range(first, last + 1, self._length)}
        slices = self.right if other.number else self.left
        stored = await slices.get_namespaces(map(str, sorted(starts))) if starts else {}
        return {int(start): kept for start, kept in stored.items()}

    async def _join(self, record: Struct, ctx: Context, side: _Side, other: _Side) -> bool:
        """Emit a record with each stored record of the other side, and return whether there are any."""
        if self.has_null_key(ctx):
            return False
        at = ctx.timestamp
        first, last = at + side.low, at + side.high
        on, slices = self._on, self.right if other.number else self.left
        is_matched = False
        for start, slice_ in (await slices.get_namespaces(self._namespaces(first, last))).items():
            near = [
                kept
                for kept in slice_
                if first <= kept.at <= last and (on is None or fits(on, side.number, record, kept.record))
            ]
            for kept in near:
                pair = (kept.record, record) if side.number else (record, kept.record)
                ctx.collect(self._emit(*pair), timestamp=max(at, kept.at))
            is_matched = is_matched or bool(near)
            if other.is_kept and not all(kept.matched for kept in near):
                matching = {*map(id, near)}
                changed = [_matched(kept) if id(kept) in matching else kept for kept in slice_]
                await slices.namespace(start).update(changed)
        return is_matched

    async def _keep(self, record: Struct, ctx: Context, side: _Side, *, is_matched: bool) -> None:
        """Store a record for later records of the other side."""
        at = ctx.timestamp
        start = self._slice_of(at)
        namespace = str(start)
        timers = f"{side.name} {namespace}"
        kept = side.type(at=at, record=record, matched=is_matched) if side.is_kept else side.type(at=at, record=record)
        await self._slice(side, namespace).add(kept)
        ctx.timers.register_event_time(self._last_of(start) + side.high, timers)
        if side.is_kept and not is_matched:
            ctx.timers.register_event_time(at + side.high, timers)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the records that no later record can match, and free a slice after its last timestamp."""
        name, _, namespace = ctx.namespace.partition(" ")
        side = self._sides[name == "right"]
        start = int(namespace)
        slice_ = self._slice(side, namespace)
        if side.is_kept:
            for kept in await slice_.get():
                if kept.at + side.high == timestamp and not kept.matched:
                    self._emit_unmatched(kept.record, kept.at, ctx, side)
        if timestamp == self._last_of(start) + side.high:
            await slice_.clear()

    def _emit_unmatched(self, record: Any, at: int, ctx: Context, side: _Side) -> None:
        pair = (None, record) if side.number else (record, None)
        ctx.collect(self._emit(*pair), timestamp=_unmatched_at(at, side))

    def _slice_of(self, at: int) -> int:
        """Return the start of the slice of a timestamp (ms): before 1970, too."""
        return at - at % self._length

    def _namespaces(self, first: int, last: int) -> tuple[str, ...]:
        """Return the namespaces of the slices between two timestamps (ms): mostly those of the last record, since times advance."""
        return _namespaces_of(self._slice_of(first), self._slice_of(last), self._length)

    def _last_of(self, start: int) -> int:
        """Return the last timestamp of a slice (ms)."""
        return start + self._length - 1

    def _slice(self, side: _Side, namespace: str) -> ListState[Any]:
        return (self.right if side.number else self.left).namespace(namespace)

    def described(self) -> dict[str, Any]:
        """Return the kind of join, how long each side is kept, and when state is freed."""
        kept_for = [timedelta(milliseconds=max(side.high + self._length, 0)) for side in self._sides]
        timestamps = (
            ""
            if self._how is JoinType.INNER
            else "; a timer for each timestamp of records that are in the result alone"
        )
        return {
            "join": f"interval, {self._how.value}, {' to '.join(map(_signed, self._bounds))}",
            **({} if self._on is None else {"on": name_of(self._on)}),
            "late_records": f"of side outputs {', '.join(sorted(self.declared))} go there, others are dropped"
            if self.declared
            else "are dropped",
            "left_kept_for": kept_for[0],
            "right_kept_for": kept_for[1],
            "state_kept": "a row for each record, a timer for each key, side and "
            f"{shown_length(self._length)} of event time{timestamps}",
            "state_freed": "when the watermark has passed a record by that long at most",
        }


@lru_cache(maxsize=_MOST_BOUNDS)
def _namespaces_of(first: int, last: int, length: int) -> tuple[str, ...]:
    """Return the namespaces of the slices from one that starts at `first` to one that starts at `last` (ms)."""
    return tuple(map(str, range(first, last + 1, length)))


def _check_kind(kind: RowKind) -> None:
    if kind.is_retraction:
        msg = f"an interval join cannot take a record back, and this one is {kind.symbol}: use a regular join"
        raise ValueError(msg)


def _unmatched_at(at: int, side: _Side) -> int:
    """Return the event time at which an unmatched record is emitted (ms): when no later record can match it."""
    return max(at, at + side.high)


def _matched(kept: Any) -> Any:
    return kept if kept.matched else msgspec.structs.replace(kept, matched=True)


def _signed(milliseconds: int) -> str:
    if milliseconds == 0:
        return "0"
    return ("-" if milliseconds < 0 else "") + shown_length(abs(milliseconds))


def _named(milliseconds: int) -> str:
    """Return a bound as a part of a state's name."""
    return ("before_" if milliseconds < 0 else "") + shown_length(abs(milliseconds))


def _kept(record: type[Struct], *, is_kept: bool) -> type[Struct]:
    """Return the class that records of a side are stored as."""
    base, prefix = (_OuterKept, "Outer") if is_kept else (_Kept, "Near")
    return msgspec.defstruct(f"{prefix}{record.__name__}", [("record", record)], bases=(base,), frozen=True)


def interval_join(
    sides: tuple[type[In1], type[In2]],
    gives: type[Out],
    /,
    *,
    emit: Callable[..., Out],
    how: JoinType,
    bounds: tuple[int, int],
    on: Condition | None,
    time: TimeDomain = TimeDomain.EVENT_TIME,
) -> JoinFunction[In1, In2, Out]:
    """Return the function that joins records of both `sides` into `gives`, where `right.time - left.time` is in `bounds` (ms), and `on` is true.

    `time` says which times these are.
    """
    takes1, takes2 = sides
    types = (_kept(takes1, is_kept=how.keeps_left), _kept(takes2, is_kept=how.keeps_right))
    # The names contain the length of the slices, and the side that stores matches: with another interval, stored
    # records would not be found, and with another `how`, matched records would be emitted as unmatched.
    within = "_to_".join(map(_named, bounds))
    left_name = "left_outer" if how.keeps_left else "left"
    right_name = "right_outer" if how.keeps_right else "right"

    class Join(IntervalJoin[takes1, takes2, gives]):  # type: ignore[valid-type]  # known when it is called
        left = ListState(timed_name(f"{left_name}_{within}", time), types[0])
        right = ListState(timed_name(f"{right_name}_{within}", time), types[1])

        def side_types(self) -> dict[str, type[Struct]]:
            """Return the side outputs of late records."""
            return {LATE_LEFT: takes1, LATE_RIGHT: takes2}

    return in_time(Join, time)(emit, how, bounds, types, on)
