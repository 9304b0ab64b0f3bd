"""Rewriting of a stored operator's rows, range by range of key groups.

Rewriting rows of state tables as new changes: removed, under another operator's name, or in other key groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.edits.edit import JobView
from headrace.errors import ConfigError
from headrace.plan.stages import Plan, waits_of
from headrace.state.key_columns import key_group_column
from headrace.tables.schemas import ALL_TABLES, QUARANTINE, tables_in
from headrace.tables.view import count_rows


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
    keys = rows["key"].combine_chunks().cast(pa.binary())
    return _with(rows, "key_group", key_group_column(keys, max_parallelism))


def _with_values(rows: pa.Table, **values: Any) -> pa.Table:
    for name, value in values.items():
        kind = rows.schema.field(name).type
        rows = _with(rows, name, pa.repeat(pa.scalar(value, kind), rows.num_rows))
    return rows


def _with(rows: pa.Table, name: str, column: pa.Array) -> pa.Table:
    place = rows.schema.get_field_index(name)
    return rows.set_column(place, rows.schema.field(name), column)


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """Stored data of an operator: number of live rows by table, without zeros, and its recorded states."""

    name: str
    rows: dict[str, int]
    states: tuple[str, ...]

    @property
    def set_aside(self) -> int:
        """Return the number of its rows in `quarantine`, which are input and no state."""
        return self.rows.get(QUARANTINE, 0)

    @property
    def state_rows(self) -> dict[str, int]:
        """Return the number of its rows in each of the other tables."""
        return {table: count for table, count in self.rows.items() if table != QUARANTINE}


def stored_operator(job: JobView, operator: str) -> StoredOperator:
    """Return the stored data of an operator. Raises `ConfigError` when it has none except rows in quarantine."""
    last, name = job.last, job.config.job
    if operator in last.sources:
        raise ConfigError(f"'{operator}' is a source of job '{name}', which has no state: name a keyed operator")
    states = tuple(sorted(last.state_schemas.get(operator, {})))
    rows = count_rows(job.view, operator, last.max_parallelism, tables_in(last.versions))
    stored = StoredOperator(operator, rows, states)
    if not stored.state_rows and not states:
        aside = f" but what it set aside (headrace quarantine {name})" if stored.set_aside else ""
        msg = (
            f"nothing is stored of an operator '{operator}'{aside}; 'headrace state list {name}' shows what is. "
            "Nothing was changed."
        )
        raise ConfigError(msg)
    return stored


def declared_operators(plan: Plan) -> set[str]:
    """Return the names of the operators that may have state or elements that wait."""
    return {stage.name for stage in plan.keyed} | {wait.name for wait in waits_of(plan)}
