"""`headrace state expired`: expired entries that are still stored, and the time at which their bytes are removed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from headrace.commit.checkpoint import Kind
from headrace.commit.savepoints import live_savepoints
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.known_operators import WITH_STATE, check_operator
from headrace.readers.query import Rows, ask_once, moment
from headrace.tables.last_rows import last_rows_sql
from headrace.tables.predicate import entries_of
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES

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

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
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
            compaction.checkpoint_id, moment(compaction.committed_at), entries, moment(before.committed_at + retention)
        )


def savepoints(job: JobAtCheckpoint) -> list[str]:
    """Return the names of live savepoints: each keeps its files, also those that compactions have replaced since."""
    return [savepoint.name or str(savepoint.checkpoint_id) for savepoint in live_savepoints(job.log.checkpoints)]
