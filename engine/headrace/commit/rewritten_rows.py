"""Rewriting rows of state tables as new changes: removed, under another operator's name, or in other key groups."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from headrace.state.key_groups import key_group
from headrace.tables.schemas import ALL_TABLES


def removed(table: str, rows: pa.Table, checkpoint_id: int) -> pa.Table:
    """Return rows that remove the entries of live `rows`. They keep only the columns that name the entry."""
    entry = ALL_TABLES[table].entry
    for column in rows.schema:
        if column.name not in entry and column.nullable:
            rows = _with(rows, column.name, pa.nulls(rows.num_rows, column.type))
    return _with_values(rows, checkpoint_id=checkpoint_id, deleted=True)


def under_operator(rows: pa.Table, operator: str, checkpoint_id: int) -> pa.Table:
    """Return live rows as entries of another operator."""
    return _with_values(rows, operator=operator, checkpoint_id=checkpoint_id)


def in_key_groups(rows: pa.Table, max_parallelism: int) -> pa.Table:
    """Return rows with the key groups of their keys for a new number of groups. Their checkpoint ids stay."""
    keys = rows["key"].combine_chunks().dictionary_encode()
    groups = pa.array([key_group(key.encode(), max_parallelism) for key in keys.dictionary.to_pylist()], pa.int32())
    return _with(rows, "key_group", groups.take(keys.indices))


def _with_values(rows: pa.Table, **values: Any) -> pa.Table:
    for name, value in values.items():
        kind = rows.schema.field(name).type
        rows = _with(rows, name, pa.repeat(pa.scalar(value, kind), rows.num_rows))
    return rows


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(name), column)
