"""Entries that have expired, also under a TTL that a job only supposes.

`headrace state expired --ttl`: the effect that another TTL would have on a state. Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

import msgspec

from headrace.api.ttl import StateTtl
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.log.marks import live_savepoints
from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint, check_operator, check_state
from headrace.readers.query import Rows, ask_once, timestamp
from headrace.tables.expiry import dead_sql
from headrace.tables.live_rows import last_rows_sql
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.view import entries_of

_HOUR = 3_600_000
_SHOWN = "operator, state, key, namespace, user_key, last_access, expires_at, ttl_ms, checkpoint_id"


class ExpiryCompaction(msgspec.Struct, frozen=True):
    """Compaction that dropped expired entries. From `files_until` on, a vacuum removes the files that had them."""

    checkpoint_id: int
    at: datetime | None
    entries: int
    files_until: datetime | None


def stored_entries_sql() -> str:
    """Return SQL for the stored entries of keyed_state, also expired ones, over their changes `raw`."""
    return last_rows_sql("raw", STATE_TABLES[KEYED_STATE])


def expired_states(job: JobAtCheckpoint) -> Rows:
    """Return for each operator and state the stored entries that have expired: entries, keys, bytes, and the oldest stamp."""
    query = f"""
        SELECT operator, state, count(*) AS entries, count(DISTINCT key) AS keys,
               sum(strlen(value))::BIGINT AS bytes, min(last_access) AS oldest
        FROM ({stored_entries_sql()}) WHERE {job.ttl.dead_sql()} GROUP BY ALL ORDER BY ALL"""  # noqa: S608 - our own SQL
    return ask_once(job.changes(KEYED_STATE), query, table=KEYED_STATE)


def expired_entries(
    job: JobAtCheckpoint, operator: str | None = None, state: str | None = None, limit: int = 50
) -> Rows:
    """Return stored entries that have expired, without their values, the oldest stamps first.

    Raises `ConfigError` for an unknown operator or state.
    """
    check_operator(job, operator, WITH_STATE)
    check_state(job, operator, state)
    query = f"""
        SELECT {_SHOWN} FROM ({stored_entries_sql()}) WHERE {job.ttl.dead_sql()}
        ORDER BY last_access, operator, state, key, namespace, user_key LIMIT ?"""  # noqa: S608 - our own SQL
    entries = ask_once(job.changes(KEYED_STATE, entries_of(operator, states=state)), query, [limit], table=KEYED_STATE)
    return job.ttl.with_deaths(entries)


def expiry_compactions(job: JobAtCheckpoint) -> Iterator[ExpiryCompaction]:
    """Yield the compactions that dropped expired entries, newest first."""
    retention = job.config.retention.hours * _HOUR
    for compaction in reversed(job.log.checkpoints):
        entries = compaction.metrics.get("expired", 0)
        if compaction.kind is not Kind.COMPACTION or not entries:
            continue
        # The checkpoint before the compaction is the last one that needs the files.
        before = job.log.lineage.before(compaction) or compaction
        yield ExpiryCompaction(
            compaction.checkpoint_id,
            timestamp(compaction.committed_at),
            entries,
            timestamp(before.committed_at + retention),
        )


def savepoints(job: JobAtCheckpoint) -> list[str]:
    """Return the names of live savepoints: each keeps its files, also those that compactions have replaced since."""
    return [savepoint.name or str(savepoint.checkpoint_id) for savepoint in live_savepoints(job.log.checkpoints)]


class SupposedTtl(msgspec.Struct, frozen=True):
    """Immediate effect of another TTL on a state.

    `keys_that_go` would have no entry left. `entries_that_come_back` have expired now, but are still stored.
    """

    entries: int
    keys: int
    entries_that_go: int
    keys_that_go: int
    entries_that_come_back: int
    was_off: bool
    """True: the state has no TTL now."""


def suppose_ttl(job: JobAtCheckpoint, name: str, ttl: timedelta | None) -> SupposedTtl:
    """Return the effect of declaring another `ttl` for the state `operator.state` (None: no TTL), with all else unchanged."""
    declared = job.ttl.declared()[name]
    operator, _, state = name.partition(".")
    now, after = (dead_sql(job.ttl.expiries_of({name: applied})) for applied in (declared, _with_ttl(declared, ttl)))
    query = f"""
        SELECT count(*) FILTER (NOT now) AS entries, count(DISTINCT key) FILTER (NOT now) AS keys,
               count(*) FILTER (NOT now AND after) AS entries_that_go,
               count(DISTINCT key) FILTER (NOT now) - count(DISTINCT key) FILTER (NOT now AND NOT after) AS keys_that_go,
               count(*) FILTER (now AND NOT after) AS entries_that_come_back
        FROM (SELECT key, {now} AS now, {after} AS after FROM ({stored_entries_sql()}))"""  # noqa: S608 - our own SQL
    (counts,) = ask_once(job.changes(KEYED_STATE, entries_of(operator, states=state)), query).dicts()
    return SupposedTtl(**counts, was_off=declared is None)


def declared_name(job: JobAtCheckpoint, operator: str | None, state: str | None) -> str:
    """Return the name `operator.state` of the declared state with this operator and state (None: any).

    Raises `ConfigError` unless exactly one declared state fits.
    """
    declared = sorted(job.ttl.declared())
    names = [
        name
        for name in declared
        if (operator is None or name.startswith(f"{operator}.")) and (state is None or name.endswith(f".{state}"))
    ]
    if len(names) != 1:
        known = ", ".join(declared) or "none"
        msg = f"name one state, with --state and if necessary --operator (the job declares: {known})"
        raise ConfigError(msg)
    return names[0]


def _with_ttl(declared: StateTtl | None, ttl: timedelta | None) -> StateTtl | None:
    if ttl is None:
        return None
    return StateTtl(ttl) if declared is None else replace(declared, ttl=ttl)
