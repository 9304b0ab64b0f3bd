"""`headrace state history`: all changes of one key up to a checkpoint, also before compactions."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.errors import StorageError
from headrace.readers.entry_history import ENTRY_COLUMNS, Compacted, EntryHistory
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.key_conditions import key_conditions
from headrace.readers.known_operators import WITH_STATE, check_operator
from headrace.readers.query import Rows, ask, ask_once, connect, copy
from headrace.tables.predicate import Conditions, entries_of
from headrace.tables.schemas import KEYED_STATE


def key_history(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> Rows:
    """Return what happened to one key up to the checkpoint, oldest first, also before compactions; see `EntryHistory.events`.

    Versions whose files were vacuumed are left out. A change that a restore undid is no part of the checkpoint's line, and not
    listed. Raises `ConfigError` for an operator that is not known.
    """
    check_operator(job, operator, WITH_STATE)
    conditions = [*key_conditions(key, job.checkpoint.max_parallelism), *entries_of(operator, states=state)]
    changes = _changes(job, conditions)
    compactions = _compacted(job, conditions)
    return EntryHistory(job.log.checkpoints, compactions, job.ttl.live, job.ttl.clock_at).events(changes)


def _changes(job: JobAtCheckpoint, conditions: Conditions) -> Rows:
    """Return all rows that the versions of keyed_state before each compaction, and the one of the checkpoint, still have."""
    connection = connect()
    parts = []
    for number, checkpoint in enumerate(_before_compactions(job)):
        try:
            copy(connection, f"part{number}", job.changes(KEYED_STATE, conditions, at=checkpoint))
        except StorageError:
            continue
        parts.append(f"FROM part{number}")
    if not parts:
        return Rows([], [])
    union = " UNION BY NAME ".join(parts)
    return ask(connection, f"FROM ({union}) ORDER BY checkpoint_id, operator, state, namespace, user_key")


def _before_compactions(job: JobAtCheckpoint) -> Iterator[Checkpoint]:
    """Walk the checkpoints whose versions of keyed_state together hold all changes: this one, and those before compactions."""
    yield job.checkpoint
    for checkpoint, before in pairwise(job.lineage.newest_first()):
        if checkpoint.kind is Kind.COMPACTION:
            yield before


def _compacted(job: JobAtCheckpoint, conditions: Conditions) -> Iterator[Compacted]:
    """Walk the compactions up to the checkpoint, with the entries that each of them left."""
    for compaction in job.lineage.newest_first():
        if compaction.kind is not Kind.COMPACTION:
            continue
        try:
            stream = job.changes(KEYED_STATE, conditions, at=compaction)
            entries = ask_once(stream, f"SELECT {', '.join(ENTRY_COLUMNS)} FROM raw")  # noqa: S608 - our own columns
        except StorageError:
            continue
        yield Compacted(compaction.checkpoint_id, set(entries.rows))
