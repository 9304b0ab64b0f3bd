"""Places of a source's rows in arrival order.

Latest event time that a micro-batch accepts: rows further ahead of its begin are bad rows (`max_ahead`).
"""

from __future__ import annotations

import sys
from array import array
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SourceNode
from headrace.records.column_types import Column, columns_of
from headrace.records.defaults import default_for_null
from headrace.records.foreign_values import sortable
from headrace.records.source_values import fitting

_ORDER_BYTES = 8


def order_column(ordinals: pa.Int64Array) -> pa.BinaryArray:
    """Return the place of the record at each ordinal, as `records.order.record_order` makes it."""
    places = array("q")
    places.frombytes(ordinals.buffers()[1])
    places = places[ordinals.offset : ordinals.offset + len(ordinals)]
    if sys.byteorder == "little":
        places.byteswap()
    kind = pa.binary(_ORDER_BYTES)
    return pa.Array.from_buffers(kind, len(ordinals), [None, pa.py_buffer(places)]).cast(pa.binary())


def arrival_order(table: pa.Table, source: SourceNode) -> pa.Array | None:
    """Return the indices of a table's rows in arrival order, by the `order_by` of their source; None: they are in order already.

    A null is in order as the default that it means; nulls that are null come last. A column that the table lacks does not
    affect the order: all rows have the default of the field. A column of a type without order, such as a list, does not affect
    it either: its values are refused. Raises `pa.ArrowException` for a field that is itself a list or a map.
    """
    fields = {column.name: column for column in columns_of(source.record, source.names)}
    columns = {
        name: sortable(_comparable(table[fields[name].stored], fields[name]))
        for name in source.order_by
        if fields[name].stored in table.schema.names
    }
    ordered = {name: values for name, values in columns.items() if fields[name].parts or _has_order(values)}
    by = {name: _with_default(values, source, fields[name]) for name, values in ordered.items()}
    if not by:
        return None
    return pc.sort_indices(pa.table(by), [(name, "ascending") for name in by])


def _comparable(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    """Return values whose stored form sorts in another order than the field's, such as texts of times, as the field has them."""
    kind = values.type
    return values if column.kind.sorts_like(kind) or not column.kind.takes(kind) else fitting(values, column)[0]


def _with_default(values: pa.ChunkedArray, source: SourceNode, column: Column) -> pa.ChunkedArray:
    """Return values with the default in place of nulls that mean it; as they are if their type cannot hold it."""
    default = default_for_null(source.record, column) if values.null_count else None
    if default is None:
        return values
    try:
        own = column.kind.as_stored(pa.array([default.as_py()], column.type), values.type)
        return pc.fill_null(values, own[0])
    except pa.ArrowException:
        return values


def _has_order(values: pa.ChunkedArray) -> bool:
    """Return whether Arrow can sort by these values. It checks a struct's fields only if there is a row."""
    try:
        pc.sort_indices(pa.table({"values": values.slice(0, 1)}), [("values", "ascending")])
    except pa.ArrowException:
        return False
    return True


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


class EventTimeLimit(msgspec.Struct, frozen=True):
    """Limit of event times in one micro-batch: at most `max_ahead` (ms) after its recorded begin, `began_at` (ms)."""

    began_at: int
    max_ahead: int
    is_strict: bool = False
    """True: a row beyond the limit fails the run; false: it goes to the quarantine."""

    @property
    def latest(self) -> int:
        """Return the latest event time that is accepted (ms)."""
        return self.began_at + self.max_ahead

    def problem(self, time: int) -> str:
        """Return why an event time (ms) beyond the limit is refused: a text that follows the name of its field."""
        ahead, allowed = timedelta(milliseconds=time - self.began_at), timedelta(milliseconds=self.max_ahead)
        return (
            f"is {_shown(time)}, {ahead} ahead of the micro-batch, which began at {_shown(self.began_at)}: the source's max_ahead is "
            f"{allowed}"
        )


def limit_of(began_at: int, max_ahead: timedelta, *, is_strict: bool = False) -> EventTimeLimit:
    """Return the limit of a micro-batch that began at `began_at` (ms)."""
    return EventTimeLimit(began_at, max_ahead // _MILLISECOND, is_strict)


def _shown(time: int) -> str:
    """Return a time as ISO 8601 in UTC; as milliseconds where it is outside the years 1 to 9999."""
    try:
        timestamp = _EPOCH + time * _MILLISECOND
    except OverflowError:
        return f"{time} ms after 1970"
    return timestamp.isoformat(timespec="milliseconds" if time % 1000 else "seconds").replace("+00:00", "Z")
