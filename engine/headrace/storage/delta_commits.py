"""Delta tables that a process keeps open, what their commits record, and rules for their rows.

Opening a table reads each commit since the last log checkpoint, up to a hundred: on an object store as many requests. A
table that stays open reads only the commits that are new. It needs a look at two names: is the commit that it ends with
still the same file, and is there a next one?

A table may be dropped and made anew meanwhile, or brought back from a backup. Then the commit that the open table ends
with is gone, or is another file, and the table is opened again.

Writers check the rules that a table has for its rows, and refuse rows that break one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from deltalake import CommitProperties, DeltaTable
from deltalake import Transaction as DeltaTransaction
from deltalake.exceptions import DeltaError
from pyarrow import fs

from headrace.storage.delta_log import DeltaLog
from headrace.storage.files import Files
from headrace.storage.refusals import StoreError
from headrace.storage.schemes import Options
from headrace.storage.table import CORRECTION, HINT, Claim, CommitInfo, commit_file


class _Commit(NamedTuple):
    """File of a commit in the log: its size and its time tell it from another one of the same name."""

    size: int
    modified: int


class OpenedTable:
    """Table that a process has opened last. It is at the version of the last call, so a caller must not keep it."""

    def __init__(self, uri: str, storage: Options = None) -> None:
        """Open nothing yet."""
        self._uri, self._storage = uri, storage
        self._files = Files(uri, storage)
        self.lock = threading.RLock()
        """Whoever opens the table, or commits to it, holds this meanwhile: another thread would move it on."""
        self._table: DeltaTable | None = None
        self._version = -1
        self._ends_with: _Commit | None = None
        self.transactions: dict[str, int | None] = {}
        """Versions of applications' transactions at the table's version, as far as asked for: each look reads the log again."""

    def keep(self, table: DeltaTable) -> None:
        """Keep a table that was just opened or has just committed, unless a later version is kept."""
        version = table.version()
        if self._table is None or version >= self._version:
            new = range(self._version + 1, version + 1)
            known = self.transactions if table is self._table else {}
            self._table, self._version = table, version
            self._ends_with = self._commit(version)
            self.transactions = self._transactions_after(known, new)

    def keeps(self, table: DeltaTable) -> bool:
        """Return whether a table is the one that is kept."""
        return table is self._table

    def known(self, version: int | None = None) -> DeltaTable | None:
        """Return the table at a version, by default the latest; None if it must be opened."""
        table = self._table
        if table is None:
            return None
        now = table.version()
        last = self._commit(now)
        if now != self._version or last is None or last != self._ends_with:
            self._table = None
            return None
        if version == now:
            return table
        if not self.has_commit(now + 1):
            if self._last_log_checkpoint() > now:  # a purge has cut the commits between out of the log
                self._table = None
                return None
            return table if version is None else None
        if version is not None and version < now:
            return None
        return self._advanced(table, version)

    def is_latest(self, version: int) -> bool:
        """Return whether a version's commit is in the log, and no later one. False also where only the whole log can tell."""
        return self.has_commit(version) and not self.has_commit(version + 1) and self._last_log_checkpoint() <= version

    def has_commit(self, version: int) -> bool:
        """Return whether a version's commit is in the log. One that lost its content in a power failure counts, as for deltalake."""
        return self._files.has(commit_file(version))

    def _advanced(self, table: DeltaTable, version: int | None) -> DeltaTable | None:
        """Read the commits that are new; return None if they do not lead to the version."""
        try:
            table.update_incremental()
        except DeltaError:
            self._table = None  # opening it says what is wrong
            return None
        self.keep(table)
        return table if version in {None, table.version()} else None

    def _commit(self, version: int) -> _Commit | None:
        """Return a version's commit; None where `has_commit` is false."""
        store, path = self._files.file_system(commit_file(version))
        file = store.get_file_info(path)
        return _Commit(file.size, file.mtime_ns or 0) if file.type is fs.FileType.File else None

    def _last_log_checkpoint(self) -> int:
        """Return the version of the log checkpoint that the log names as its last one; -1 without one."""
        try:
            return int(msgspec.json.decode(self._files.find(HINT) or b"{}")["version"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            return -1

    def _transactions_after(self, known: Mapping[str, int | None], new: Sequence[int]) -> dict[str, int | None]:
        """Return the transactions after some new commits; nothing if they have to be asked for again."""
        if not known or len(new) > _MOST_COMMITS:
            return {}
        log, transactions = DeltaLog(self._uri, self._storage), dict(known)
        try:
            for version in new:
                transactions.update(log.commit(version).transactions)
        except StoreError:
            return {}
        return transactions


class OpenedTables:
    """Tables that a process keeps open, whatever store asks for them: those that were asked for last."""

    def __init__(self) -> None:
        """Open nothing yet."""
        self._tables: dict[tuple[str, frozenset[tuple[str, str]]], OpenedTable] = {}
        self._lock = threading.Lock()

    def of(self, uri: str, storage: Options) -> OpenedTable:
        """Return the table at a URI, with these options of its storage."""
        key = uri, frozenset((storage or {}).items())
        with self._lock:
            table = self._tables.pop(key) if key in self._tables else OpenedTable(uri, storage)
            self._tables[key] = table  # the one that was asked for last
            if len(self._tables) > _MOST_TABLES:
                del self._tables[next(iter(self._tables))]
        return table

    def forget(self) -> None:
        """Open each table anew when it is asked for next, and so read its whole log again."""
        with self._lock:
            self._tables.clear()


_MOST_TABLES = 64
"""Number of tables that a process keeps open: those of some jobs, their branches, sinks and sources."""

OPENED_TABLES = OpenedTables()
"""Those of this process."""

_MOST_COMMITS = 10
"""Number of new commits up to which reading each of them takes less than reading the whole log for each transaction."""


CHECKPOINT_METADATA = "headrace.checkpoint"
"""Key of the published checkpoint's id in a sink's commit information."""

CLAIM_METADATA = "headrace.claim"
"""Key of a claim on the table, as JSON."""

RUN_METADATA, ATTEMPT_METADATA, INCARNATION_METADATA = "headrace.run", "headrace.attempt", "headrace.incarnation"


def commit_properties(info: CommitInfo) -> CommitProperties:
    """Return properties of a commit that becomes exactly the next version, or fails.

    By default, deltalake silently rebases a commit whose version is taken. Without retries it fails instead: this is the
    compare-and-set that fencing needs.
    """
    return CommitProperties(
        custom_metadata=commit_metadata(info) or None,
        max_commit_retries=0,
        app_transactions=[DeltaTransaction(*transaction) for transaction in info.transactions] or None,
    )


def commit_metadata(info: CommitInfo) -> dict[str, str]:
    """Return what a commit says of its writer beside Delta's own information."""
    metadata = {
        RUN_METADATA: info.run_id,
        ATTEMPT_METADATA: info.attempt_id,
        CHECKPOINT_METADATA: None if info.checkpoint_id is None else str(info.checkpoint_id),
        INCARNATION_METADATA: " ".join(map(str, info.published_by)) or None,
        CLAIM_METADATA: None if info.claim is None else msgspec.json.encode(info.claim).decode(),
        CORRECTION: None if info.correction is None else msgspec.json.encode(info.correction).decode(),
    }
    return {key: value for key, value in metadata.items() if value is not None}


def commit_info(entry: Mapping[str, Any]) -> CommitInfo:
    """Return the information about a commit from its entry in deltalake's history."""
    return CommitInfo(
        run_id=entry.get(RUN_METADATA),
        attempt_id=entry.get(ATTEMPT_METADATA),
        checkpoint_id=_checkpoint_of(entry),
        published_by=tuple(map(int, entry.get(INCARNATION_METADATA, "").split())),
        claim=msgspec.json.decode(entry[CLAIM_METADATA], type=Claim) if CLAIM_METADATA in entry else None,
    )


def _checkpoint_of(entry: Mapping[str, Any]) -> int | None:
    """Return the id of the checkpoint that a commit published; commits of Spark have it in `userMetadata`."""
    if CHECKPOINT_METADATA in entry:
        return int(entry[CHECKPOINT_METADATA])
    try:
        metadata = msgspec.json.decode(entry.get("userMetadata") or "{}")
    except msgspec.DecodeError:
        return None  # text of another program
    published = str(metadata.get(CHECKPOINT_METADATA)) if isinstance(metadata, dict) else ""
    return int(published) if published.isdecimal() else None


_CHECK: Final = "delta.constraints."
_APPEND_ONLY: Final = "delta.appendOnly"
APPEND_ONLY: Final = f"{_APPEND_ONLY} (no row may be updated or deleted)"
_REFUSALS: Final = (
    "failed validation check",
    "append-only",
    "nsupported table features",
    "not supported for write operation",
)
"""Parts of the messages with which deltalake refuses rows, or any write."""


def rules_of(table: DeltaTable) -> tuple[str, ...]:
    """Return the rules of a table, each in words."""
    fields = msgspec.json.decode(table.schema().to_json())["fields"]
    return (*_of_properties(table.metadata().configuration), *(rule for field in fields for rule in _of_field(field)))


def is_refusal(message: str) -> bool:
    """Return whether deltalake refuses a write because of what the table is, and not because of the storage or of another writer."""
    return any(part in message for part in _REFUSALS)


def _of_properties(properties: Mapping[str, str]) -> Iterator[str]:
    for name, value in sorted(properties.items()):
        if name.startswith(_CHECK):
            yield f"CHECK {name.removeprefix(_CHECK)} ({value})"
        elif name == _APPEND_ONLY and value.lower() == "true":
            yield APPEND_ONLY


def _of_field(field: Mapping[str, Any]) -> Iterator[str]:
    name, metadata = field["name"], field.get("metadata", {})
    if not field.get("nullable", True):
        yield not_null(name)
    if invariant := metadata.get("delta.invariants"):
        yield f"invariant of {name} ({invariant})"
    if expression := metadata.get("delta.generationExpression"):
        yield f"generated column {name} ({expression})"


def not_null(column: str) -> str:
    """Return the rule that a column allows no null, in words."""
    return f"NOT NULL {column}"
