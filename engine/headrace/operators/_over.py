"""Aggregates over a frame of rows: one result for each row, from the rows before it.

SQL: `agg(x) OVER (PARTITION BY key ORDER BY event_time ROWS | RANGE BETWEEN ... PRECEDING AND CURRENT ROW)`; Flink:
`RowTimeRowsBoundedPrecedingFunction` and its relatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.batches import KeyedColumns
from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import OperatorFunction
from headrace.api.key_events import EventFunction, EventResults, KeyEvents
from headrace.api.options import OverOptions
from headrace.api.records import Struct
from headrace.api.states import ListState, MapState, ValueState
from headrace.names import counted
from headrace.operators._event_time import check_in_calendar, freed_by, shown_length
from headrace.operators._frames import Frame
from headrace.operators._over_events import (
    ROW,
    SETTLE,
    OverEvents,
    OverStates,
    Reader,
    columns_see,
    late_or_apart,
    passed_rows,
)
from headrace.operators._over_record import OverRecord, Row
from headrace.operators._over_rows import END, Changed, Known, OverRows, order_of, time_text
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import value_type

if TYPE_CHECKING:
    from headrace.operators._running_fields import Flags

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

WAIT = "wait "
"""Namespace of timers that wait for later rows, behind those of `_over_events` of the same time. An event time (ms) follows."""


class OverFunction(KeyedProcessFunction[In, Out], OperatorFunction, EventFunction):
    """Emits one result for each row, once the watermark reaches it.

    `waiting` holds the rows that the watermark has not reached, in the namespace of their event time (ms), with a timer
    for that time. `rows` holds passed rows by event time, as a text that sorts, for as long as a frame begins before
    them or a late row may change their results; a timer for each time then moves them to `passed`, or frees them.
    `latest` is what `passed` will be when they are all there: with it, a row in time need not read them.
    """

    KIND = "over"
    TAKER = "over"
    LATE = "late"

    waiting: ListState[Any]
    rows: MapState[str, list[Any]]
    passed: ValueState[Any]
    latest: ValueState[Any]

    def __init__(self, record: OverRecord, frame: Frame, types: tuple[Any, Any], options: OverOptions) -> None:
        """Take the result, its frame, and the types of a stored row and of `Passed`."""
        self._record = record
        self._frame = frame
        self._row = types[0]
        self._options = options
        self.logic = OverRows(record, frame, types, options.keep)
        orders = [sort_text(name, value_type(record.takes, name), descending=False) for name in options.order_by]
        self._orders = list(zip(options.order_by, orders, strict=True))
        self._keep = options.keep
        self._stay, self._lead = self.logic.stay, self.logic.lead
        self.retracts = self.logic.retracts
        # Each of the two would expire at its own time; and a range, or Lead, needs the rows themselves.
        self._has_latest = self._keep > 0 and self.keeps_keys and not (options.ttl or frame.reach or self._lead)

    def column_reads(self) -> ColumnReads:
        """Return what the results read: records, their order, and frames of time."""
        columns = {**self._record.columns, TIME: fields_read([TIME], Kind.IDENTITY)}
        order = fields_read(self._options.order_by, Kind.SORT)
        reads = ColumnReads(columns, fields_read([TIME], Kind.WINDOW) | order)
        return reads.of_changes() if self.retracts else reads

    @property
    def keeps_keys(self) -> bool:
        """Return whether something of each key is kept for as long as no lifetime ends it."""
        return self.logic.keeps_keys

    @property
    def waits_for_rows(self) -> bool:
        """Return whether a result needs rows behind its own."""
        return self._lead > 0

    async def process(self, record: In, ctx: Context, /) -> None:
        """Store a row until the watermark reaches it, or put a late one in its place. Raises `ValueError` for a retraction."""
        if ctx.row_kind.is_retraction:
            msg = f"over() cannot take a record back, and this one is {ctx.row_kind.symbol}: call additions() before it"
            raise ValueError(msg)
        at = ctx.timestamp
        is_late = at <= ctx.watermark
        if is_late and at + self._keep <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        row = self.row_of(record, at)
        if self._stay:
            ctx.timers.register_event_time(at + self._stay, f"{SETTLE}{at}")
        if self._lead:
            ctx.timers.register_event_time(self._waits_until(at), f"{WAIT}{at}")
        if is_late:
            await self._insert(at, [row], ctx)
        else:
            ctx.timers.register_event_time(at, ROW)
            await self.waiting.namespace(str(at)).add(row)

    def row_of(self, record: In, at: int) -> Row:
        """Return a record of an event time (ms) as a row. Raises `ValueError` for a time out of the calendar, and for what `order_by` cannot order."""
        check_in_calendar(at, at, at + self._stay, what="frame")
        order = "".join(text(getattr(record, name)) for name, text in self._orders)
        row: Row = self._row(at=at, order=order, record=record)
        return row

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the results of rows that the watermark reaches, free rows, or stop waiting for later rows."""
        kind, _, at = ctx.namespace.partition(" ")
        if kind == ROW:
            waiting = self.waiting.namespace(str(timestamp))
            await self._append(timestamp, await waiting.get(), ctx)
            await waiting.clear()
        elif f"{kind} " == SETTLE:
            await self._settle(int(at))
        else:
            await self._give_up(int(at), ctx)

    # ---------------------------------------------------------------------------------------------- many keys at once

    @property
    def takes_columns(self) -> bool:
        """Return whether the rows of many keys may be processed together: no row waits for later ones, and lifetimes allow it."""
        return not self._lead and columns_see(self._options.ttl, stays=self._stay > 0)

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether it has a late record, or one to take back; None if none has."""
        return late_or_apart(columns)

    def process_events(self, events: KeyEvents, /) -> EventResults:
        """Process the rows of many keys, and the timers that fire."""
        of = events.states
        latest = of[self.latest.name] if self._has_latest else None
        states = OverStates(of[self.waiting.name], of[self.rows.name], of[self._of_key_name], latest)
        return OverEvents(events, states, self.row_of, self._stay, self._reader()).results()

    @property
    def _of_key_name(self) -> str:
        """Return the name of the state with one value for each key."""
        return self.passed.name

    def _reader(self) -> Reader:
        """Return what reads the passed rows of many keys."""
        return passed_rows(self.logic, self._options.ttl)

    # ------------------------------------------------------------------------------------------------------- rows

    async def _append(self, at: int, new: Sequence[Row], ctx: Context) -> None:
        """Put rows of one event time (ms) behind all others, and emit their results."""
        latest = await self.latest.value() if self._has_latest else None
        if latest is None:
            await self._insert(at, new, ctx)
            return
        first = len(latest.rows)
        rows = [*latest.rows, *sorted(new, key=order_of)]
        changed = Changed(rows, self.logic.revised(rows, first, latest, latest.frame, ctx.key), first)
        changed.emit(ctx)
        await self.rows.put(time_text(at), changed.after[first:])
        await self.latest.update(self.logic.extended(latest, changed.after, latest.frame))

    async def _insert(self, at: int, new: Sequence[Row], ctx: Context) -> None:
        """Put rows of one event time (ms) in their places, and emit the results that change."""
        known = await self._known()
        changed, frame, before, behind = self.logic.inserted(known, at, new, ctx.key)
        changed.emit(ctx)
        if self._lead and (behind or before):
            earlier = at if behind else before[-1].at  # it is not the last row, or no more
            ctx.timers.delete_event_time(self._waits_until(earlier), f"{WAIT}{earlier}")
        if self._stay:
            await self._rewrite(changed, known.passed, at)
        elif self.keeps_keys:
            await self.passed.update(self.logic.extended(known.passed, changed.after, frame))
        if self._has_latest:
            await self.latest.update(self.logic.extended(known.passed, changed.after, frame))

    async def _give_up(self, at: int, ctx: Context) -> None:
        """Emit the last rows with the defaults of `Lead`, if a row at this event time (ms) is the last one."""
        known = await self._known()
        rows = known.before(END)
        if not rows or rows[-1].at != at:
            return
        changed = self.logic.given_up(rows)
        changed.emit(ctx)
        if self._stay or self._options.ttl is None:
            await self._rewrite(changed, known.passed)
        else:
            await self.passed.clear()  # its lifetime ends now, and a write would renew it

    def _waits_until(self, at: int) -> int:
        """Return until when a row waits for later rows (ms)."""
        ttl = self._options.ttl
        return END if ttl is None or not ttl.is_active else at + ttl.milliseconds

    # ------------------------------------------------------------------------------------------------------ state

    async def _known(self) -> Known:
        """Return what is stored of the key's passed rows."""
        stored = [rows async for rows in self.rows.values()] if self._stay else []
        return Known(await self._of_key(), {rows[0].at: rows for rows in stored})

    async def _of_key(self) -> Any:
        return self.logic.first(await self.passed.value() if self.keeps_keys else None)

    async def _rewrite(self, changed: Changed, passed: Any, *new: int) -> None:
        """Store the rows that changed, and those of event times with `new` rows (ms)."""
        last, by_time = self.logic.rewritten(changed, passed, *new)
        if last is not None:
            await self.passed.update(last)
        for time, rows in by_time.items():
            await self.rows.put(time_text(time), rows)

    async def _settle(self, at: int) -> None:
        """Move the rows of an event time (ms) to those that no later row changes, or free them."""
        rows = await self.rows.get(time_text(at))
        if rows is None:
            return
        await self.rows.remove(time_text(at))
        if self.keeps_keys:
            await self.passed.update(self.logic.settled(await self._of_key(), rows))

    # ------------------------------------------------------------------------------------------------- describing

    def unique_keys(self, fields: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique keys of the input whose fields the result copies."""
        del fields
        return tuple(key for key in taken.unique if {*key} <= {*self._record.copied})

    def side_types(self) -> dict[str, type[Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {self.LATE: self._record.takes}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        too_late = "go to side output 'late'" if self.LATE in self.declared else "are dropped"
        kept = shown_length(self._keep) if self._keep else ""
        return {
            "frame": str(self._frame),
            "order": ", ".join(["event time", *self._options.order_by, "arrival"]),
            **self._record.described(),
            "late_records": f"correct results up to {kept} behind the watermark, others {too_late}"
            if kept
            else too_late,
            "state_kept": self._state_kept(),
            "state_freed": self._state_freed(),
        }

    def _state_kept(self) -> str:
        parts = ["a row for each record that the watermark has not reached"]
        if self._stay:
            parts.append(f"a row for each event time of the last {shown_length(self._stay)}, with its records")
        if self.keeps_keys:
            sums = ", with the aggregates so far" if self._frame.is_unbounded and self._record.fields else ""
            last = f", with its last {counted(self.logic.context, 'record')}" if self.logic.context else ""
            parts.append(f"{'two rows' if self._has_latest else 'a row'} for each key{sums}{last}")
        return "; ".join(parts)

    def _state_freed(self) -> str:
        by_watermark = f"when the watermark has passed a record by {shown_length(self._stay)}"
        if not self.keeps_keys:
            return by_watermark
        return f"the row of a key: {freed_by(self._options.ttl)}" + (f"; others {by_watermark}" if self._stay else "")
