"""`headrace state history`: all changes of a key up to a checkpoint, also those before compactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.errors import StorageError
from headrace.readers.entry_history import ENTRY_COLUMNS, Compacted, EntryHistory
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.key_conditions import key_conditions
from headrace.readers.known_operators import WITH_STATE, check_operator
from headrace.readers.query import Rows, ask, ask_once, connect, copy, unreadable
from headrace.state.key_groups import key_group
from headrace.tables.predicate import Conditions, entries_of
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.stored_rows import checked_sql


def key_history(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> Rows:
    """Return the events of a key up to the checkpoint, oldest first, also those before compactions (`EntryHistory.events`).

    Changes whose files were vacuumed, and changes that a restore undid, are left out. Raises `ConfigError` for an unknown
    operator, `StorageError` when the files of the checkpoint itself are gone or damaged.
    """
    check_operator(job, operator, WITH_STATE)

    def conditions_at(checkpoint: Checkpoint) -> Conditions:
        return [*key_conditions(key, checkpoint.max_parallelism), *entries_of(operator, states=state)]

    changes = _changes(job, conditions_at)
    compactions = _compacted(job, conditions_at)
    return EntryHistory(job.log.checkpoints, compactions, job.ttl.live, job.ttl.clock_at).events(changes)


ConditionsAt = Callable[[Checkpoint], Conditions]
"""Function that returns the conditions for the key's rows at a checkpoint: its key group depends on the parallelism then."""


def _changes(job: JobAtCheckpoint, conditions_at: ConditionsAt) -> Rows:
    """Return all rows that are still stored: in the checkpoint's version of keyed_state, and in those before each rewriting.

    A rescaling changes the key group of a row, so rows are compared without it; the result has the checkpoint's key groups.
    """
    import duckdb

    connection = connect()
    parts = []
    for number, checkpoint in enumerate(_before_rewritings(job)):
        try:
            rows = job.changes(KEYED_STATE, conditions_at(checkpoint), at=checkpoint)
            copy(connection, f"part{number}", rows, table=KEYED_STATE)
        except StorageError:
            if checkpoint is job.checkpoint:
                raise
            continue
        checked = checked_sql(f"part{number}", STATE_TABLES[KEYED_STATE], ("state", "checkpoint_id", "deleted"))
        parts.append(f"SELECT * EXCLUDE (key_group) FROM {checked}")  # noqa: S608 - our own names
    if not parts:
        return Rows([], [])
    union = " UNION BY NAME ".join(parts)
    try:
        changes = ask(connection, f"FROM ({union}) ORDER BY checkpoint_id, operator, state, namespace, user_key")
    except duckdb.Error as error:
        raise unreadable(KEYED_STATE, None, error) from error
    return _with_key_groups(changes, job.checkpoint.max_parallelism)


def _with_key_groups(rows: Rows, max_parallelism: int) -> Rows:
    place = rows.columns.index("key")
    return Rows(
        [*rows.columns[:place], "key_group", *rows.columns[place:]],
        [(*row[:place], key_group(row[place].encode(), max_parallelism), *row[place:]) for row in rows.rows],
    )


def _before_rewritings(job: JobAtCheckpoint) -> Iterator[Checkpoint]:
    """Yield the checkpoints whose versions of keyed_state together hold all changes: this one, and those before rewritings.

    A rewriting is a compaction or a rescaling: it keeps only live rows.
    """
    yield job.checkpoint
    for checkpoint, before in pairwise(job.lineage.newest_first()):
        if checkpoint.kind is Kind.COMPACTION or checkpoint.max_parallelism != before.max_parallelism:
            yield before


def _compacted(job: JobAtCheckpoint, conditions_at: ConditionsAt) -> Iterator[Compacted]:
    """Yield the compactions up to the checkpoint, with the entries that each of them kept."""
    for compaction in job.lineage.newest_first():
        if compaction.kind is not Kind.COMPACTION:
            continue
        try:
            stream = job.changes(KEYED_STATE, conditions_at(compaction), at=compaction)
            entries = ask_once(stream, f"SELECT {', '.join(ENTRY_COLUMNS)} FROM raw")  # noqa: S608 - our own columns
        except StorageError:
            continue
        yield Compacted(compaction.checkpoint_id, set(entries.rows))
