"""Rows of some data files of a table."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final
from urllib.parse import unquote

import pyarrow as pa

from headrace.storage.files import partition_text
from headrace.storage.storage import Storage
from headrace.storage.table import Snapshot, typed_rows

_PARTITION: Final = "partition."


def rows_of_files(table: Snapshot, files: Collection[str], schema: pa.Schema, storage: Storage) -> pa.Table:
    """Return the rows of some data files of a table, whose paths are as `Snapshot.files` names them."""
    parts = [schema.empty_table()]
    for action in table.add_actions().to_pylist():
        path = unquote(action["path"])
        if path not in files:
            continue
        rows = storage.at(table.uri).parquet(path)
        for column, text in partition_of(action).items():
            if column in schema.names:
                value = pa.scalar(text, pa.string()).cast(schema.field(column).type)
                rows = rows.append_column(column, pa.repeat(value, len(rows)))
        parts.append(typed_rows(table.uri, rows, schema))
    return pa.concat_tables(parts)


def partition_of(action: Mapping[str, object]) -> dict[str, str | None]:
    """Return the value of each partition column of a file, as Delta's log writes it. `action` is a row of `Snapshot.add_actions`."""
    return {
        name.removeprefix(_PARTITION): partition_text(value)
        for name, value in action.items()
        if name.startswith(_PARTITION)
    }
