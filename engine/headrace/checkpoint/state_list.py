"""Kinds and types beside what is stored."""

from __future__ import annotations

from headrace.checkpoint._query import Rows
from headrace.checkpoint.state_schemas import StateSchemas
from headrace.state.timer_service import DOMAINS


def with_types(states: Rows, schemas: StateSchemas) -> Rows:
    """`states`, whose rows begin with operator and state, with two more columns: `kind` behind these two, and `type` at the end."""
    columns = [*states.columns[:2], "kind", *states.columns[2:], "type"]
    rows = [(*row[:2], kind, *row[2:], type_) for row in states.rows for kind, type_ in [_of(schemas, row[0], row[1])]]
    return Rows(columns, rows)


def _of(schemas: StateSchemas, operator: str, state: str) -> tuple[str | None, str | None]:
    if state in DOMAINS:
        return "internal timers" if DOMAINS[state].is_internal else "timers", None
    schema = schemas.get(operator, {}).get(state)
    if schema is None:
        return None, None
    return f"{schema.kind}, removed" if schema.removed else schema.kind, str(schema)
