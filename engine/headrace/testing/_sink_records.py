"""Stored rows, and those of a sink as records, as they were emitted: unlike a source, a sink may contain NaN."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

from headrace.records.column_types import Names, columns_of
from headrace.records.record_columns import build_records, column_values
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError


def stored_rows(uri: str) -> pa.Table:
    """Return the rows of the latest version of a table; no columns where there is no table."""
    try:
        return pa.table(Storage(uri).table().latest().stream())
    except TableMissingError:
        return pa.table({})


def records_of(table: pa.Table, record: type[msgspec.Struct], names: Names = ()) -> list[Any]:
    """Return the records in the rows of a sink's table, whose columns have these `names`; none for a table without columns."""
    if not table.num_columns:
        return []
    columns = columns_of(record, names)
    arrays = (column.kind.from_sink(table[column.stored]) for column in columns)
    values = [column_values(array.combine_chunks(), column) for array, column in zip(arrays, columns, strict=True)]
    return [*build_records(record, [column.name for column in columns], zip(*values, strict=True))]
