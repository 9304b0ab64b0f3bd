"""What the commit protocol does to a table, whatever keeps it: Delta on disks and object stores, or memory.

Every commit is a compare-and-set: it names the version that it builds on, its parent, and lands as parent + 1 or fails.
State tables, `checkpoints` and sinks are written through the same protocol.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import StorageError
from headrace.tables.files import StagedFile
from headrace.tables.predicate import Conditions


class TableMissingError(Exception):
    """There is no table at this place."""


class VersionTakenError(Exception):
    """Another writer has committed the version that a commit wanted to be."""


class StoreError(OSError):
    """The storage refuses: it is full, read-only or out of reach, or a file or an old version is gone."""


class Transaction(NamedTuple):
    """What a sink remembers of its last publication: an application, and a number that only grows."""

    app_id: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """What a commit says beside its files: who made it, and what a sink got by it."""

    run_id: str | None = None
    attempt_id: str | None = None
    checkpoint_id: int | None = None
    """The checkpoint that was published by this commit."""

    published_by: tuple[int, ...] = ()
    """The incarnation of the job that published it, then those before; empty where an earlier release, or Spark, made the commit."""

    transaction: Transaction | None = None
    incarnation: Transaction | None = None
    """Which life of a job a sink belongs to; see `headrace.sinks.sink`."""

    @property
    def transactions(self) -> list[Transaction]:
        """All transactions of the commit."""
        return [transaction for transaction in (self.transaction, self.incarnation) if transaction is not None]


@dataclass(frozen=True, slots=True)
class TableLog:
    """The entries of a table's log: their files, relative to the table's folder, each with its version."""

    entries: Mapping[str, int]
    version: int
    """The version that was the latest at the moment asked for; the oldest one listed, if all are younger."""

    def unneeded(self, first: int, spared: Collection[int]) -> set[str]:
        """Return the entries that `first`, later versions and those `spared` do not need once `keep_versions` has kept them."""
        return {
            file
            for file, version in self.entries.items()
            if version < first and (version not in spared or file.endswith(COMMIT_SUFFIX))
        }

    def versions_without(self, files: Collection[str]) -> set[int]:
        """Return the versions that still have an entry when `files` are deleted."""
        return {version for file, version in self.entries.items() if file not in files}


@dataclass(frozen=True, slots=True)
class FileTrace:
    """Where a table's log names one of some data files."""

    entries: frozenset[str]
    """Entries that add or list one of them, relative to the table's folder."""

    versions: frozenset[int]
    """Versions whose content has one of them."""


class Commit(NamedTuple):
    """A version of a table, and what its commit says."""

    version: int
    info: CommitInfo
    keeps_rows: bool = False
    """Whether the table has the same rows as before: files were rewritten, or columns were added."""


NO_INFO = CommitInfo()
LOG = "_delta_log"
"""The folder of a table's log, in its own."""

COMMIT_SUFFIX = ".json"
"""Ends the names of commits in the log. Other entries have a whole version: log checkpoints, as Delta calls them."""


def commit_file(version: int) -> str:
    """Return the commit of a version, relative to the table's folder."""
    return f"{LOG}/{version:020d}{COMMIT_SUFFIX}"


class Snapshot(Protocol):
    """A table at one version."""

    @property
    def uri(self) -> str:
        """Where the table is."""
        ...

    @property
    def version(self) -> int:
        """The version."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """The columns that the table has at this version."""
        ...

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The columns that the table is partitioned by."""
        ...

    def files(self) -> set[str]:
        """Return the data files, relative to the table's folder."""
        ...

    def add_actions(self) -> pa.Table:
        """Return the data files with their statistics: `path`, `size_bytes`, and `partition.COLUMN`, `min.COLUMN`, `max.COLUMN` where they are known."""
        ...

    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows that meet all conditions, in the types of `schema`.

        A column that the table does not have, since an older program made it, is null. Raises `StorageError` when a file is
        gone or damaged, or the storage refuses.
        """
        ...

    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows as an Arrow stream that can be read once. All `columns` must be there."""
        ...

    def transaction(self, app_id: str) -> int | None:
        """Return the version of the last transaction of an application; None if it never committed."""
        ...

    def history(self, limit: int | None = None) -> list[Commit]:
        """Return the commits up to this version that the log still has, newest first."""
        ...


class TableStore(Protocol):
    """One table.

    A commit survives a power failure when the call returns. Commits raise `VersionTakenError` when another writer has taken the version. Every call but `create` raises
    `TableMissingError` when there is no table, and every call raises `OSError` (a `StoreError`, for what Delta says) when the
    storage refuses: see `storage_errors`.
    """

    @property
    def uri(self) -> str:
        """Where the table is."""
        ...

    def create(self, schema: pa.Schema, partition_by: Sequence[str] = (), description: str | None = None) -> None:
        """Make an empty table at version 0, unless there is a table. The description names the base of a branch's table."""
        ...

    def latest(self) -> Snapshot:
        """Return the latest version. Raises `TableMissingError` when there is no table."""
        ...

    def at(self, version: int) -> Snapshot:
        """Return a version. Raises `StoreError` when the log does not have it, or has it no more."""
        ...

    def append(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Add staged files, none of them too; return the new version."""
        ...

    def append_rows(self, parent: int, rows: pa.Table, info: CommitInfo = NO_INFO) -> int:
        """Write rows as a file and add it, with columns that the table lacks; return the new version."""
        ...

    def replace(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Make staged files the whole content; return the new version."""
        ...

    def add_columns(self, parent: int, columns: Sequence[pa.Field], info: CommitInfo = NO_INFO) -> int:
        """Add columns, null in all rows so far; return the new version."""
        ...

    def optimize(self, parent: int, target_size: int, cluster_by: Sequence[str] = ()) -> int:
        """Rewrite files that are smaller than `target_size` (bytes) into larger ones; return the new version, or `parent` if nothing is due.

        No row changes, and transactions stay. With `cluster_by`, rewrite all files, ordered by these columns, if any are due.
        """
        ...

    def restore(self, parent: int, target: int, info: CommitInfo = NO_INFO) -> int:
        """Make the content of an earlier version the latest; return the new version. Transactions stay.

        Raises `StoreError` when a file of the target is gone, or the target is not before the parent.
        """
        ...

    def rewind(
        self, parent: int, target: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO
    ) -> int:
        """Make the content of an earlier version, and staged files with it, the latest, in one commit; return the new version.

        Columns that were added since the target stay. Raises `StoreError` when the log does not have the target any more.
        """
        ...

    def sync(self, version: int) -> None:
        """Make a version survive a power failure, with the files that it adds and the commit that it builds on.

        Every other call here does so with its own commit. It is for a version that somebody else has made: Spark, or a process
        that may have died before it was synced.
        """
        ...

    def log_as_of(self, moment: int) -> TableLog:
        """List the table's log, and find the version that was the latest at a moment (ms)."""
        ...

    def keep_versions(self, versions: Iterable[int]) -> None:
        """Make versions independent of the entries of the log before them, so that those may be deleted."""
        ...

    def trace(self, files: Collection[str]) -> FileTrace:
        """Find where the log names one of these data files, which are relative to the table's folder."""
        ...

    def merge(self, parent: int, rows: pa.Table, keys: Sequence[str], info: CommitInfo = NO_INFO) -> int:
        """Apply changes to a table with a primary key; return the new version, or `parent` when nothing changed.

        `rows` have the table's columns and `_row_kind`; those of kind `-D` remove their key, others replace or add it. A merge that
        changes nothing makes no commit, so its transaction is not recorded either.
        """
        ...


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn what disks, object stores and Arrow say into a `StorageError` that tells what was being done.

    Errors that callers know the meaning of pass through: a taken version and a missing table.
    """
    try:
        yield
    except (OSError, pa.ArrowException) as error:  # the last one: a file that is gone or damaged
        msg = (
            f"storage refused {doing}: {error}. What was committed before is untouched; "
            "free space or repair, then run again."
        )
        raise StorageError(msg) from error
