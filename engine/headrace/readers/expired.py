"""`headrace state expired`: what has expired and is still stored, and when its bytes are gone."""

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
    """A compaction that dropped expired entries, and from when on a vacuum removes the files that had them."""

    checkpoint_id: int
    at: datetime | None
    entries: int
    files_until: datetime | None


def stored_entries_sql() -> str:
    """Return SQL for the entries of keyed_state that are stored, dead or not, over their changes `raw`."""
    return last_rows_sql("raw", STATE_TABLES[KEYED_STATE])


def expired_states(job: JobAtCheckpoint) -> Rows:
    """Return by operator and state: expired entries that are stored, their keys and bytes, and the oldest stamp among them."""
    query = f"""
        SELECT operator, state, count(*) AS entries, count(DISTINCT key) AS keys,
               sum(strlen(value))::BIGINT AS bytes, min(last_access) AS oldest
        FROM ({stored_entries_sql()}) WHERE {job.ttl.dead_sql()} GROUP BY ALL ORDER BY ALL"""  # noqa: S608 - our own SQL
    return ask_once(job.changes(KEYED_STATE), query, table=KEYED_STATE)


def expired_entries(
    job: JobAtCheckpoint, operator: str | None = None, state: str | None = None, limit: int = 50
) -> Rows:
    """Return expired entries that are stored, the oldest stamps first. Their values are left out.

    Raises `ConfigError` for an operator that is not known.
    """
    check_operator(job, operator, WITH_STATE)
    query = f"""
        SELECT {_SHOWN} FROM ({stored_entries_sql()}) WHERE {job.ttl.dead_sql()}
        ORDER BY last_access, operator, state, key, namespace, user_key LIMIT ?"""  # noqa: S608 - our own SQL
    entries = ask_once(job.changes(KEYED_STATE, entries_of(operator, states=state)), query, [limit], table=KEYED_STATE)
    return job.ttl.with_deaths(entries)


def expiry_compactions(job: JobAtCheckpoint) -> Iterator[ExpiryCompaction]:
    """Walk the compactions that dropped expired entries, newest first."""
    retention = job.config.retention.hours * _HOUR
    for compaction in reversed(job.log.checkpoints):
        entries = compaction.metrics.get("expired", 0)
        if compaction.kind is not Kind.COMPACTION or not entries:
            continue
        # The checkpoint before it is the last one that names the files.
        before = job.log.lineage.before(compaction) or compaction
        yield ExpiryCompaction(
            compaction.checkpoint_id, moment(compaction.committed_at), entries, moment(before.committed_at + retention)
        )


def savepoints(job: JobAtCheckpoint) -> list[str]:
    """Return the savepoints that keep the files they name, whatever a compaction has dropped since."""
    return [each.name or str(each.checkpoint_id) for each in live_savepoints(job.log.checkpoints)]
