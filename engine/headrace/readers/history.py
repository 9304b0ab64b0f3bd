"""Histories of entries and keys over checkpoints.

History of an entry: its changes with their effect, and its expiry and removal by compactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Edited
from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint, check_operator, check_state, key_conditions
from headrace.readers.query import Rows, ask, ask_once, connect, copy, milliseconds, timestamp, unreadable
from headrace.state.key_groups import key_group
from headrace.state.ttl import LiveTtl
from headrace.storage.predicate import Conditions
from headrace.tables.live_rows import checked_sql
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.view import entries_of

ChangeRow = dict[str, Any]
EntryIdentity = tuple[Any, ...]

ENTRY_COLUMNS = ("operator", "state", "key", "namespace", "user_key")


class Compacted(NamedTuple):
    """Compaction, and the entries that it kept."""

    checkpoint_id: int
    left: set[EntryIdentity]


class EntryHistory:
    """History of entries.

    `ttls` are the TTLs by operator and state. `clocks` returns the time (ms) on the clock of an operator's TTL at a checkpoint
    (None: now).
    """

    def __init__(
        self,
        checkpoints: Iterable[Checkpoint],
        compactions: Iterable[Compacted],
        ttls: Mapping[tuple[str, str], LiveTtl],
        clocks: Callable[[str, LiveTtl, Checkpoint | None], int | None],
    ) -> None:
        """Keep the arguments; `events` reads them."""
        self._checkpoints = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
        self._compactions = sorted(compactions)
        self._ttls = ttls
        self._clocks = clocks

    def events(self, changes: Rows) -> Rows:
        """Return the changes with two more columns in front: `what` happened, and `at` which time it was committed, or happened.

        Additional rows are for entries that expired, and for expired entries that a compaction dropped (with its
        `checkpoint_id`).
        """
        columns = ["what", "at", *changes.columns]
        events: list[ChangeRow] = []
        ordered = sorted(changes.dicts(), key=lambda row: (_sortable(row), row["checkpoint_id"]))
        for _, rows in groupby(ordered, key=_sortable):
            events += self._entry(list(rows))
        events.sort(key=lambda row: (row["checkpoint_id"] is None, row["checkpoint_id"] or 0))
        return Rows(columns, [tuple(event.get(name) for name in columns) for event in events])

    def _entry(self, rows: Sequence[ChangeRow]) -> Iterator[ChangeRow]:
        before: ChangeRow | None = None
        has_gone = False
        for row, following in zip(rows, [*rows[1:], None], strict=True):
            if row["deleted"] and has_gone:
                continue  # a compaction has dropped it before
            yield {
                "what": f"{self._what(before, row)}{self._by(row)}",
                "at": self._committed(row["checkpoint_id"]),
                **row,
            }
            before = None if row["deleted"] else row
            if before is not None and (dropped := self._dropped(before, following)) is not None:
                yield self._ended(before, "expired, and dropped by this compaction", dropped)
                before = None
                has_gone = True
            else:
                has_gone = False
        if before is not None and self._is_dead(before, None):
            yield {**self._ended(before, "expired, and still stored", None), "at": self._death(before)}

    def _what(self, before: ChangeRow | None, row: ChangeRow) -> str:
        if row["deleted"]:
            if before is not None and self._is_dead(before, self._checkpoints.get(row["checkpoint_id"])):
                return "removed, since it had expired"
            return "removed"
        if before is None:
            return "written"
        return "renewed" if before["value"] == row["value"] else "changed"

    def _by(self, row: ChangeRow) -> str:
        checkpoint = self._checkpoints.get(row["checkpoint_id"])
        if checkpoint is None or checkpoint.kind is not Kind.EDIT:
            return ""
        ends = isinstance(checkpoint.cause, Edited) and checkpoint.cause.command == "expire"
        return " by hand, so that it has expired" if ends else " by hand"

    def _dropped(self, row: ChangeRow, following: ChangeRow | None) -> int | None:
        """Return the compaction that dropped the entry after this row and before the following row; None without one."""
        until = float("inf") if following is None else following["checkpoint_id"]
        for compaction in self._compactions:
            if row["checkpoint_id"] < compaction.checkpoint_id < until and identity(row) not in compaction.left:
                return compaction.checkpoint_id
        return None

    def _ended(self, row: ChangeRow, what: str, checkpoint_id: int | None) -> ChangeRow:
        own = {name: row[name] for name in (*ENTRY_COLUMNS, "key_group", "last_access")}
        at = None if checkpoint_id is None else self._committed(checkpoint_id)
        return {**own, "what": what, "at": at, "checkpoint_id": checkpoint_id, "expires_at": self._death(row)}

    def _death(self, row: ChangeRow) -> Any:
        ttl = self._ttls.get((row["operator"], row["state"]))
        if ttl is None or row["last_access"] is None:
            return row["expires_at"]
        return timestamp(ttl.expires_at(milliseconds(row["last_access"]), row["ttl_ms"] or 0))

    def _is_dead(self, row: ChangeRow, at: Checkpoint | None) -> bool:
        ttl, stamp = self._ttls.get((row["operator"], row["state"])), row["last_access"]
        clock = None if ttl is None else self._clocks(row["operator"], ttl, at)
        if ttl is None or stamp is None or clock is None:
            return False
        return ttl.is_dead_at(clock, milliseconds(stamp), row["ttl_ms"] or 0)

    def _committed(self, checkpoint_id: int) -> Any:
        known = self._checkpoints.get(checkpoint_id)
        return None if known is None else timestamp(known.committed_at)


def identity(row: ChangeRow) -> EntryIdentity:
    """Return the values that identify the entry of a row."""
    return tuple(row[name] for name in ENTRY_COLUMNS)


def _sortable(row: ChangeRow) -> tuple[str, ...]:
    return tuple(str(row[name] or "") for name in ENTRY_COLUMNS)


def key_history(job: JobAtCheckpoint, key: str, operator: str | None = None, state: str | None = None) -> Rows:
    """Return the events of a key up to the checkpoint, oldest first, also those before compactions (`EntryHistory.events`).

    Changes whose files were vacuumed, and changes that a restore undid, are left out. Raises `ConfigError` for an unknown
    operator or state, `StorageError` when the files of the checkpoint itself are gone or damaged.
    """
    check_operator(job, operator, WITH_STATE)
    check_state(job, operator, state)

    def conditions_at(checkpoint: Checkpoint) -> Conditions:
        return [*key_conditions(key, checkpoint.max_parallelism), *entries_of(operator, states=state)]

    changes = changes_of(job, KEYED_STATE, conditions_at, "checkpoint_id, operator, state, namespace, user_key")
    compactions = _compacted(job, conditions_at)
    return EntryHistory(job.log.checkpoints, compactions, job.ttl.live, job.ttl.clock_at).events(changes)


ConditionsAt = Callable[[Checkpoint], Conditions]
"""Function that returns the conditions for the key's rows at a checkpoint: its key group depends on the parallelism then."""


def changes_of(job: JobAtCheckpoint, table: str, conditions_at: ConditionsAt, order: str) -> Rows:
    """Return all rows of a state table that are still stored: in the checkpoint's version, and in those before each rewriting.

    A rescaling changes the key group of a row, so rows are compared without it; the result has the checkpoint's key groups.
    Raises `StorageError` when the files of the checkpoint itself are gone or damaged.
    """
    import duckdb

    connection = connect()
    parts = []
    for number, checkpoint in enumerate(_before_rewritings(job)):
        try:
            rows = job.changes(table, conditions_at(checkpoint), at=checkpoint)
            copy(connection, f"part{number}", rows, table=table)
        except StorageError:
            if checkpoint is job.checkpoint:
                raise
            continue
        checked = checked_sql(f"part{number}", STATE_TABLES[table], ("state", "checkpoint_id", "deleted"))
        parts.append(f"SELECT * EXCLUDE (key_group) FROM {checked}")  # noqa: S608 - our own names
    if not parts:
        return Rows([], [])
    union = " UNION BY NAME ".join(parts)
    try:
        changes = ask(connection, f"FROM ({union}) ORDER BY {order}")
    except duckdb.Error as error:
        raise unreadable(table, None, error) from error
    return _with_key_groups(changes, job.checkpoint.max_parallelism)


def _with_key_groups(rows: Rows, max_parallelism: int) -> Rows:
    place = rows.columns.index("key")
    return Rows(
        [*rows.columns[:place], "key_group", *rows.columns[place:]],
        [(*row[:place], key_group(row[place].encode(), max_parallelism), *row[place:]) for row in rows.rows],
    )


def _before_rewritings(job: JobAtCheckpoint) -> Iterator[Checkpoint]:
    """Yield the checkpoints whose versions of a state table together hold all changes: this one, and those before rewritings.

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
