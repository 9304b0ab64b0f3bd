"""Aggregates of all records of a key, and of those so far.

Aggregates of all records of each key, as a changelog (Flink: `GroupAggFunction`, `MiniBatchGroupAggFunction`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.api.batches import Bundle, BundleFunction, ColumnFunction, ColumnResults, KeyedColumns
from headrace.api.changelog import UPSERTS_OF_UNKNOWN_KEY, ChangelogMode, StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, Kind, fields_read
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import Emit, KeyBy, OperatorFunction
from headrace.api.options import GroupOptions
from headrace.api.records import RowKind, Struct
from headrace.api.states import AggregateFunction, AggregatingState, MapState, ValueState
from headrace.api.ttl import StateTtl, TtlTime
from headrace.operators._accumulators import Change, sign_of
from headrace.operators._column_lifetimes import columns_see_end
from headrace.operators._event_time import freed_by
from headrace.operators._multisets import Entry
from headrace.operators._normalize import OF_KEY, unmatched
from headrace.operators._result_record import MultisetField, ResultRecord
from headrace.operators._value_types import are_identical
from headrace.operators._window_results import check_can_retract, check_kind

if TYPE_CHECKING:
    from headrace.operators._group_columns import GroupColumns
    from headrace.operators._running_fields import Flags


In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_WATERMARK: Final = -(1 << 62)
"""The watermark before the first one (ms)."""
_NO_TIMER: Final = 1 << 62
"""Later than any event time (ms)."""


class GroupAggregation(KeyedProcessFunction[In, Out], OperatorFunction, BundleFunction, ColumnFunction):
    """Emits the changes of a key's result.

    The state is a *group*: the number of the key's records, their accumulators, and `at`, the event time of the last
    emitted result (ms). Multisets also have entries in `values`, in the namespaces of their fields.
    """

    KIND = "aggregates"
    TAKER = "aggregate"
    has_row_of_each_key = True

    aggregate: ValueState[Any]
    values: MapState[str, Entry]

    def __init__(self, result: ResultRecord, group: type[Any], options: GroupOptions) -> None:
        """Take the result, and the type of the state."""
        self._result = result
        self._group = group
        self._options = options
        self._refusing = result.retraction_refused_by()
        self._has_values = bool(result.multisets)
        self.retracts = options.retract or options.retracting

    def column_reads(self) -> ColumnReads:
        """Return what the results read. A record that changes no field emits nothing, so their times depend on all of them."""
        expires = () if self._options.ttl is None else fields_read([TIME], Kind.CONDITIONAL)
        return ColumnReads(self._result.columns, frozenset(expires))

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add or remove a record, and emit the change. A retraction that matches nothing goes to the quarantine.

        Raises `ValueError` for a retraction where a field cannot remove a record.
        """
        group = await self.aggregate.value()
        before = self._shown(group, ctx)
        change = Change(record, ctx.timestamp, self._sign(ctx.row_kind))
        if change.sign < 0 and await self._set_aside(change, group, ctx.row_kind, ctx):
            return
        if self._has_values:
            group = await self._counted(group, change, ctx)
        await self._keep(before, self._changed(group, change), ctx)

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Add all records of the key in a micro-batch, and emit one change, at the place of the last record."""
        group = await self.aggregate.value()
        before = self._shown(group, ctx)
        last = None
        for record in bundle.walk(bundle.records):
            kind = RowKind(record.kind)
            change = Change(record.record, record.timestamp, self._sign(kind))
            if change.sign < 0 and await self._set_aside(change, group, kind, ctx):
                continue
            if self._has_values:
                group = await self._counted(group, change, ctx)
            group, last = self._changed(group, change), record
        if last is not None:
            bundle.work_on(last)
            await self._keep(before, group, ctx)

    async def _set_aside(self, change: Change, group: Any, kind: RowKind, ctx: Context) -> bool:
        """Move a retraction that matches nothing to the quarantine, and return whether it was one."""
        if self._result.may_hold(change, group) and await self._have(change.record, group):
            return False
        ctx.quarantine(unmatched(kind, OF_KEY, self._options.ttl))
        return True

    def _sign(self, kind: RowKind) -> int:
        check_kind(kind, self._refusing)
        return sign_of(kind)

    def _changed(self, group: Any, change: Change) -> Any:
        """Return a group with a change applied; None if no record is left."""
        group = self._result.add(change, self._new() if group is None else group)
        return group if group.rows else None

    def _new(self) -> Any:
        return self._group(rows=0, aggregates=self._result.create().aggregates)

    # ------------------------------------------------------------------------------------------------ values by entry

    async def _counted(self, group: Any, change: Change, ctx: Context) -> Any:
        """Return a group with the values of a change counted in its multisets."""
        group = self._new() if group is None else group
        for field, item in self._items_of(change.record):
            multiset, state = field.accumulator, getattr(group.aggregates, field.name)
            if not multiset.count_in_row(state, item, change.sign):
                await multiset.count_entry(state, item, change.sign, self.values.namespace(field.name))
            if multiset.is_out_of_bounds(state):
                await self._balance(field, state, ctx)
        if group.rows + change.sign == 0:
            await self._clear_values(group)
        return group

    async def _balance(self, field: MultisetField, state: Any, ctx: Context) -> None:
        """Move values of a multiset to entries, or back."""
        had_entries = state.others
        await field.accumulator.balance(state, self.values.namespace(field.name))
        if state.others and not had_entries:
            self._on_first_entries(ctx)

    def _items_of(self, record: Any) -> list[tuple[MultisetField, Any]]:
        """Return the multisets that take a value of the record, with the item of the value."""
        items = []
        for field in self._result.multisets:
            if field.where is None or field.where(record):
                value = field.read(record)
                if value is not None:
                    items.append((field, field.accumulator.item(value)))
        return items

    async def _have(self, record: Any, group: Any) -> bool:
        """Return whether the multisets have the values of a record."""
        for field, item in self._items_of(record):
            holds = field.accumulator.holds(getattr(group.aggregates, field.name), item)
            if holds is None:
                holds = await self.values.namespace(field.name).contains(field.accumulator.text(item))
            if not holds:
                return False
        return True

    async def _clear_values(self, group: Any) -> None:
        """Remove all entries of a group that loses its last record: some are left where that was not the record of its retraction."""
        for field in self._result.multisets:
            if getattr(group.aggregates, field.name).others:
                await self.values.namespace(field.name).clear()

    def _on_first_entries(self, ctx: Context) -> None:
        """Take note that a multiset of the key has entries now."""

    def _shown(self, group: Any, ctx: Context) -> tuple[Any, int]:
        """Return a group's result and its event time (ms); None and 0 without one."""
        if group is None:
            return None, 0
        return self._result.result(group, ctx.key, 0, 0), group.at

    async def _keep(self, shown: tuple[Any, int], group: Any, ctx: Context) -> None:
        """Emit the change from the result `shown` to that of the group, and store the group."""
        before, at = shown
        after, _ = self._shown(group, ctx)
        is_same = are_identical(before, after)
        if before is not None and not is_same and (after is None or self._options.retract):
            ctx.collect(before, RowKind.DELETE if after is None else RowKind.UPDATE_BEFORE, timestamp=at)
        if after is not None:
            group.at = at if is_same else ctx.timestamp  # a new group may have the result of the old one
        if after is not None and not is_same:
            ctx.collect(after, RowKind.INSERT if before is None else RowKind.UPDATE_AFTER)
        await (self.aggregate.clear() if group is None else self.aggregate.update(group))

    def changes(self, name: str, keys: Sequence[KeyBy], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return upserts where the row before an update is left out; by the fields of the key, if the result has them."""
        changes = super().changes(name, keys, taken)
        if self._options.retract:
            return changes
        key = next(iter(changes.unique), ())
        return replace(changes, mode=ChangelogMode.upsert(*key) if key else UPSERTS_OF_UNKNOWN_KEY)

    def key_of_rows(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of the result that hold the key; after `key_by` with a function, `key` does."""
        return self._result.key_of_results(fields)

    # ------------------------------------------------------------------------------------------ bundles, columns

    @property
    def takes_bundles(self) -> bool:
        """Return whether the function emits one change for each micro-batch."""
        return self._options.emit is Emit.NET_CHANGE

    @property
    def waits_to_end(self) -> bool:
        """Return True: a bundle has all records of the key in a micro-batch."""
        return True

    def first_timer(self, timestamp: int, /) -> int:
        """Return a time beyond all others: the function has no timers."""
        del timestamp
        return _NO_TIMER

    @cached_property
    def _columns(self) -> GroupColumns:
        from headrace.operators._group_columns import GroupColumns

        return GroupColumns(self._result, self._group, self._options)

    @property
    def takes_columns(self) -> bool:
        """Return whether all fields can be computed from columns, and lifetimes followed."""
        return columns_see_end(self._options.ttl) and self._columns.is_complete

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether it has a retraction, or may expire between two of its records; None if none does."""
        return self._columns.taken_singly(columns)

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the records; None if they have to be processed one by one."""
        return self._columns.results(columns)

    # -------------------------------------------------------------------------------------------------- describing

    def _entries_kept(self) -> str:
        fields = ", ".join(field.name for field in self._result.multisets)
        return f", and one for each different value of {fields} where they are many" if fields else ""

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows."""
        net = self._options.emit is Emit.NET_CHANGE
        return {
            **self._result.described(),
            "emits": "one change for each key and micro-batch" if net else "each change",
            "retracts": "-U before each +U" if self._options.retract else "no -U",
            "state_kept": "a row for each key" + self._entries_kept(),
            "state_freed": freed_by(self._options.ttl),
        }


class ExpiringAggregation(GroupAggregation[In, Out]):
    """Group aggregation whose row has a lifetime, and entries beside it.

    The lifetime of the row decides alone: entries have none, only a live row that counts them leads to them, and a row that gets
    its first entries removes those of an expired one. A timer removes the entries of a key whose row has expired; while the row
    lives, the timer waits for its end again, and does not renew it.
    """

    def __init__(self, result: ResultRecord, group: type[Any], options: GroupOptions, ttl: StateTtl) -> None:
        """Take the arguments of `GroupAggregation`, and the lifetime of the row."""
        super().__init__(result, group, options)
        self._ttl = ttl

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Remove an expired row with its entries. At the end of a lifetime the row is still there, with nothing left to live."""
        del timestamp
        remaining = await self.aggregate.remaining()
        if remaining and self._ttl.expires_by_watermark and ctx.watermark == _NO_WATERMARK:
            # The timer is of another TTL, of the job's earlier code, and nobody knows yet when the row ends.
            ctx.timers.register_processing_time(ctx.processing_time + self._ttl.milliseconds)
            return
        if remaining:
            self._wait(remaining // _MILLISECOND + self._clock(ctx), ctx)
            return
        await self.aggregate.clear()
        for field in self._result.multisets:
            await self.values.namespace(field.name).clear()

    def _on_first_entries(self, ctx: Context) -> None:
        """Wait for the end of the row. It may come sooner or later: the timer looks."""
        stamp = ctx.timestamp if self._ttl.time is TtlTime.EVENT else ctx.processing_time
        self._wait(stamp + self._ttl.milliseconds, ctx)

    def _clock(self, ctx: Context) -> int:
        return ctx.watermark if self._ttl.expires_by_watermark else ctx.processing_time

    def _wait(self, at: int, ctx: Context) -> None:
        timers = ctx.timers
        (timers.register_event_time if self._ttl.expires_by_watermark else timers.register_processing_time)(at)


def group_aggregation(
    takes: type[Struct], gives: type[Struct], options: GroupOptions
) -> KeyedProcessFunction[Any, Any]:
    """Return the function of `Stream.aggregate`.

    Raises the errors of `ResultRecord`; `ValueError` where the input may retract records and the result cannot, and for
    one change for each micro-batch with a TTL, because each record would renew the lifetime at its own time.
    """
    result = ResultRecord(takes, gives, options.key, retracting=options.retracting, windowed=False, by_entry=True)
    if options.retracting:
        check_can_retract(result)
    if options.ttl is not None and options.emit is Emit.NET_CHANGE:
        msg = "Emit.NET_CHANGE needs state_ttl=Lifetime.FOREVER: each record renews a lifetime, so emit every change"
        raise ValueError(msg)
    ttl = options.ttl if options.ttl is not None and options.ttl.is_active and result.multisets else None
    fields: list[Any] = [("at", int, 0)]
    names = {}
    if ttl is not None:
        # Entries of a row without a lifetime have no timer that removes them: another field refuses rows of the other kind.
        fields, names = [("rows", int), *fields], {"rows": "expiring_rows"}
    group = msgspec.defstruct(f"{gives.__name__}Group", fields, bases=(result.slice,), rename=names)

    class Aggregation(GroupAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        aggregate = ValueState("aggregate", group, ttl=options.ttl)

    class AggregationByEntry(Aggregation):
        values = MapState("aggregate_values", str, Entry)

    class ExpiringByEntry(ExpiringAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        aggregate = ValueState("aggregate", group, ttl=options.ttl)
        values = MapState("aggregate_values", str, Entry)

    if ttl is not None:
        return ExpiringByEntry(result, group, options, ttl)
    kind = AggregationByEntry if result.multisets else Aggregation
    return kind(result, group, options)


Acc = TypeVar("Acc")


def running_aggregate(
    function: AggregateFunction[In, Acc, Out], /, *, takes: type[In], gives: type[Out], ttl: StateTtl | None = None
) -> KeyedProcessFunction[In, Out]:
    """Return a keyed function that adds each record to its key's accumulator and emits the result.

    `takes` and `gives` are the record types of input and output. A result is an update (+U): write it into a merge sink
    behind `upsert_materialize`, or into an append sink as a log of results. Use it on insert-only streams: a retraction
    is added like any other record. The state's name is `aggregate`. `ttl` is its TTL; by default (None) keys are kept
    for ever. With a `ttl`, a record that is older than the watermark by more than `ttl` emits nothing: its result has
    expired already.

        .key_by("customer").process("totals", running_aggregate(Totals(), takes=Order, gives=Total))

    Raises `TypeError` unless `function` names its types, as in `AggregateFunction[Order, Sum, Total]`.
    """

    class RunningAggregate(KeyedProcessFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        _emits = UPSERTS_OF_UNKNOWN_KEY
        aggregate = AggregatingState("aggregate", function, ttl=ttl)

        async def process(self, record: Any, ctx: Context, /) -> None:
            await self.aggregate.add(record)
            result = await self.aggregate.get()
            if result is not None:
                ctx.collect(result, RowKind.UPDATE_AFTER)

    return RunningAggregate()
