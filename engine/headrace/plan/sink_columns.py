"""Columns of a stream as columns of a sink, without an object for each record."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.column_types import Column, columns_of
from headrace.plan.columns import sink_schema
from headrace.plan.value_rules import FIRST_TIME, LAST_TIME

_MILLISECONDS = pa.timestamp("ms", tz="UTC")


def sink_columns(rows: pa.StructArray, record: type[msgspec.Struct]) -> pa.Table | None:
    """Return records as rows of a sink: the same as `to_columns`.

    None where `to_columns` has to make them: for fields with parts, and where it would refuse a value.
    """
    columns = columns_of(record)
    if any(column.parts or not _fits(rows.field(column.name), column) for column in columns):
        return None
    arrays = [_in_sink(rows.field(column.name), column) for column in columns]
    return pa.Table.from_arrays(arrays, schema=sink_schema(record))


def _fits(values: pa.Array, column: Column) -> bool:
    if values.null_count and not column.nullable:
        return False
    if not column.is_time or not len(values):
        return True
    extremes = pc.min_max(values)
    least, largest = extremes["min"].as_py(), extremes["max"].as_py()
    return least is None or (least >= FIRST_TIME and largest <= LAST_TIME)


def _in_sink(values: pa.Array, column: Column) -> pa.Array:
    return values.cast(_MILLISECONDS).cast(column.sink_type) if column.is_time else values
