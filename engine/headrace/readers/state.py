"""Entries of keyed state, a list of states, and rows of the materializer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.log.declared import HISTORY_STATE, StateSchemas
from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint, check_operator, check_state, key_conditions
from headrace.readers.query import Rows, ask_once
from headrace.readers.ttl import AGE_COLUMNS
from headrace.readers.waiting import NOT_INTERNAL
from headrace.state.timers import DOMAINS
from headrace.storage.predicate import BeginsWith, Conditions
from headrace.tables.live_rows import last_rows_sql, last_values_sql
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, STATE_TABLES, TIMERS
from headrace.tables.view import entries_of

_IN_ORDER = "ORDER BY operator, sequence_number"
_AS_ENTRY = (
    f"operator, key_group, key, '{HISTORY_STATE}' AS state, NULL AS namespace, "
    'sequence_number::VARCHAR AS user_key, "row" AS value, inserted_at AS last_access, NULL AS expires_at, NULL AS ttl_ms, '
    "checkpoint_id"
)


def rows_of_key(job: JobAtCheckpoint, key: str, operator: str | None = None) -> Rows:
    """Return the rows in the history of a primary key, in order. `key` is JSON, or a text key without quotes.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
    conditions = [*key_conditions(key, job.checkpoint.max_parallelism), *entries_of(operator)]
    columns = 'operator, key, sequence_number, row_kind, inserted_at, upsert_key, checkpoint_id, "row"'
    return job.live_rows(MATERIALIZER_HISTORY, conditions, _IN_ORDER, columns=columns)


def rows_as_entries(job: JobAtCheckpoint, conditions: Conditions) -> Rows:
    """Return rows of histories in order, with the columns of keyed_state."""
    columns = f"{_AS_ENTRY}, false AS expired" if job.with_expired else _AS_ENTRY
    return job.live_rows(MATERIALIZER_HISTORY, conditions, _IN_ORDER, columns=columns)


def largest_histories(job: JobAtCheckpoint, operator: str | None = None, limit: int = 20) -> Rows:
    """Return the keys with the longest histories, longest first: rows, bytes, first and last insertion.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
    table = STATE_TABLES[MATERIALIZER_HISTORY]
    columns = ["operator", "key", "sequence_number", "row", "inserted_at", "checkpoint_id", "deleted"]
    entries = last_values_sql("raw", table, {"bytes": 'strlen("row")', "inserted_at": "inserted_at"})
    return ask_once(
        job.changes(MATERIALIZER_HISTORY, entries_of(operator), columns=columns),
        f"""SELECT operator, key, count(*) AS rows, sum(bytes)::BIGINT AS bytes, min(inserted_at) AS first_insertion,
                   max(inserted_at) AS last_insertion
            FROM ({entries}) GROUP BY ALL ORDER BY rows DESC, operator, key LIMIT ?""",  # noqa: S608 - our own names
        [limit],
        table=MATERIALIZER_HISTORY,
    )


def largest_keys(job: JobAtCheckpoint, operator: str | None = None, limit: int = 20) -> Rows:
    """Return the keys with most bytes of values in a keyed state, largest first: live entries and bytes.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
    return _first_keys(job, entries_of(operator), "bytes", limit)


def fullest_keys(job: JobAtCheckpoint, operator: str, state: str, limit: int = 20) -> Rows:
    """Return the keys with most entries in a state of an operator, as `largest_keys`."""
    return _first_keys(job, entries_of(operator, states=state), "entries", limit)


def _first_keys(job: JobAtCheckpoint, conditions: Conditions, by: str, limit: int) -> Rows:
    """Return keys with their live entries and bytes, those with most of `by` first."""
    table = STATE_TABLES[KEYED_STATE]
    values = {"bytes": 'strlen("value")', **{age: age for age in AGE_COLUMNS}}
    entries = last_values_sql("raw", table, values, unless=job.hidden_sql(KEYED_STATE))
    columns = sorted({*table.entry, "value", "checkpoint_id", "deleted", *AGE_COLUMNS} - {"key_group"})
    query = f"""SELECT operator, state, key, count(*) AS entries, sum(coalesce(bytes, 0))::BIGINT AS bytes
                FROM ({entries}) GROUP BY ALL ORDER BY {by} DESC, operator, state, key LIMIT ?"""  # noqa: S608 - our own names
    parts = [  # a key is in one part only
        ask_once(job.changes(KEYED_STATE, [*conditions, *part], columns=columns), query, [limit], table=KEYED_STATE)
        for part in job.ranges(KEYED_STATE)
    ]
    most = parts[0].columns.index(by)
    rows = sorted((row for part in parts for row in part.rows), key=lambda row: (-row[most], row[:3]))
    return Rows(parts[0].columns, rows[:limit])


def get(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> Rows:
    """Return the live entries of a key, including the rows of a materializer.

    `key` is JSON, or a text key without quotes. A materializer's rows have the state `history`, and their sequence number as
    user key. Raises `ConfigError` for an unknown operator or state.
    """
    check_operator(job, operator, WITH_STATE)
    check_state(job, operator, state)
    conditions = [*key_conditions(key, job.checkpoint.max_parallelism), *entries_of(operator)]
    order = "ORDER BY operator, state, namespace, user_key"
    entries = _entries(job, [*conditions, *entries_of(states=state)], order)
    if state not in {None, HISTORY_STATE}:
        return entries
    return Rows(entries.columns, [*entries.rows, *rows_as_entries(job, conditions).rows])


def count_expired(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> int:
    """Return the number of entries of a key that have expired and are still stored."""
    conditions = [*key_conditions(key, job.checkpoint.max_parallelism), *entries_of(operator, states=state)]
    query = f"SELECT count(*) FROM ({last_rows_sql('raw', STATE_TABLES[KEYED_STATE])}) WHERE {job.ttl.dead_sql()}"  # noqa: S608 - our own SQL
    ((expired,),) = ask_once(job.changes(KEYED_STATE, conditions), query, table=KEYED_STATE).rows
    return int(expired)


def scan(
    job: JobAtCheckpoint,
    operator: str | None = None,
    state: str | None = None,
    prefix: str | None = None,
    limit: int = 50,
) -> Rows:
    """Return live entries of keys that begin with `prefix`, in key order. Raises `ConfigError` for an unknown operator or state."""
    check_operator(job, operator, WITH_STATE)
    check_state(job, operator, state)
    conditions = _scanned(operator, state, prefix)
    order = f"ORDER BY {', '.join(_ORDER)} LIMIT ?"
    parts = [_entries(job, [*conditions, *part], order, [limit]) for part in job.ranges(KEYED_STATE)]
    columns = parts[0].columns
    places = [columns.index(name) for name in _ORDER]
    rows = sorted(
        (row for part in parts for row in part.rows), key=lambda row: [_last_if_none(row[at]) for at in places]
    )
    return Rows(columns, rows[:limit])


def count_scanned(
    job: JobAtCheckpoint, operator: str | None = None, state: str | None = None, prefix: str | None = None
) -> int:
    """Count the entries that `scan` returns without a limit."""
    return job.count_live(KEYED_STATE, _scanned(operator, state, prefix))


def _scanned(operator: str | None, state: str | None, prefix: str | None) -> Conditions:
    conditions = entries_of(operator, states=state)
    if prefix is not None:
        conditions.append(BeginsWith("key", (prefix, f'"{prefix}')))
    return conditions


_ORDER = ("operator", "state", "key", "namespace", "user_key")


def _last_if_none(value: str | None) -> tuple[bool, str]:
    return value is None, "" if value is None else value


def _entries(job: JobAtCheckpoint, conditions: Conditions, order: str, parameters: Sequence[Any] = ()) -> Rows:
    """Return rows of keyed_state; with a column `expired` if expired rows are shown."""
    columns = f"*, {job.ttl.dead_sql()} AS expired" if job.with_expired else "*"
    return job.ttl.with_deaths(job.live_rows(KEYED_STATE, conditions, order, parameters, columns=columns))


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
    return _with_types(Rows(parts[0].columns, rows), job.checkpoint.state_schemas)


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
