"""Interface of tables for the commit protocol, implemented for Delta (on disks and object stores) and in memory.

Every commit is a compare-and-set: it names the version that it builds on, its parent, and becomes version parent + 1, or fails.
State tables, `checkpoints` and sinks are all written through this interface.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StorageError
from headrace.storage.files import StagedFile
from headrace.storage.predicate import Conditions

ROW_KIND = "_row_kind"
"""Column with the kind of a change: +I, +U or -D."""


ADVICE: Final = (
    "Headrace does not write that, so somebody else has changed the table's files. Nothing was changed now. Bring the whole job "
    "folder back from a backup that is not older than the job's sinks."
)
_NAMES: Final = ("operator", "key", "state", "domain", "source", "position", "checkpoint_id")
_SHOWN = 100


def typed_rows(uri: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to the columns and types of a schema; a column that they lack, since they have an earlier format, is null.

    Raises `StorageError`, with the table, the row and the column, for a type that cannot be converted, and for a null in a
    column that must have none.
    """
    if rows.schema.equals(schema) and not any(rows[name].null_count for name in never_null(schema)):
        return rows
    columns = [_typed(uri, rows, column) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def damaged(uri: str, what: str) -> StorageError:
    """Return the error for a table with rows that Headrace cannot have written."""
    return StorageError(f"table {uri} is damaged: {what}. {ADVICE}")


def _typed(uri: str, rows: pa.Table, column: pa.Field) -> pa.ChunkedArray:
    if column.name not in rows.schema.names:
        values = pa.chunked_array([pa.nulls(rows.num_rows, column.type)])
    else:
        values = rows[column.name]
        if values.type != column.type:
            try:
                values = values.cast(column.type)
            except (pa.ArrowException, ValueError) as error:
                raise damaged(uri, f"column '{column.name}' is {values.type}, not {column.type} ({error})") from error
    if not column.nullable and values.null_count:
        refuse_row(uri, rows, column.name, pc.is_null(values))
    return values


def never_null(schema: pa.Schema) -> list[str]:
    """Return the names of columns that hold no null."""
    return [column.name for column in schema if not column.nullable]


def refuse_row(uri: str, rows: pa.Table, name: str, wrong: pa.ChunkedArray) -> None:
    """Raise `StorageError` for the first wrong row, if there is one."""
    place = pc.index(wrong, True).as_py()
    if place < 0:
        return
    row = rows.slice(place, 1).select([column for column in _NAMES if column in rows.schema.names])
    where = ", ".join(f"{column} {row[column][0].as_py()}" for column in row.schema.names)
    value = rows[name][place].as_py() if name in rows.schema.names else None
    shown = "null" if value is None else f"'{str(value)[:_SHOWN]}', which it cannot be,"
    raise damaged(uri, f"column '{name}' is {shown} in the row of {where}")


class TableMissingError(Exception):
    """Table that does not exist."""


class VersionTakenError(Exception):
    """Commit that failed because another writer has committed its version."""


class Transaction(NamedTuple):
    """Number of an application in a table, such as a sink's last publication. The last one that was committed counts."""

    app_id: str
    version: int


OWNER: Final = "headrace.owner"
"""Application id of the transaction that has the table's owner. No job has it: names of jobs have no dot."""


class Claim(msgspec.Struct, frozen=True):
    """Claim on a table: the sink of a job that owns it from this commit on."""

    owner: int
    """Number of the owner (`headrace.log.sink_history`); 0: nobody."""

    job: str
    sink: str
    """Names of both at that time, for messages."""

    is_empty: bool = False
    """The commit has also removed all rows: the former owner's."""

    moved: bool = False
    """The sink owned the table before, under another name."""


class Correction(msgspec.Struct, frozen=True, omit_defaults=True):
    """Correction of rows that a table had: a promotion of a job's branch has replaced them by what was computed again."""

    job: str
    checkpoint: int
    """Checkpoint of the promotion."""
    start: int | None = None
    end: int | None = None
    """Input that was computed again: from `start` to `end` (ms); None without intervals."""
    partitions: tuple[dict[str, str | None], ...] | None = None
    """Partitions whose rows differ from before, by the values of their columns as texts of Delta's log; None: any may."""
    is_ahead: bool = False
    """The branch had taken in more input than the job: the table has its rows for the first time."""

    def has_changed(self, values: Mapping[str, str | None]) -> bool:
        """Return whether the rows of the partition with these values may differ."""
        return self.partitions is None or any(own.items() <= values.items() for own in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """Information in a commit besides its files: the writer, and the publication to a sink."""

    run_id: str | None = None
    attempt_id: str | None = None
    checkpoint_id: int | None = None
    """Checkpoint that this commit published."""

    published_by: tuple[int, ...] = ()
    """Incarnation of the job that published, then the earlier ones; empty in commits of Spark."""

    transaction: Transaction | None = None
    incarnation: Transaction | None = None
    """Incarnation of the job that the sink belongs to (`headrace.sinks.sink`)."""

    claim: Claim | None = None
    """Claim on the table. Its number is also a transaction, which a RESTORE keeps."""

    further: tuple[Transaction, ...] = ()
    """Transactions of a change of the owner."""

    correction: Correction | None = None
    """Correction of earlier rows that the commit is, or a part of it."""

    @property
    def transactions(self) -> list[Transaction]:
        """Return all transactions of the commit."""
        owner = None if self.claim is None else Transaction(OWNER, self.claim.owner)
        named = (self.transaction, self.incarnation, owner)
        return [*(transaction for transaction in named if transaction is not None), *self.further]


@dataclass(frozen=True, slots=True)
class TableLog:
    """Entries of a table's log: their files, relative to the table's folder, with their versions."""

    entries: Mapping[str, int]
    version: int
    """Version that was the latest at the given timestamp; the oldest version listed, if all are younger."""

    def unneeded(self, first: int, spared: Collection[int]) -> set[str]:
        """Return the entries that no needed version depends on, after `keep_versions`: needed are `first`, later ones and `spared`."""
        return {
            file
            for file, version in self.entries.items()
            if version < first and (version not in spared or file.endswith(COMMIT_SUFFIX))
        }

    def versions_without(self, files: Collection[str]) -> set[int]:
        """Return the versions that still have an entry after `files` are deleted."""
        return {version for file, version in self.entries.items() if file not in files}


@dataclass(frozen=True, slots=True)
class FileTrace:
    """Places in a table's log that name one of some data files."""

    entries: frozenset[str]
    """Entries that add or list one of the files, relative to the table's folder."""

    versions: frozenset[int]
    """Versions that contain one of the files."""


class Commit(NamedTuple):
    """Version of a table, with the information in its commit."""

    version: int
    info: CommitInfo
    keeps_rows: bool = False
    """True: the table has the same rows as before, since the commit rewrote files or added columns."""


NO_INFO = CommitInfo()
LOG = "_delta_log"
"""Name of the log's folder in the table's folder."""

HINT = f"{LOG}/_last_checkpoint"
"""File that names the last log checkpoint. Readers work without it, but not if the log checkpoint in it is gone."""

COMMIT_SUFFIX = ".json"
"""Ending of the names of commits in the log. The other entries are log checkpoints, which hold a whole version."""

CORRECTION = "headrace.correction"
"""Key of a correction of earlier rows in a commit's information, as JSON."""


def commit_file(version: int) -> str:
    """Return the path of a version's commit, relative to the table's folder."""
    return f"{LOG}/{version:020d}{COMMIT_SUFFIX}"


@dataclass(frozen=True, slots=True)
class TableForm:
    """Form of a table. The default is that of a table that Headrace has made."""

    needs_spark: tuple[str, ...] = ()
    """Features and columns for which only Spark writes rows, in words; without any, deltalake does."""

    takes_commits: bool = True
    """Whether deltalake can commit to it at all."""

    beyond: tuple[str, ...] = ()
    """Features for which nobody but the table's owner writes rows, each with the reason."""

    maps_columns: bool = False
    """Columns have other names in data files."""

    has_vectors: bool = False
    """Rows of data files may be deleted by deletion vectors."""

    filled: frozenset[str] = frozenset()
    """Columns that Spark fills where rows lack them: generated ones, identities, and those with a default."""

    identities: frozenset[str] = frozenset()
    """Columns whose values the table always makes itself."""

    variants: frozenset[str] = frozenset()
    """Columns of VARIANT."""

    @property
    def has_plain_files(self) -> bool:
        """Return whether the rows of a data file are rows of the table as they are."""
        return not (self.maps_columns or self.has_vectors or self.variants)


class Snapshot(Protocol):
    """Table at one version."""

    @property
    def uri(self) -> str:
        """Location of the table."""
        ...

    @property
    def version(self) -> int:
        """Version of the table."""
        ...

    @property
    def table_id(self) -> str:
        """Id that the table keeps for life: one that is made anew in its place has another. Empty where nobody could make it anew."""
        ...

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table at this version."""
        ...

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns that the table is partitioned by."""
        ...

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules of the table for its rows, such as constraints, in words. Only a checked append and a merge check them."""
        ...

    @property
    def form(self) -> TableForm:
        """Form of the table: what decides how rows are written to it."""
        ...

    def files(self) -> set[str]:
        """Return the data files, relative to the table's folder."""
        ...

    def add_actions(self) -> pa.Table:
        """Return the data files as rows: `path`, `size_bytes`, and what is known of `num_records` and of the columns.

        These are `partition.COLUMN`, `min.COLUMN` and `max.COLUMN`.
        """
        ...

    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows that meet all conditions, in the types of `schema`.

        A column that the table lacks, since it has an earlier format, is null. Raises `StorageError` when a file is gone
        or damaged, or the storage refuses.
        """
        ...

    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows as an Arrow stream that can be read once. The table must have all `columns`."""
        ...

    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None without one."""
        ...

    def history(self, limit: int | None = None) -> list[Commit]:
        """Return the commits up to this version that the log still has, newest first."""
        ...


class TableStore(Protocol):
    """Table that can be read and written.

    When a call returns, its commit survives a power failure. Commits raise `VersionTakenError` when another writer has
    committed the version, and `SinkMismatchError` when the table refuses them for what it is. Every method except `create` raises
    `TableMissingError` when there is no table. Every method raises `StorageError` when the storage refuses.
    """

    @property
    def uri(self) -> str:
        """Location of the table."""
        ...

    def create(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        description: str | None = None,
        info: CommitInfo = NO_INFO,
    ) -> None:
        """Create an empty table at version 0, unless it exists. The description names the base of a branch's table."""
        ...

    def latest(self) -> Snapshot:
        """Return the latest version. Raises `TableMissingError` when there is no table."""
        ...

    def at(self, version: int) -> Snapshot:
        """Return a version. Raises `StorageError` when the log does not have it, or no longer has it."""
        ...

    def append(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Add staged files, possibly none; return the new version."""
        ...

    def append_rows(self, parent: int, rows: pa.Table, info: CommitInfo = NO_INFO, *, is_checked: bool = False) -> int:
        """Write rows as a file and add it, with columns that the table lacks; return the new version.

        If `is_checked`, raise `SinkMismatchError` for a row that breaks a rule of the table.
        """
        ...

    def replace(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Replace the whole content by staged files; return the new version."""
        ...

    def add_columns(self, parent: int, columns: Sequence[pa.Field], info: CommitInfo = NO_INFO) -> int:
        """Add columns, null in existing rows; return the new version."""
        ...

    def optimize(self, parent: int, target_size: int, cluster_by: Sequence[str] = ()) -> int:
        """Rewrite files smaller than `target_size` (bytes) into larger ones; return the new version, or `parent` if there are none.

        No row changes, and transactions stay. With `cluster_by`, if there are small files, rewrite all files, ordered by these
        columns.
        """
        ...

    def restore(self, parent: int, target: int, info: CommitInfo = NO_INFO) -> int:
        """Make the content of an earlier version the latest; return the new version. Transactions stay.

        Raises `StorageError` when a file of the target is gone, or the target is not before the parent.
        """
        ...

    def rewind(
        self, parent: int, target: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO
    ) -> int:
        """Make the content of an earlier version, and staged files with it, the latest, in one commit; return the new version.

        Columns that were added since the target stay. Raises `StorageError` when the log does not have the target any more.
        """
        ...

    def sync(self, version: int) -> None:
        """Make a version survive a power failure, with the files that it adds and the commit that it builds on.

        All other methods sync their own commits. Called for a version of another writer: Spark, or a process that may have died
        before it could sync.
        """
        ...

    def sync_commit(self, version: int) -> None:
        """Make a version's entry in the log survive a power failure, without its files. Called for a version of another writer."""
        ...

    def log_as_of(self, timestamp: int) -> TableLog:
        """List the table's log, and find the version that was the latest at a timestamp (ms)."""
        ...

    def keep_versions(self, versions: Iterable[int]) -> None:
        """Make versions independent of earlier entries of the log, so that these entries may be deleted."""
        ...

    def trace(self, files: Collection[str]) -> FileTrace:
        """Find the places in the log that name one of these data files (paths relative to the table's folder)."""
        ...

    def merge(self, parent: int, rows: pa.Table, keys: Sequence[str], info: CommitInfo = NO_INFO) -> int:
        """Apply changes to a table with a primary key; return the new version, or `parent` when nothing changed.

        `rows` have the table's columns and `_row_kind`: a row of kind `-D` removes its key, any other one replaces or adds it.
        A merge that changes nothing makes no commit, so its transaction is not recorded either.
        """
        ...
