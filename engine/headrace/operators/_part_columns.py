"""Parts of windows over columns: what `ResultRecord.add` makes of records without retractions, bit for bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import BundledRecord, ChangedValue, KeyedColumns
from headrace.operators._accumulators import Accumulator, Change, CountedAccumulator, DistinctAccumulator
from headrace.operators._result_record import Additions, AggregatedField, ResultRecord, grouped
from headrace.operators._running_fields import FieldInColumns, Layout, NotInColumnsError, is_plain, running_field
from headrace.operators._value_types import BundledValues
from headrace.operators._window_pieces import ColumnPieces, copied, stays

if TYPE_CHECKING:
    from headrace.api.records import Struct

_record_of = attrgetter("record")

Masks = Mapping[int, pa.BooleanArray]
"""Which records a function `where` takes, by the `id` of the function."""


class PartColumns:
    """Adds records to parts: field by field where columns can compute it, else key by key."""

    def __init__(self, result: ResultRecord) -> None:
        """Take the result."""
        self._result = result
        makers = ((field, _in_columns(field, result.takes)) for field in result.fields)
        self._computed = [(field, make) for field, make in makers if make is not None]
        computed = {field.name for field, _ in self._computed}
        self._others = _OtherFields.of(field for field in result.fields if field.name not in computed)

    def parts(self, columns: KeyedColumns) -> StoredParts:
        """Return the part of each key with the records added."""
        parts = [self._result.create() if part is None else part for part in columns.values]
        if any(part.rows < 0 for part in parts):
            raise NotInColumnsError
        layout = Layout.of(columns.key_numbers.to_numpy().astype(np.int64), len(parts))
        added = _Added(self._result, self._others, parts, columns)
        states = self._computed_states(layout, parts, columns) | added.states
        rows = np.array([part.rows for part in parts], np.int64) + layout.ends - layout.starts
        of_parts = [states[field.name] for field in self._result.fields]
        make_aggregates = type(self._result.create().aggregates)
        aggregates = map(make_aggregates, *of_parts) if of_parts else (make_aggregates() for _ in parts)
        counts = (added.moved, [part.removed for part in parts]) if self._result.counts_moves else ()
        return StoredParts(list(map(self._result.slice, rows.tolist(), aggregates, *counts)), added.pieces)

    def _computed_states(self, layout: Layout, parts: Sequence[Any], columns: KeyedColumns) -> dict[str, list[Any]]:
        """Return the states of the fields that columns can compute, by name."""
        masks, states = self._masks(columns), {}
        for field, make in self._computed:
            stored = [getattr(part.aggregates, field.name) for part in parts]
            running = make(layout, stored, _values(field, columns.records, masks), columns.timestamps)
            states[field.name] = running.states(layout.ends)
        return states

    def _masks(self, columns: KeyedColumns) -> Masks:
        wheres = {id(field.where): field.where for field, _ in self._computed if field.where is not None}
        takes: dict[int, list[bool]] = {name: [] for name in wheres}
        for records in columns.bundled() if wheres else ():
            objects = [*map(_record_of, records)]
            for name, where in wheres.items():
                takes[name] += map(bool, map(where, objects))
        return {name: pa.array(taken, pa.bool_()) for name, taken in takes.items()}


class StoredParts(NamedTuple):
    """Parts of keys with the records added: a row for each of the keys, and the changed pieces beside the rows."""

    rows: list[Any]
    pieces: Iterable[ChangedValue] = ()


@dataclass(frozen=True, slots=True)
class _OtherFields:
    """Fields that columns cannot compute."""

    names: Sequence[str]
    all: Additions
    counted: Additions
    """Those whose values may move to pieces."""
    uncounted: Additions

    @classmethod
    def of(cls, fields: Iterable[AggregatedField]) -> Self:
        """Sort the fields."""
        known = list(fields)
        counted = [field for field in known if isinstance(field.accumulator, CountedAccumulator)]
        uncounted = [field for field in known if field not in counted]
        return cls([field.name for field in known], grouped(known), grouped(counted), grouped(uncounted))


class _Added:
    """States of the fields that columns cannot compute, with the records of each key added."""

    def __init__(self, result: ResultRecord, fields: _OtherFields, parts: Sequence[Any], columns: KeyedColumns) -> None:
        """Add the records to the parts, which do not change."""
        self._fields = fields
        self._namespaces = columns.namespaces
        self._pieces: ColumnPieces[int] | None = None
        if result.pieces is not None:
            self._pieces = ColumnPieces(result.pieces, columns.read)
        self.moved = [part.moved for part in parts] if result.counts_moves else []
        """How often values of each part have moved to a piece, where that is counted."""
        self.states: dict[str, list[Any]] = {name: [] for name in fields.names}
        """The state of each key, by the name of the field."""
        for key, (part, records) in enumerate(zip(parts, by_key(columns), strict=True)) if fields.names else ():
            for name, state in self._of_key(key, part, records):
                self.states[name].append(state)

    @property
    def pieces(self) -> Iterable[ChangedValue]:
        """Return the pieces that have changed."""
        changed = {} if self._pieces is None else self._pieces.changed
        return [ChangedValue(key, name, piece, at) for (key, name), (piece, at) in changed.items()]

    def _of_key(self, key: int, part: Any, records: Sequence[BundledRecord]) -> Iterator[tuple[str, Any]]:
        """Yield the states of one of the keys by name."""
        if self._pieces is None or stays(part, len(records)):
            yield from _with_records(part.aggregates, self._fields.all, records)
            return
        yield from _with_records(part.aggregates, self._fields.uncounted, records)
        row, counted = copied(part), {}
        for chunk in self._pieces.chunks(key, self._namespaces[key], row, records):
            counted = dict(_with_records(row.aggregates, self._fields.counted, chunk))
            for name, state in counted.items():
                setattr(row.aggregates, name, state)
        self.moved[key] = row.moved
        yield from counted.items()


def _with_records(stored: Any, fields: Additions, records: Sequence[BundledRecord]) -> Iterator[tuple[str, Any]]:
    """Yield the states of fields with the records of one key added, by name."""
    for where, reads in fields:
        chosen = records if where is None else [record for record in records if where(record.record)]
        for read, accumulators in reads:
            values = BundledValues(read, chosen)
            for name, accumulator in accumulators:
                yield name, _with_values(accumulator, getattr(stored, name), values)


MOST_OBJECTS: Final = 500_000
"""Number of records above which they are not all in memory as objects at once, but one by one."""


def objects_of(columns: KeyedColumns) -> list[BundledRecord]:
    """Return the records as objects. Raises `NotInColumnsError` for too many records."""
    if len(columns.timestamps) > MOST_OBJECTS:
        raise NotInColumnsError
    return [*chain.from_iterable(columns.bundled())]


def by_key(columns: KeyedColumns) -> Iterator[list[BundledRecord]]:
    """Yield the records of each key, in arrival order. Raises `NotInColumnsError` for too many records."""
    records = objects_of(columns)
    numbers = columns.key_numbers.to_numpy()
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(1, len(columns.keys)))
    for places in np.split(order, ends):
        yield [records[place] for place in places.tolist()]


def _in_columns(field: AggregatedField, takes: type[Struct]) -> FieldInColumns | None:
    """Return what computes a field from columns; None if it needs records. A condition gives the records that count."""
    make = running_field(replace(field, where=None))
    if make is None or field.value is None:
        return make
    is_made = hasattr(takes, "__post_init__")
    read = next(known for known in msgspec.structs.fields(takes) if known.name == field.value)
    return make if is_plain(read) and not is_made else None


def _values(field: AggregatedField, records: pa.StructArray, masks: Masks) -> pa.Array | None:
    """Return the values that a field takes of the records; null for none."""
    values = records.field(field.value) if isinstance(field.value, str) else None
    if field.where is None:
        return values
    return pc.if_else(masks[id(field.where)], True if values is None else values, None)


def _with_values(accumulator: Accumulator, stored: Any, values: BundledValues) -> Any:
    """Return a state with values added. The stored one does not change."""
    if not values.all:
        return stored
    state = {**stored} if type(accumulator) is DistinctAccumulator else deepcopy(stored)
    together = accumulator.together(state, values)
    if together is not None:
        return together()
    for record, value in zip(values.records, values.all, strict=True):
        state = accumulator.add(state, value, Change(record.record, record.timestamp))
    return state
