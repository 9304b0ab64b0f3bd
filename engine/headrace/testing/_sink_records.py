"""Rows of a sink as records, as they were emitted: unlike a source, a sink may contain NaN."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headrace.records.column_types import columns_of
from headrace.records.record_columns import build_records, column_values


def records_of(table: pa.Table, record: type[msgspec.Struct]) -> list[Any]:
    """Return the records in the rows of a sink's table; none for a table without columns."""
    if not table.num_columns:
        return []
    columns = columns_of(record)
    arrays = (table[column.name].cast(_with_milliseconds(column.sink_type)).cast(column.type) for column in columns)
    values = [column_values(array.combine_chunks(), column) for array, column in zip(arrays, columns, strict=True)]
    return [*build_records(record, [column.name for column in columns], zip(*values, strict=True))]


def _with_milliseconds(kind: pa.DataType) -> pa.DataType:
    """Return a type of a sink with times in milliseconds: as whole numbers they are the times of records."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", tz=kind.tz)
    if pa.types.is_list(kind):
        return pa.list_(_with_milliseconds(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _with_milliseconds(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_with_milliseconds(field.type)) for field in kind])
    return kind
