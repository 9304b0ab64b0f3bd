"""First records of each key: a top-N, and the first or last by event time (Flink: `RowTimeDeduplicateFunction`).

First records of each key, with their ranks, as a changelog (Flink: `ROW_NUMBER() OVER (...) <= n`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from headrace.api.batches import ColumnFunction, ColumnResults, KeyedColumns
from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import OperatorFunction
from headrace.api.options import Ranks
from headrace.api.records import RowKind, Struct
from headrace.api.states import MapState, ValueState
from headrace.api.ttl import StateTtl, UpdateType
from headrace.names import counted
from headrace.operators._accumulators import distinct_text
from headrace.operators._column_lifetimes import columns_see_end
from headrace.operators._event_time import freed_by
from headrace.operators._normalize import OF_KEY, unmatched
from headrace.operators._ranking import Ranking
from headrace.operators._value_types import are_identical

if TYPE_CHECKING:
    from headrace.operators._last_record_columns import LastRecordColumns
    from headrace.operators._running_fields import Flags

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class UniqueKey:
    """Fields that tell the rows of a stream apart."""

    def __init__(self, fields: tuple[str, ...]) -> None:
        """Take the fields."""
        self.fields = fields
        self.values: Callable[[Any], Any] = attrgetter(*fields)
        """Return the values of a record, which are equal where the texts are."""

    def text(self, record: Any) -> str:
        """Return the JSON text of the values of a record, the same for equal values. Raises `ValueError` for NaN and infinity."""
        texts = [distinct_text(getattr(record, name)) for name in self.fields]
        return f"[{','.join(texts)}]"

    def __str__(self) -> str:
        """Return the fields, for people."""
        return ", ".join(self.fields)


class TopFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """First records of a stream without retractions (Flink: `AppendOnlyTopNFunction`).

    The state holds the first records of a key, in order, in one value; records behind them are dropped.
    """

    KIND = "top n"
    TAKER = "top"
    retracts = True

    top: ValueState[list[Any]]

    def __init__(self, ranking: Ranking, ttl: StateTtl | None) -> None:
        """Take the ranking, and the TTL of the states."""
        self._ranking = ranking
        self._ttl = ttl
        self.deletes_inserts = ranking.n > 1

    def unique_keys(self, fields: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique keys of the records that are kept, and the key with the rank.

        With ranks, records move rank by rank: for a moment, a record has its new rank and its old one.
        """
        own = self._ranking.key_of_results(fields)
        known = () if self._ranking.is_ranked else taken.unique
        copied = [key for key in known if key != own and self._ranking.copies(key)]
        return (*([own] if own else []), *copied)

    def column_reads(self) -> ColumnReads:
        """Return what the results read."""
        return self._ranking.column_reads()

    async def process(self, record: In, ctx: Context, /) -> None:
        """Insert a record in its place. Raises `ValueError` for a retraction."""
        if ctx.row_kind.is_retraction:
            msg = (
                f"this top-N was made for a stream that takes nothing back, and this record is {ctx.row_kind.symbol}: "
                "give top() the argument retracting=True"
            )
            raise ValueError(msg)
        before = await self.top.value() or []
        row = self._ranking.row_of(record, ctx.timestamp)
        after = self._ranking.inserted(before, row)[: self._ranking.n]
        if len(after) == len(before) and after[-1] is not row and after[-1] is before[-1]:
            return  # the record is behind the last rank
        await self.top.update(after)
        self._emit(ctx, before, after)

    def _emit(self, ctx: Context, before: Sequence[Any], after: Sequence[Any]) -> None:
        """Emit the changes from one list of rows to another. A result has the event time of its record.

        Results of the first rows that are in both lists are not made: they do not change.
        """
        pairs = enumerate(zip(before, after, strict=False))
        same = next((place for place, (old, new) in pairs if old is not new), min(len(before), len(after)))
        self._ranking.emit(ctx, self._results(before, same), self._results(after, same))

    def _results(self, rows: Sequence[Any], first: int) -> list[tuple[Any, int]]:
        """Return the results of the rows from a place on, and their event times (ms)."""
        results = self._ranking.results(rows[first:], first_rank=first + 1)
        return [(result, row.at) for result, row in zip(results, rows[first:], strict=True)]

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            **self._ranking.described(),
            "state_kept": f"a row for each key, with its first {counted(self._ranking.n, 'record')}",
            "state_freed": freed_by(self._ttl),
        }


class RetractableTopFunction(TopFunction[In, Out]):
    """First records of a stream that may retract records (Flink: `RetractableTopNFunction`).

    `top` holds the first records of a key, `rest` all others: by the sort text of their values, and those of one value
    in order of event time and arrival. The first record of `rest` moves up when one of `top` is retracted.
    """

    UNMATCHED = "unmatched"

    rest: MapState[str, list[Any]]

    def column_reads(self) -> ColumnReads:
        """Return what the results read. Results that stay equal emit nothing."""
        return super().column_reads().of_changes()

    async def process(self, record: In, ctx: Context, /) -> None:
        """Insert a record in its place, or remove a retracted one: of several equal ones, the first.

        A retraction of a record that is not there goes to the side output `unmatched`, if the pipeline takes it, else to
        the quarantine.
        """
        stored = await self.top.value() or []
        after = await self._changed(await self._filled(stored), record, ctx)
        if not _same(after, stored):
            await (self.top.update(after) if after else self.top.clear())
            self._emit(ctx, stored, after)

    async def _changed(self, rows: list[Any], record: In, ctx: Context) -> list[Any]:
        """Return the first rows behind a change."""
        row = self._ranking.row_of(record, ctx.timestamp)
        if not ctx.row_kind.is_retraction:
            return await self._trimmed(self._ranking.inserted(rows, row), row)
        after = await self._without(rows, row)
        if after is None:
            self._unmatched(record, ctx)
        return rows if after is None else after

    async def _without(self, rows: list[Any], row: Any) -> list[Any] | None:
        """Return the first rows without `row`; None if there is no such row."""
        place = self._ranking.place_of(rows, row)
        if place is not None:
            return await self._filled(_without_place(rows, place))
        equal = await self.rest.get(row.order) or []
        place = self._ranking.place_of(equal, row)
        if place is None:
            return None
        await self._keep(row.order, _without_place(equal, place))
        return rows

    async def _trimmed(self, rows: list[Any], new: Any) -> list[Any]:
        """Return the first rows, and move the others into `rest`: before rows of equal value and time, except for a new row."""
        first, others = rows[: self._ranking.n], rows[self._ranking.n :]
        for row in reversed(others):
            await self._put_behind(row, is_new=row is new)
        return first

    async def _put_behind(self, row: Any, *, is_new: bool) -> None:
        """Add a row to `rest`."""
        equal = await self.rest.get(row.order) or []
        await self._keep(row.order, self._ranking.inserted(equal, row, before_equal=not is_new))

    async def _filled(self, rows: list[Any]) -> list[Any]:
        """Return `n` rows, if there are as many: rows of `rest` move up. There may be more, if `n` was larger before."""
        rows = list(rows)
        while len(rows) < self._ranking.n and (row := await self._moved_up()) is not None:
            rows.append(row)
        return rows

    async def _moved_up(self) -> Any:
        """Remove the first row of `rest`, and return it; None without rows."""
        first_entry = None
        async for entry in self.rest.entries():
            first_entry = entry
            break
        if first_entry is None:
            return None
        order, (first, *others) = first_entry
        await self._keep(order, others)
        return first

    async def _keep(self, order: str, rows: list[Any]) -> None:
        await (self.rest.put(order, rows) if rows else self.rest.remove(order))

    def _unmatched(self, record: In, ctx: Context) -> None:
        if self.UNMATCHED in self.declared:
            ctx.output(self.UNMATCHED, record)
        else:
            ctx.quarantine(unmatched(ctx.row_kind, OF_KEY, self._ttl))

    def side_types(self) -> dict[str, type[Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {self.UNMATCHED: self._ranking.takes}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        kept = f"a row for each key, with its first {counted(self._ranking.n, 'record')}, and a row for each different value behind them"
        unmatched = "go to side output 'unmatched'" if self.UNMATCHED in self.declared else "go to the quarantine"
        return {**super().described(), "state_kept": kept, "unmatched_retractions": unmatched}


class UpsertTopFunction(RetractableTopFunction[In, Out]):
    """First records of a stream of upserts: a record replaces the row with its unique key (Flink: `UpdatableTopNFunction`).

    `places` has the sort text of each row in `rest`, by the text of its unique key. With a TTL, a place can expire before the list in
    `rest` that has its row, which has been written for others: such a row has expired, too.
    """

    takes_upserts = (0,)
    needs_keys_of_deletions = True

    places: MapState[str, str]

    def __init__(self, ranking: Ranking, ttl: StateTtl | None, unique: UniqueKey) -> None:
        """Take the ranking, the TTL of the states, and the unique key of the records."""
        super().__init__(ranking, ttl)
        self._unique = unique
        self.read_of_deletions = unique.fields

    def column_reads(self) -> ColumnReads:
        """Return what the results read. A record that equals its row does not replace it, so times and order depend on all columns."""
        columns, rows = super().column_reads()
        replaced = fields_read(self._unique.fields, Kind.GROUP_BY) | fields_read(
            self._ranking.takes.__struct_fields__, Kind.SORT
        )
        return ColumnReads(columns, rows | replaced)

    async def _changed(self, rows: list[Any], record: In, ctx: Context) -> list[Any]:
        """Return the first rows behind a change. A record that equals its row changes nothing, but lets the row live longer."""
        first = self._row_of_key(rows, record)
        behind = await self._row_behind(record) if first is None else None
        old = behind if first is None else first
        if ctx.row_kind.is_retraction:
            if old is None:
                self._unmatched(record, ctx)
        elif old is not None and are_identical(old.record, record):
            await self._renew(rows, behind)
            return rows
        if behind is not None:
            await self._remove_behind(behind)
        left = [row for row in rows if row is not first]
        if ctx.row_kind.is_retraction:
            return await self._filled(left)
        return await self._with_new(left, self._ranking.row_of(record, ctx.timestamp))

    async def _with_new(self, rows: list[Any], row: Any) -> list[Any]:
        """Return the first rows with a new one. Before it, rows of `rest` move up where it may come behind them."""
        if not rows or not self._ranking.is_before(row, rows[-1]):
            rows = await self._filled(rows)
        return await self._trimmed(self._ranking.inserted(rows, row), row)

    async def _renew(self, rows: list[Any], behind: Any) -> None:
        """Write again what has the row of a record that equals it: `behind`, a row of `rest`, or one of the first rows."""
        if self._ttl is None:
            return
        if behind is None:
            await self.top.update(rows)
        else:
            await self.rest.put(behind.order, await self.rest.get(behind.order) or [])
            await self.places.put(self._unique.text(behind.record), behind.order)

    # ------------------------------------------------------------------------------------------- rows behind the first

    def _row_of_key(self, rows: Sequence[Any], record: Any) -> Any:
        """Return the row with the unique key of a record; None without one."""
        values = self._unique.values(record)
        return next((row for row in rows if self._unique.values(row.record) == values), None)

    async def _row_behind(self, record: Any) -> Any:
        """Return the row of `rest` with the unique key of a record; None without one."""
        order = await self.places.get(self._unique.text(record))
        return None if order is None else self._row_of_key(await self.rest.get(order) or [], record)

    async def _remove_behind(self, row: Any) -> None:
        """Remove a row of `rest`, and its place."""
        await self._keep(row.order, await self._others(row))
        await self.places.remove(self._unique.text(row.record))

    async def _others(self, row: Any) -> list[Any]:
        """Return the rows of `rest` with the sort text of a row, and another unique key."""
        values = self._unique.values(row.record)
        rows = await self.rest.get(row.order) or []
        return [other for other in rows if self._unique.values(other.record) != values]

    async def _put_behind(self, row: Any, *, is_new: bool) -> None:
        """Add a row to `rest`, in place of an expired one with its unique key, and its place."""
        others = await self._others(row)
        await self._keep(row.order, self._ranking.inserted(others, row, before_equal=not is_new))
        await self.places.put(self._unique.text(row.record), row.order)

    async def _moved_up(self) -> Any:
        """Remove the first row of `rest`, with its place, and return it; None without rows. Expired rows before it are removed."""
        while (row := await super()._moved_up()) is not None:
            key = self._unique.text(row.record)
            if await self.places.get(key) == row.order:
                await self.places.remove(key)
                return row
        return None

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {**super().described(), "replaces": f"the row with the same {self._unique}"}

    def declare_side(self, operator: str, name: str, record: object) -> None:
        """Emit unmatched records to the side output `name` from now on: a deletion there must be whole. Errors are those of the base."""
        super().declare_side(operator, name, record)
        self.needs_keys_of_deletions = False


def _without_place(rows: Sequence[Any], place: int) -> list[Any]:
    return [*rows[:place], *rows[place + 1 :]]


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def top_n(
    takes: type[In],
    ranks: Ranks,
    *,
    retracting: bool,
    ttl: StateTtl | None,
    upsert_key: tuple[str, ...] = (),
) -> KeyedProcessFunction[In, Any]:
    """Return the function of `Stream.top`. With an `upsert_key`, records replace each other by it. Errors are those of `Ranking`."""
    ranking = Ranking(takes, ranks, windowed=False, unique=upsert_key)
    gives, rows = ranking.gives, ranking.rows

    if not retracting and not upsert_key:

        class Top(TopFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
            top = ValueState("top", rows, ttl=ttl)

        return Top(ranking, ttl)

    class RetractableTop(RetractableTopFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        top = ValueState("top", rows, ttl=ttl)
        rest = MapState("rest", str, rows, ttl=ttl)

    class UpsertTop(UpsertTopFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        top = ValueState("top", rows, ttl=ttl)
        rest = MapState("rest", str, rows, ttl=ttl)
        places = MapState("places", str, str, ttl=ttl)

    return UpsertTop(ranking, ttl, UniqueKey(upsert_key)) if upsert_key else RetractableTop(ranking, ttl)


class Kept(Struct, frozen=True):
    """Stored record of a key, and its event time (ms). `emitted` is true if it was emitted."""

    at: int
    record: Any
    emitted: bool


class FirstByTimeFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """First record of each key by event time; of several at one timestamp, the first to arrive.

    With `at_watermark` it is emitted when the watermark reaches its event time, and is final. Otherwise it is emitted
    at once, and retracted when an earlier record arrives.
    """

    KIND = "first by event time"
    TAKER = "first_by_time"
    has_row_of_each_key = True

    kept: ValueState[Any]

    def __init__(self, kept: Any, ttl: StateTtl | None, *, at_watermark: bool) -> None:
        """Take the type of the state, and its TTL."""
        self._kept = kept
        self._ttl = ttl
        self._at_watermark = at_watermark
        self.retracts = not at_watermark

    def column_reads(self) -> ColumnReads:
        """Return what the results read: records, chosen by their order."""
        return self.reads_as_taken(fields_read([TIME], Kind.SORT))

    def replaces(self, at: int, kept_at: int) -> bool:
        """Return whether a new record with event time `at` replaces the stored one (ms)."""
        return at < kept_at

    async def process(self, record: In, ctx: Context, /) -> None:
        """Keep a record, or drop it. Raises `ValueError` for a retraction."""
        _check_kind(self.TAKER, ctx.row_kind)
        if self._at_watermark and ctx.timestamp <= ctx.watermark:
            self.set_aside_late(record, ctx)  # the first record up to the watermark is decided
            return
        kept = await self.kept.value()
        if kept is not None and ((kept.emitted and self._at_watermark) or not self.replaces(ctx.timestamp, kept.at)):
            return
        await self.kept.update(self._kept(at=ctx.timestamp, record=record, emitted=not self._at_watermark))
        if self._at_watermark:
            if kept is not None:
                ctx.timers.delete_event_time(kept.at)
            ctx.timers.register_event_time(ctx.timestamp)
        elif kept is None:
            ctx.collect(record)
        else:
            ctx.collect(kept.record, RowKind.UPDATE_BEFORE, timestamp=kept.at)
            ctx.collect(record, RowKind.UPDATE_AFTER)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the first record, which is now final."""
        kept = await self.kept.value()
        if kept is not None and kept.at == timestamp and not kept.emitted:
            await self.kept.update(self._kept(at=kept.at, record=kept.record, emitted=True))
            ctx.collect(kept.record)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        emits = "when the watermark reaches it" if self._at_watermark else "at once, and corrects"
        kept = "a row for each key, with one record" + (
            ", and a timer until it is emitted" if self._at_watermark else ""
        )
        return {"emits": emits, "state_kept": kept, "state_freed": freed_by(self._ttl)}


class LastByTimeFunction(FirstByTimeFunction[In, Out], ColumnFunction):
    """Last record of each key by event time; of several at one timestamp, the last to arrive."""

    KIND = "last by event time"
    TAKER = "last_by_time"
    BY_ARRIVAL = False

    @cached_property
    def _columns(self) -> LastRecordColumns:
        from headrace.operators._last_record_columns import LastRecordColumns

        return LastRecordColumns(self._kept, self._ttl, by_arrival=self.BY_ARRIVAL)

    @property
    def takes_columns(self) -> bool:
        """Return whether columns can follow the lifetimes: reads must not begin them anew."""
        is_read_only = self._ttl is None or self._ttl.update is not UpdateType.ON_READ_AND_WRITE
        return is_read_only and columns_see_end(self._ttl)

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether it has a retraction, or may expire between two of its records; None if none does."""
        return self._columns.taken_singly(columns)

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the records; None if they have to be processed one by one."""
        return self._columns.results(columns)

    def replaces(self, at: int, kept_at: int) -> bool:
        """Return whether a new record with event time `at` replaces the stored one (ms)."""
        return at >= kept_at


class FirstArrivalFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """First record of each key in arrival order, as an insert (Flink: `ProcTimeDeduplicateKeepFirstRowFunction`)."""

    KIND = "first to arrive"
    TAKER = "first_by_time"

    is_known: ValueState[bool]

    def __init__(self, ttl: StateTtl | None) -> None:
        """Take the TTL of the state. Without one, a key never has a second record."""
        self._ttl = ttl
        self.has_row_of_each_key = ttl is None

    def column_reads(self) -> ColumnReads:
        """Return what the results read: records, chosen by their order."""
        return self.reads_as_taken(fields_read([TIME], Kind.SORT))

    async def process(self, record: In, ctx: Context, /) -> None:
        """Emit a record, or drop it. Raises `ValueError` for a retraction."""
        _check_kind(self.TAKER, ctx.row_kind)
        if await self.is_known.value() is None:
            await self.is_known.update(True)
            ctx.collect(record)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            "emits": "at once",
            "state_kept": "a row for each key, without a record",
            "state_freed": freed_by(self._ttl),
        }


class LastArrivalFunction(LastByTimeFunction[In, Out]):
    """Last record of each key in arrival order; each one replaces the one before it."""

    KIND = "last to arrive"
    BY_ARRIVAL = True

    def replaces(self, at: int, kept_at: int) -> bool:
        """Return true: every record is later than those before it."""
        del at, kept_at
        return True


def _check_kind(taker: str, kind: RowKind) -> None:
    if kind.is_retraction:
        msg = f"{taker} cannot take a record back, and this one is {kind.symbol}: use top() with n=1 there"
        raise ValueError(msg)


def first_to_arrive(takes: type[In], *, ttl: StateTtl | None) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.first_by_time` by processing time."""

    class First(FirstArrivalFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        is_known = ValueState("first_arrival", bool, ttl=ttl)

    return First(ttl)


def last_to_arrive(takes: type[In], *, ttl: StateTtl | None) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.last_by_time` by processing time."""
    kept_type = _kept_type(takes)

    class Last(LastArrivalFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        kept = ValueState("last_arrival", kept_type, ttl=ttl)

    return Last(kept_type, ttl, at_watermark=False)


def first_by_time(takes: type[In], *, ttl: StateTtl | None, at_watermark: bool) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.first_by_time`."""
    kept_type = _kept_type(takes)

    class First(FirstByTimeFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        kept = ValueState("first", kept_type, ttl=ttl)

    return First(kept_type, ttl, at_watermark=at_watermark)


def last_by_time(takes: type[In], *, ttl: StateTtl | None) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.last_by_time`."""
    kept_type = _kept_type(takes)

    class Last(LastByTimeFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        kept = ValueState("last", kept_type, ttl=ttl)

    return Last(kept_type, ttl, at_watermark=False)


def _kept_type(takes: type[Struct]) -> Any:
    return msgspec.defstruct(
        f"Kept{takes.__name__}", [("at", int), ("record", takes), ("emitted", bool)], bases=(Kept,), frozen=True
    )
