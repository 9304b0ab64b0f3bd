"""Sums over a sliding range of event time, and the choice of a function for `Stream.over`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from headrace.api.functions import Context
from headrace.api.key_events import KeyEvents
from headrace.api.options import OverOptions
from headrace.api.records import RowKind, Struct
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
from headrace.operators._over import OverFunction
from headrace.operators._over_events import KeyRows, OverStates, Plan, Reader, rows_of, settled_rows
from headrace.operators._over_record import OverRecord, Row
from headrace.operators._over_rows import EmittedRow, Passed, order_of, time_text
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
        await self.rows.put(time_text(at), rows)

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
            return _without(self._record, rows, part)
        except OverflowError:
            return None

    @property
    def _of_key_name(self) -> str:
        return self.frame.name

    def _reader(self) -> Reader:
        return self._read

    def _read(self, plans: Sequence[Plan], states: OverStates, events: KeyEvents) -> dict[bytes, KeyRows]:
        parts = states.values.values_of([plan.key for plan in plans])
        rows = settled_rows(plans, states)
        unknown = [plan for plan, part in zip(plans, parts, strict=True) if part is None and plan.has_rows]
        folded = {key for key, stored in rows_of(unknown, states).items() if stored}
        return {
            plan.key: SlidingRows(plan.key, rows[plan.key], part, self._record, events.key_of(plan.key))
            for plan, part in zip(plans, parts, strict=True)
            if plan.key not in folded
        }

    def _state_kept(self) -> str:
        return f"{super()._state_kept()}; a row for each key with the aggregates of its range"


class SlidingRows(KeyRows):
    """Rows of one key, and the aggregates of those in the range, in memory. It has only stored rows that leave the range, and new ones."""

    def __init__(self, key: bytes, rows: dict[int, list[Row]], part: Any, record: OverRecord, name: Any) -> None:
        """Take what is stored, without aggregates only where no rows are in the range. `name` is the key as `ctx.key` has it."""
        super().__init__(key, rows)
        self._part = part
        self._record = record
        self._name = name
        self._value_written: int | None = None

    def append(self, at: int, new: list[Row]) -> Sequence[EmittedRow]:
        """Put rows of one event time (ms) behind all others, and return their results."""
        record = self._record
        new.sort(key=order_of)
        part = record.add_rows(record.create() if self._part is None else self._part, new)
        self._part, self._value_written = part, at
        self.put(at, new, at)
        name = self._name
        return [
            (RowKind.INSERT, at, record.result_of(new, place, number=0, part=part, key=name))
            for place in range(len(new))
        ]

    def settle(self, at: int, now: int) -> None:
        """Take the rows of an event time out of the range, at the time of a timer (both in ms). Raises `OverflowError` if the rest exceeds 64 bits."""
        rows = self.free(at)
        if rows is not None:
            self._part, self._value_written = _without(self._record, rows, self._part), now

    def value(self) -> tuple[Any, int | None]:
        """Return the aggregates of the range, and when they were written (ms); None if they were not."""
        return self._part, self._value_written


def _without(record: OverRecord, rows: Sequence[Row], part: Any) -> Any:
    """Return the aggregates without rows; None if no rows are left. Raises `OverflowError` if the rest exceeds 64 bits."""
    for row in rows if part is not None else ():
        part = record.add(Change(row.record, row.at, -1), part)
    return part if part is not None and part.rows else None


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
