"""`headrace state list`: the number of live entries of each state, with its kind and type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.commit.state_schemas import HISTORY_STATE, StateSchemas
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.job_ttl import AGE_COLUMNS
from headrace.readers.query import Rows, ask_once
from headrace.readers.timers import NOT_INTERNAL
from headrace.state.timer_service import DOMAINS
from headrace.tables.last_rows import last_values_sql
from headrace.tables.predicate import Conditions
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, STATE_TABLES, TIMERS


def list_states(job: JobAtCheckpoint, *, internal: bool = False) -> Rows:
    """Return for each operator and state its live entries, keys, bytes, last change, kind and type.

    With `internal`, include the engine's own timers. Values may be stored in several types; the newest one is returned. State
    of releases that recorded no types has neither kind nor type.
    """
    parts = [
        _count(job, KEYED_STATE, "state", "value"),
        _count(job, TIMERS, "domain", "domain", [] if internal else [NOT_INTERNAL]),
        _count(job, MATERIALIZER_HISTORY, f"'{HISTORY_STATE}'", "row"),
    ]
    rows = sorted(row for part in parts for row in part.rows)
    return _with_types(Rows(parts[0].columns, rows), job.log.state_schemas(job.checkpoint) or {})


def _count(job: JobAtCheckpoint, name: str, state: str, size: str, conditions: Conditions = ()) -> Rows:
    table = STATE_TABLES[name]
    ages = AGE_COLUMNS if name == KEYED_STATE else ()
    values = {"bytes": f'strlen("{size}")', "changed": "checkpoint_id", **{age: age for age in ages}}
    entries = last_values_sql("raw", table, values, unless=job.hidden_sql(name))
    columns = {*table.entry, size, "checkpoint_id", "deleted", *ages} - {"key_group"}
    query = f"""SELECT operator, {state} AS state, count(*) AS entries, count(DISTINCT key) AS keys,
                       sum(coalesce(bytes, 0))::BIGINT AS bytes, max(changed) AS last_change
                FROM ({entries}) GROUP BY ALL"""  # noqa: S608 - our own names of columns, and a number
    parts = [
        ask_once(job.changes(name, [*conditions, *part], columns=sorted(columns)), query, table=name)
        for part in job.ranges(name)
    ]
    return Rows(parts[0].columns, _added([row for part in parts for row in part.rows]))


def _added(counts: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return one row for each operator and state: a key is in one part only."""
    added: dict[tuple[str, str], tuple[Any, ...]] = {}
    for operator, state, entries, keys, size, changed in counts:
        _, _, more_entries, more_keys, more_size, later = added.get((operator, state), (None, None, 0, 0, 0, changed))
        sums = (entries + more_entries, keys + more_keys, size + more_size)
        added[operator, state] = (operator, state, *sums, max(changed, later))
    return [*added.values()]


def _with_types(states: Rows, schemas: StateSchemas) -> Rows:
    """Return `states` with two more columns: `kind` after operator and state, and `type` at the end."""
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
