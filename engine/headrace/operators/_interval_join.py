"""The interval join: pairs of records that are near each other in event time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import msgspec

from headrace.api import Context, KeyedCoProcessFunction, ListState, Struct
from headrace.api.operator_function import OperatorFunction
from headrace.operators._lengths import shown_length

In1 = TypeVar("In1", bound=Struct)
In2 = TypeVar("In2", bound=Struct)
Out = TypeVar("Out", bound=Struct)

LATE_LEFT, LATE_RIGHT = "late_left", "late_right"

_SLICES = 4
"""How many slices an interval has: with more of them state is freed sooner, and each record reads more of them."""


class _Kept(Struct, frozen=True):
    """A record of one side, with its event time (ms). The class of a join adds the `record`."""

    at: int


class _Side(Struct, frozen=True):
    """One side of a join. A record of it at `t` matches those of the other side from `t + low` to `t + high` (ms)."""

    number: int
    low: int
    high: int
    late: str
    """The side output of records that come too late."""
    type: Any
    """The class that its records are stored as."""

    @property
    def name(self) -> str:
        """The beginning of the namespaces of its timers."""
        return "right" if self.number else "left"


class IntervalJoin(KeyedCoProcessFunction[In1, In2, Out], OperatorFunction):
    """Joins records whose times lie in an interval of each other, as Flink's `IntervalJoinOperator` does.

    A side is cut into slices of event time, each a quarter of the interval. A slice is a list in the namespace of its start (ms), so a
    record reads six lists of the other side at most, however many records there are. An event-time timer frees a slice when no
    record of the other side can match it any more.
    """

    KIND = "join"
    TAKER = "join"

    left: ListState[Any]
    right: ListState[Any]

    def __init__(self, emit: Callable[..., Any], low: int, high: int, types: tuple[type, type]) -> None:
        """`low` and `high` are in ms; `types` are the classes that records of both sides are stored as."""
        self._emit = emit
        self._bounds = (low, high)
        self._length = max(-(-(high - low) // _SLICES), 1)
        self._sides = (_Side(0, low, high, LATE_LEFT, types[0]), _Side(1, -high, -low, LATE_RIGHT, types[1]))
        self.retracts = False

    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Join a left record with the right ones that are there, and keep it for those that are still to come."""
        await self._process(record, ctx, *self._sides)

    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Join a right record with the left ones that are there, and keep it for those that are still to come."""
        await self._process(record, ctx, *reversed(self._sides))

    async def _process(self, record: Struct, ctx: Context, side: _Side, other: _Side) -> None:
        if ctx.row_kind.is_retraction:
            msg = (
                f"an interval join cannot take a record back, and this one is {ctx.row_kind.symbol}: use a regular join"
            )
            raise ValueError(msg)
        at = ctx.timestamp
        if at <= ctx.watermark:
            if side.late in self.declared:
                ctx.output(side.late, record)
            return
        first, last = at + side.low, at + side.high
        starts = range(self._slice_of(first), last + 1, self._length)
        reads = [self._slice(other, start).get() for start in starts]
        for read in reads:
            for kept in await read:
                if first <= kept.at <= last:
                    pair = (kept.record, record) if side.number else (record, kept.record)
                    ctx.collect(self._emit(*pair), timestamp=max(at, kept.at))
        if last > ctx.watermark:
            start = self._slice_of(at)
            await self._slice(side, start).add(side.type(at=at, record=record))
            ctx.timers.register_event_time(start + self._length - 1 + side.high, f"{side.name} {start}")

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Free a slice."""
        del timestamp
        name, _, start = ctx.namespace.partition(" ")
        await self._slice(next(side for side in self._sides if side.name == name), int(start)).clear()

    def _slice_of(self, at: int) -> int:
        """Return the start of the slice of a moment (ms): before 1970, too."""
        return at - at % self._length

    def _slice(self, side: _Side, start: int) -> ListState[Any]:
        return (self.right if side.number else self.left).namespace(str(start))

    def described(self) -> dict[str, Any]:
        """Return the kind of join, how long each side is kept, and when state is freed."""
        kept_for = [timedelta(milliseconds=max(side.high + self._length, 0)) for side in self._sides]
        return {
            "join": f"interval, {' to '.join(map(_signed, self._bounds))}",
            "late_records": f"of side outputs {', '.join(sorted(self.declared))} go there, others are dropped"
            if self.declared
            else "are dropped",
            "left_kept_for": kept_for[0],
            "right_kept_for": kept_for[1],
            "state_kept": f"a row for each record, a timer for each key, side and {shown_length(self._length)} of event time",
            "state_freed": "when the watermark has passed a record by that long at most",
        }


def _signed(milliseconds: int) -> str:
    if milliseconds == 0:
        return "0"
    return ("-" if milliseconds < 0 else "") + shown_length(abs(milliseconds))


def _named(milliseconds: int) -> str:
    """Return a bound as a part of a state's name."""
    return ("before_" if milliseconds < 0 else "") + shown_length(abs(milliseconds))


def _kept(record: type[Struct]) -> type[Struct]:
    """Return the class that records of a side are stored as."""
    return msgspec.defstruct(f"Near{record.__name__}", [("record", record)], bases=(_Kept,), frozen=True)


def interval_join(
    sides: tuple[type[In1], type[In2]], gives: type[Out], /, *, emit: Callable[..., Out], low: int, high: int
) -> KeyedCoProcessFunction[In1, In2, Out]:
    """Return the function that joins records of both `sides` into `gives`, where `right.time - left.time` is from `low` to `high` (ms)."""
    takes1, takes2 = sides
    types = (_kept(takes1), _kept(takes2))
    # The names say how long the slices are: with another interval, what is stored would not be found.
    within = f"{_named(low)}_to_{_named(high)}"

    class Join(IntervalJoin[takes1, takes2, gives]):  # type: ignore[valid-type]  # known when it is called
        left = ListState(f"left_{within}", types[0])
        right = ListState(f"right_{within}", types[1])

        def side_types(self) -> dict[str, type[Struct]]:
            """Return the side outputs of records that come too late."""
            return {LATE_LEFT: takes1, LATE_RIGHT: takes2}

    return Join(emit, low, high, types)
