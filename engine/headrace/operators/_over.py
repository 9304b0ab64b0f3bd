"""Aggregates over a frame of rows: one result for each row, from the rows before it.

SQL: `agg(x) OVER (PARTITION BY key ORDER BY event_time ROWS | RANGE BETWEEN ... PRECEDING AND CURRENT ROW)`; Flink:
`RowTimeRowsBoundedPrecedingFunction` and its relatives.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import OperatorFunction
from headrace.api.options import OverOptions
from headrace.api.records import RowKind, Struct
from headrace.api.states import ListState, MapState, ValueState
from headrace.names import counted
from headrace.operators._event_time import LAST_TIME, check_in_calendar, freed_by, shown_length
from headrace.operators._frames import Frame, time_of
from headrace.operators._over_record import OverRecord, Row
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType, are_equal, value_type

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

ROW, SETTLE, WAIT = "row", "settle ", "wait "
"""Namespaces of timers, in the order in which those of one time fire. An event time (ms) follows the last two."""

_END: Final = LAST_TIME + 1
"""Time that only the end of the input passes (ms)."""

time_text = sort_text("event time", ValueType(int, may_be_none=False), descending=False)
order_of = attrgetter("order")


class Passed(Struct):
    """Rows of a key that no later row can change: their number, the last of them, and for an unbounded frame their aggregates."""

    number: int
    rows: list[Any]
    frame: Any


class _Known(NamedTuple):
    """All that is stored of a key's rows that the watermark has passed."""

    passed: Any
    rows: dict[int, list[Any]]
    """Rows that a later row may change, or has in its frame, by event time (ms)."""

    def before(self, at: int) -> list[Row]:
        """Return the rows before an event time (ms), in order."""
        return [*self.passed.rows, *chain.from_iterable(rows for time, rows in self.rows.items() if time < at)]

    def behind(self, at: int) -> list[Row]:
        """Return the rows behind an event time (ms), in order."""
        return list(chain.from_iterable(rows for time, rows in self.rows.items() if time > at))


class _Changed(NamedTuple):
    """Rows of a key before and after a change. Those before place `first` are the same."""

    before: Sequence[Row]
    after: list[Row]
    first: int

    def emit(self, ctx: Context) -> None:
        """Emit the changes of results."""
        for old, new in zip(self.before[self.first :], self.after[self.first :], strict=True):
            if new.emitted and not old.emitted:
                ctx.collect(new.result, timestamp=new.at)
            elif new.emitted and not are_equal(old.result, new.result):
                ctx.collect(old.result, RowKind.UPDATE_BEFORE, timestamp=new.at)
                ctx.collect(new.result, RowKind.UPDATE_AFTER, timestamp=new.at)

    @property
    def places(self) -> list[int]:
        """Return the places of rows that are stored otherwise from now on."""
        pairs = zip(self.before[self.first :], self.after[self.first :], strict=True)
        return [
            place
            for place, (old, new) in enumerate(pairs, self.first)
            if old.emitted is not new.emitted or not are_equal(old.result, new.result)
        ]


class OverFunction(KeyedProcessFunction[In, Out], OperatorFunction):
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
        self._row, self._passed = types
        self._options = options
        orders = [sort_text(name, value_type(record.takes, name), descending=False) for name in options.order_by]
        self._orders = list(zip(options.order_by, orders, strict=True))
        self._keep = options.keep
        self._stay = options.keep + frame.reach
        self._lead = record.farthest_lead
        self._context = max(frame.context, record.farthest_lag, self._lead)
        self.retracts = self._keep > 0
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
        is_summed = self._frame.is_unbounded and bool(self._record.fields)
        return bool(self._context or self._record.numbers or is_summed)

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
        check_in_calendar(at, at, at + self._stay, what="frame")
        order = "".join(text(getattr(record, name)) for name, text in self._orders)
        row = self._row(at=at, order=order, record=record)
        if self._stay:
            ctx.timers.register_event_time(at + self._stay, f"{SETTLE}{at}")
        if self._lead:
            ctx.timers.register_event_time(self._waits_until(at), f"{WAIT}{at}")
        if is_late:
            await self._insert(at, [row], ctx)
        else:
            ctx.timers.register_event_time(at, ROW)
            await self.waiting.namespace(str(at)).add(row)

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

    # ------------------------------------------------------------------------------------------------------- rows

    async def _append(self, at: int, new: Sequence[Row], ctx: Context) -> None:
        """Put rows of one event time (ms) behind all others, and emit their results."""
        latest = await self.latest.value() if self._has_latest else None
        if latest is None:
            await self._insert(at, new, ctx)
            return
        first = len(latest.rows)
        rows = [*latest.rows, *sorted(new, key=order_of)]
        changed = _Changed(rows, self._revised(rows, first, latest, latest.frame, ctx.key), first)
        changed.emit(ctx)
        await self.rows.put(time_text(at), changed.after[first:])
        await self.latest.update(self._extended(latest, changed.after, latest.frame))

    async def _insert(self, at: int, new: Sequence[Row], ctx: Context) -> None:
        """Put rows of one event time (ms) in their places, and emit the results that change."""
        known = await self._known()
        before, behind = known.before(at), known.behind(at)
        same = sorted([*known.rows.get(at, ()), *new], key=order_of)
        rows = [*before, *same, *behind]
        frame = known.passed.frame
        if self._stay and frame is not None:
            frame = msgspec.json.decode(msgspec.json.encode(frame), type=self._record.slice)  # it is changed in place
        revised = self._revised(rows, len(before), known.passed, frame, ctx.key)
        changed = _Changed(rows, revised, max(0, len(before) - self._lead))
        changed.emit(ctx)
        if self._lead and (behind or before):
            earlier = at if behind else before[-1].at  # it is not the last row, or no more
            ctx.timers.delete_event_time(self._waits_until(earlier), f"{WAIT}{earlier}")
        if self._stay:
            await self._rewrite(changed, known.passed, at)
        elif self.keeps_keys:
            await self.passed.update(self._extended(known.passed, revised, frame))
        if self._has_latest:
            await self.latest.update(self._extended(known.passed, revised, frame))

    def _revised(self, rows: Sequence[Row], first: int, passed: Any, frame: Any, key: Any) -> list[Row]:
        """Return the rows with the results that they have now: those from place `first` on, and before it new values of `Lead`.

        An unbounded frame adds the rows to `frame`.
        """
        revised = list(rows)
        number = passed.number - len(passed.rows) + 1
        parts = self._frame.parts(self._record, rows, first, frame, len(passed.rows))
        for place, part in enumerate(parts, first):
            if rows[place].emitted and rows[place].result is None:
                continue  # it was emitted before late rows corrected results: nobody knows what is to be taken back
            result = self._record.result_of(rows, place, number=number + place, part=part, key=key)
            revised[place] = msgspec.structs.replace(rows[place], result=result)
        for place in range(max(0, first - self._lead), len(rows)):
            is_complete = place + self._lead < len(rows)
            if is_complete or rows[place].emitted:
                revised[place] = self._completed(rows, place, revised[place])
        return revised

    def _completed(self, rows: Sequence[Row], place: int, row: Row) -> Row:
        """Return a row with its whole result, which is emitted."""
        is_final = row.emitted and not self.retracts
        if is_final or row.result is None:
            return row
        result = self._record.with_leads(row.result, rows, place) if self._lead else row.result
        return msgspec.structs.replace(row, result=result, emitted=True)

    async def _give_up(self, at: int, ctx: Context) -> None:
        """Emit the last rows with the defaults of `Lead`, if a row at this event time (ms) is the last one."""
        known = await self._known()
        rows = known.before(_END)
        if not rows or rows[-1].at != at:
            return
        changed = _Changed(rows, list(rows), max(0, len(rows) - self._lead))
        for place in range(changed.first, len(rows)):
            if not rows[place].emitted:
                changed.after[place] = self._completed(rows, place, rows[place])
        changed.emit(ctx)
        if self._stay or self._options.ttl is None:
            await self._rewrite(changed, known.passed)
        else:
            await self.passed.clear()  # its lifetime ends now, and a write would renew it

    def _waits_until(self, at: int) -> int:
        """Return until when a row waits for later rows (ms)."""
        ttl = self._options.ttl
        return _END if ttl is None or not ttl.is_active else at + ttl.milliseconds

    # ------------------------------------------------------------------------------------------------------ state

    async def _known(self) -> _Known:
        """Return what is stored of the key's passed rows."""
        stored = [rows async for rows in self.rows.values()] if self._stay else []
        return _Known(await self._of_key(), {rows[0].at: rows for rows in stored})

    async def _of_key(self) -> Any:
        passed = await self.passed.value() if self.keeps_keys else None
        frame = None if passed is None else passed.frame
        if frame is None and self._frame.is_unbounded:
            frame = self._record.create()
        return self._passed(0, [], frame) if passed is None else self._passed(passed.number, passed.rows, frame)

    def _extended(self, passed: Any, rows: Sequence[Row], frame: Any) -> Any:
        """Return `passed` with all of `rows`, of which it has the first."""
        more = len(rows) - len(passed.rows)
        return self._passed(passed.number + more, self._last(rows), frame)

    async def _rewrite(self, changed: _Changed, passed: Any, *new: int) -> None:
        """Store the rows that changed, and those of event times with `new` rows (ms)."""
        settled = len(passed.rows)
        places = changed.places
        if places and places[0] < settled:
            last = self._last(changed.after[:settled])
            await self.passed.update(self._passed(passed.number, last, passed.frame))
        for time in sorted({*new, *(changed.after[place].at for place in places if place >= settled)}):
            first = bisect_left(changed.after, time, lo=settled, key=time_of)
            end = bisect_right(changed.after, time, lo=first, key=time_of)
            await self.rows.put(time_text(time), list(self._stored(changed.after[first:end])))

    async def _settle(self, at: int) -> None:
        """Move the rows of an event time (ms) to those that no later row changes, or free them."""
        rows = await self.rows.get(time_text(at))
        if rows is None:
            return
        await self.rows.remove(time_text(at))
        if self.keeps_keys:
            passed = await self._of_key()
            frame = self._record.add_rows(passed.frame, rows) if self._frame.is_unbounded else None
            await self.passed.update(self._extended(passed, [*passed.rows, *rows], frame))

    def _last(self, rows: Sequence[Row]) -> list[Row]:
        """Return the last rows, as far as later rows need them, as they are stored."""
        return list(self._stored(rows[len(rows) - self._context :] if len(rows) > self._context else rows))

    def _stored(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Return rows without results, unless a later row may change these."""
        if self._lead or self.retracts:
            return iter(rows)
        stored = self._row
        return (
            row if row.result is None else stored(at=row.at, order=row.order, record=row.record, emitted=True)
            for row in rows
        )

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
            last = f", with its last {counted(self._context, 'record')}" if self._context else ""
            parts.append(f"{'two rows' if self._has_latest else 'a row'} for each key{sums}{last}")
        return "; ".join(parts)

    def _state_freed(self) -> str:
        by_watermark = f"when the watermark has passed a record by {shown_length(self._stay)}"
        if not self.keeps_keys:
            return by_watermark
        return f"the row of a key: {freed_by(self._options.ttl)}" + (f"; others {by_watermark}" if self._stay else "")
