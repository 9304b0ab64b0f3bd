"""`headrace state get` and `scan`: live entries of keyed state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.commit.state_schemas import HISTORY_STATE
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.key_conditions import key_conditions
from headrace.readers.known_operators import WITH_STATE, check_operator
from headrace.readers.materialized import rows_as_entries
from headrace.readers.query import Rows, ask_once
from headrace.tables.last_rows import last_rows_sql
from headrace.tables.predicate import BeginsWith, Conditions, entries_of
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES


def get(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> Rows:
    """Return the live entries of a key, including the rows of a materializer.

    `key` is JSON, or a text key without quotes. A materializer's rows have the state `history`, and their sequence number as
    user key. Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
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
    """Return live entries of keys that begin with `prefix`, in key order. Raises `ConfigError` for an unknown operator."""
    check_operator(job, operator, WITH_STATE)
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
