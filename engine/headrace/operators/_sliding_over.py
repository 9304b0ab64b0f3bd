"""Sums over a sliding range of event time, and the choice of a function for `Stream.over`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headrace.api.functions import Context
from headrace.api.options import OverOptions
from headrace.api.records import Struct
from headrace.api.states import ListState, MapState, ValueState
from headrace.operators._accumulators import (
    Change,
    CountAccumulator,
    DecimalSum,
    DistinctAccumulator,
    SumAccumulator,
)
from headrace.operators._event_time import shown_length
from headrace.operators._frames import Frame, LastRows, Unbounded, Within
from headrace.operators._over import OverFunction, Passed, order_of, time_text
from headrace.operators._over_record import OverRecord, Row
from headrace.operators._result_record import AggregatedField
from headrace.operators._value_types import value_type

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class SlidingOver(OverFunction[In, Out]):
    """Adds rows that enter the range to `frame`, and removes rows that leave it: a row costs the same, however many are in the range.

    Its aggregates are the same whether rows were removed or never added; so sums of floats are not among them.
    """

    frame: ValueState[Any]

    async def _append(self, at: int, new: Sequence[Row], ctx: Context) -> None:
        rows = sorted(new, key=order_of)
        part = self._record.add_rows(await self.frame.value() or await self._folded(), rows)
        for place in range(len(rows)):
            ctx.collect(self._record.result_of(rows, place, number=0, part=part, key=ctx.key))
        await self.frame.update(part)
        await self.rows.put(time_text(at), list(self._stored(rows)))

    async def _folded(self) -> Any:
        """Return the aggregates of all rows in the range: mostly there are none."""
        part = self._record.create()
        async for rows in self.rows.values():
            part = self._record.add_rows(part, rows)
        return part

    async def _settle(self, at: int) -> None:
        rows = await self.rows.get(time_text(at))
        if rows is None:
            return
        await self.rows.remove(time_text(at))
        part = self._without(rows, await self.frame.value())
        await (self.frame.clear() if part is None else self.frame.update(part))

    def _without(self, rows: Sequence[Row], part: Any) -> Any:
        """Return the aggregates without rows; None if no rows are left, or if the rest exceeds 64 bits, which no row may ever see."""
        try:
            for row in rows if part is not None else ():
                part = self._record.add(Change(row.record, row.at, -1), part)
        except OverflowError:
            return None
        return part if part is not None and part.rows else None

    def _state_kept(self) -> str:
        return f"{super()._state_kept()}; a row for each key with the aggregates of its range"


def over(takes: type[In], gives: type[Out], options: OverOptions) -> OverFunction[In, Out]:
    """Return the function of `Stream.over`. Raises the errors of `OverRecord`, and those of `sort_text` for `order_by`."""
    record, frame = OverRecord(takes, gives, options.key), _frame(options)
    row: Any = msgspec.defstruct(
        f"Row{takes.__name__}",
        [("at", int), ("order", str), ("record", takes), ("result", gives | None, None), ("emitted", bool, False)],
        bases=(Row,),
        frozen=True,
        omit_defaults=True,
    )
    of_key: Any = msgspec.defstruct(
        f"Passed{takes.__name__}",
        [("number", int), ("rows", list[row]), ("frame", record.slice if frame.is_unbounded else None)],
        bases=(Passed,),
    )

    # The names contain the length of a range: rows that entered one of another length would leave this one at the wrong time.
    within = f"_within_{shown_length(frame.reach)}" if frame.reach else ""

    class Over(OverFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        waiting = ListState("waiting", row)
        rows = MapState(f"rows{within}", str, list[row])
        passed = ValueState("passed", of_key, ttl=options.ttl)
        latest = ValueState("latest", of_key)

    function = Over(record, frame, (row, of_key), options)
    if not frame.reach or options.keep or function.keeps_keys or not all(map(_gives_back(takes), record.fields)):
        return function

    class Sliding(SlidingOver[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        waiting = ListState("waiting", row)
        rows = MapState(f"rows{within}", str, list[row])
        frame = ValueState(f"frame{within}", record.slice)

    return Sliding(record, frame, (row, of_key), options)


def _frame(options: OverOptions) -> Frame:
    if options.rows is not None:
        return LastRows(options.rows)
    return Unbounded() if options.within is None else Within(options.within)


def _gives_back(takes: type[Struct]) -> Any:
    """Return a function that tells whether a field's aggregate is exactly the same after a value was added and removed."""

    def gives_back(field: AggregatedField) -> bool:
        if isinstance(field.accumulator, SumAccumulator):
            return value_type(takes, field.value).type is int
        return isinstance(field.accumulator, CountAccumulator | DistinctAccumulator | DecimalSum)

    return gives_back
