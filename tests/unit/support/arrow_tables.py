"""State tables as rows in memory: the input of a rebuild, without files."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from headrace.storage.predicate import rows_that_meet
from headrace.tables.schemas import STATE_TABLES
from headrace.tables.view import TableView


@dataclass(frozen=True)
class RowsSnapshot:
    """The part of a `Snapshot` that reading needs."""

    rows: pa.Table
    uri: str = "memory"
    version: int = 0

    def read(self, schema, *, columns=None, conditions=()):
        return rows_that_meet(conditions, self.rows).select(columns or schema.names)

    def add_actions(self):
        return pa.table({"path": ["rows"], "size_bytes": [self.rows.nbytes], "num_records": [self.rows.num_rows]})


def views_of(tables):
    """Return a function that opens the tables of a mapping from names to lists of Arrow tables."""
    return lambda name: TableView(STATE_TABLES[name], RowsSnapshot(pa.concat_tables(tables[name])))
