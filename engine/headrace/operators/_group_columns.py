"""Group aggregation over columns: state and results of `GroupAggregation`, bit for bit, for records without retractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from headrace.api.batches import ColumnResults, KeyedColumns
from headrace.api.graph import Emit
from headrace.api.options import GroupOptions
from headrace.operators._column_changes import ColumnChanges, are_other
from headrace.operators._column_lifetimes import may_expire_before
from headrace.operators._result_record import AggregatedField, ResultRecord
from headrace.operators._running_fields import (
    NOT_IN_COLUMNS,
    FieldInColumns,
    Flags,
    Layout,
    NotInColumnsError,
    Numbers,
    RunningField,
    is_plain,
    keys_with,
    of_type,
    retractions,
    running_field,
)


class GroupColumns:
    """Computes groups of one result type from columns."""

    def __init__(self, result: ResultRecord, group: type[Any], options: GroupOptions) -> None:
        """Take the result, and the type of the state."""
        self._result = result
        self._group = group
        self._options = options
        self._fields = [(field, running_field(field)) for field in result.fields]

    @property
    def is_complete(self) -> bool:
        """Return whether all fields can be computed from columns, and neither records nor results need code of their class."""
        takes, gives = self._result.takes, self._result.gives
        is_made = any(hasattr(record, "__post_init__") for record in (takes, gives))
        is_compared = gives.__eq__ is not msgspec.Struct.__eq__ or gives.__ne__ is not msgspec.Struct.__ne__
        read = {field.value for field, _ in self._fields if field.value is not None}
        return (
            not (is_made or is_compared or self._result.multisets)
            and gives.__struct_config__.eq
            and all(make is not None for _, make in self._fields)
            and all(map(is_plain, msgspec.structs.fields(gives)))
            and all(is_plain(field) for field in msgspec.structs.fields(takes) if field.name in read)
        )

    def taken_singly(self, columns: KeyedColumns) -> Flags | None:
        """Return for each key whether it has a retraction, or may expire between two of its records; None if none does."""
        return keys_with(retractions(columns) | may_expire_before(columns, self._options.ttl), columns)

    def results(self, columns: KeyedColumns) -> ColumnResults | None:
        """Return the results of the records; None if they have to be processed one by one."""
        try:
            return self._results(columns)
        except NOT_IN_COLUMNS:
            return None

    def _results(self, columns: KeyedColumns) -> ColumnResults:
        layout = Layout.of(columns.key_numbers.to_numpy().astype(np.int64), len(columns.keys))
        groups = [self._group(0, self._result.create().aggregates) if g is None else g for g in columns.values]
        stored_rows = np.array([group.rows for group in groups], np.int64)
        if stored_rows.min(initial=0) < 0:
            raise NotInColumnsError
        fields = {field.name: self._running(field, make, layout, groups, columns) for field, make in self._fields}
        changes = self._changes(layout, fields, stored_rows)
        emitted_at = changes.times([group.at for group in groups], columns.timestamps)
        records = self._records(layout, fields, columns)
        return ColumnResults(
            self._groups(layout, fields, stored_rows, emitted_at),
            changes.emitted(emitted_at, records, retract=self._options.retract),
        )

    def _running(
        self,
        field: AggregatedField,
        make: FieldInColumns | None,
        layout: Layout,
        groups: Sequence[Any],
        columns: KeyedColumns,
    ) -> RunningField:
        assert make is not None  # noqa: S101 - is_complete
        values = None if field.value is None else columns.records.field(field.value)
        stored = [getattr(group.aggregates, field.name) for group in groups]
        return make(layout, stored, values, columns.timestamps)

    def _changes(self, layout: Layout, fields: dict[str, RunningField], stored_rows: Numbers) -> ColumnChanges:
        """Return which results are emitted, and the places of the results that they replace."""
        places = np.arange(len(layout.order))
        is_asked, before = ~layout.is_stored, places - 1
        if self._options.emit is Emit.NET_CHANGE:
            is_asked = is_asked & (places == layout.ends[layout.segments])
            before = layout.starts[layout.segments]
        before = np.where(is_asked, before, 0)
        has_rows = ~layout.is_stored | (stored_rows[layout.segments] > 0)
        had_result = is_asked & has_rows[before]
        replaces = np.flatnonzero(had_result)
        emits = is_asked.copy()
        emits[replaces] = _are_other(fields, replaces, before[replaces])
        return ColumnChanges(layout, emits, before, had_result, has_result=np.ones(len(places), bool))

    def _records(
        self, layout: Layout, fields: dict[str, RunningField], columns: KeyedColumns
    ) -> Callable[[Numbers], pa.StructArray]:
        """Return a function that makes the results at some places."""
        decoded = [msgspec.json.decode(key) for key in columns.keys]
        types = list(columns.result_type)
        makers = dict(self._result.makers)
        of_keys = {
            field.name: pa.array([makers[field.name](key, 0, 0) for key in decoded], field.type)
            for field in types
            if field.name in makers
        }

        def records(places: Numbers) -> pa.StructArray:
            of_key = pa.array(layout.segments[places])
            arrays = [
                of_keys[field.name].take(of_key)
                if field.name in of_keys
                else of_type(fields[field.name].results(places), field.type)
                for field in types
            ]
            return pa.StructArray.from_arrays(arrays, fields=types)

        return records

    def _groups(
        self, layout: Layout, fields: dict[str, RunningField], stored_rows: Numbers, emitted_at: Numbers
    ) -> list[Any]:
        ends = layout.ends
        rows = (stored_rows + ends - layout.starts).tolist()
        states = [fields[field.name].states(ends) for field, _ in self._fields]
        make_aggregates = type(self._result.create().aggregates)
        aggregates = map(make_aggregates, *states) if states else (make_aggregates() for _ in rows)
        return list(map(self._group, rows, aggregates, emitted_at[ends].tolist()))


def _are_other(fields: dict[str, RunningField], places: Numbers, before: Numbers) -> Flags:
    """Return for each place whether its result is another one than that before."""
    differs = np.zeros(len(places), bool)
    for field in fields.values():
        if field.always_changes:
            return np.ones(len(places), bool)
        differs |= are_other(field.results(places), field.results(before))
    return differs
