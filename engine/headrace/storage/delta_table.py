"""Table in Delta's format, read and written with deltalake (no JVM).

All reads use `DeltaTable.scan`, never `to_pyarrow_table`: that calls Python from Arrow's threads, which can abort the process
at its end (seen in half of all short runs).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from deltalake import DeltaTable, PostCommitHookProperties, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import fs

from headrace import clock
from headrace.errors import EngineBug
from headrace.storage import delta_commits
from headrace.storage.damage import actions_of, plain, torn_commit
from headrace.storage.deletion_vectors import DeletionVector
from headrace.storage.delta_commits import (
    OpenedTable,
    commit_info,
    commit_properties,
    is_refusal,
    rules_of,
)
from headrace.storage.delta_log import trace_in_log, versions_down_from
from headrace.storage.files import Files, StagedFile, partition_text
from headrace.storage.overlay import OverlaySnapshot, base_of
from headrace.storage.own_commits import OwnCommits
from headrace.storage.predicate import Conditions, quoted, sql_of
from headrace.storage.refusals import DamagedError, StoreError, TableRefusedError, committing, refusing
from headrace.storage.schemes import Options, is_on_local_disk, make_folder
from headrace.storage.small_files import SMALL_FILES
from headrace.storage.table import (
    COMMIT_SUFFIX,
    HINT,
    LOG,
    NO_INFO,
    ROW_KIND,
    Commit,
    CommitInfo,
    FileTrace,
    Snapshot,
    TableForm,
    TableLog,
    TableMissingError,
    VersionTakenError,
    commit_file,
    typed_rows,
)
from headrace.storage.table_files import naming_damage
from headrace.storage.table_form import form_of

T = TypeVar("T")
Changes = TypeVar("Changes", bound=Callable[..., Any])

_LOG_RETENTION = "delta.logRetentionDuration"
_PROPERTIES = {
    # Old versions must stay readable for the whole retention; Headrace itself removes what it no longer needs.
    _LOG_RETENTION: "interval 3650 days",
    # An opening reads each commit behind the last log checkpoint: on an object store a request each. Delta's default is 100.
    "delta.checkpointInterval": "10",
}
"""Properties of new tables."""

_KEEP_ROWS = frozenset(
    {
        *("OPTIMIZE", "ADD COLUMN", "ADD COLUMNS", "SET TBLPROPERTIES", "ADD FEATURE"),
        *("ADD CONSTRAINT", "DROP CONSTRAINT", "CHANGE COLUMN", "UNSET TBLPROPERTIES"),
        *("VACUUM START", "VACUUM END", "COMPUTE STATS", "UPDATE TABLE METADATA", "UPDATE FIELD METADATA"),
    }
)
"""Operations of commits, as deltalake and Spark call them, behind which a table has the same rows."""


def _alone(change: Changes) -> Changes:
    """Decorate a change of a table: other threads of this process neither move the open table on meanwhile nor commit to it."""

    @wraps(change)
    def held(store: DeltaStore, *arguments: Any, **named: Any) -> Any:
        with store.opened_table.lock:
            return change(store, *arguments, **named)

    return cast("Changes", held)


@dataclass(frozen=True, slots=True)
class DeltaSnapshot:
    """Delta table at one version."""

    uri: str
    version: int
    opened: DeltaTable = field(repr=False)
    """Table that the process keeps open, and may have moved on to a later version meanwhile."""

    storage: Options = field(repr=False)
    transactions: dict[str, int | None] = field(repr=False)
    """Versions of applications' last transactions at this version, as far as somebody has asked for them."""

    reopened: list[DeltaTable] = field(init=False, repr=False, compare=False, default_factory=list)
    """Table at this version, opened once the other one has moved on."""

    @property
    def table(self) -> DeltaTable:
        """Table of deltalake at this version."""
        if self.opened.version() == self.version:
            return self.opened
        if not self.reopened:
            self.reopened.append(self._open(self.version))
        return self.reopened[0]

    def _ask(self, question: Callable[[DeltaTable], T]) -> T:
        """Return what the table answers. Another thread may move it on meanwhile: then ask again, at the version that is meant."""
        table = self.table
        with _translated():
            answer = question(table)
            has_moved = table is self.opened and table.version() != self.version
            return question(self.table) if has_moved else answer

    @property
    @refusing("to read")
    def table_id(self) -> str:
        """Id in the table's metadata."""
        return self._ask(lambda table: str(table.metadata().id))

    @property
    @refusing("to read")
    def schema(self) -> pa.Schema:
        """Columns of the table at this version."""
        return self._ask(lambda table: pa.schema(table.schema()))

    @property
    @refusing("to read")
    def partition_columns(self) -> tuple[str, ...]:
        """Columns that the table is partitioned by."""
        return self._ask(lambda table: tuple(table.metadata().partition_columns))

    @property
    @refusing("to read")
    def rules(self) -> tuple[str, ...]:
        """Rules of the table for its rows."""
        return self._ask(rules_of)

    @property
    @refusing("to read")
    def form(self) -> TableForm:
        """Form of the table: what decides how rows are written to it."""
        return self._ask(form_of)

    @refusing("to read")
    def files(self) -> set[str]:
        """Return the data files, relative to the table's folder.

        The log has paths as URLs: the folder of partition `a b` is `p=a%20b`, which the log writes as `p=a%2520b`.
        """
        actions = self._ask(lambda table: pa.table(table.get_add_actions()))
        return {unquote(path) for path in actions["path"].to_pylist()}

    @refusing("to read")
    def add_actions(self) -> pa.Table:
        """Return the data files with their sizes, partition values and statistics."""
        return self._ask(lambda table: pa.table(table.get_add_actions(flatten=True)))

    @refusing("to read")
    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows that meet all conditions, in the types of `schema` (the scan returns string views).

        Raises `StorageError` when a file is gone or damaged, or the storage refuses.
        """
        if columns is None and not conditions and (whole := self._small_rows(schema)) is not None:
            return typed_rows(self.uri, whole, schema)
        names = list(columns) if columns is not None else schema.names
        wanted = pa.schema([schema.field(name) for name in names])
        present = {*self.schema.names}
        with naming_damage(self, self.storage), _translated():
            stream = self.stream([name for name in names if name in present], conditions)
            rows = pa.RecordBatchReader.from_stream(stream).read_all()
        return typed_rows(self.uri, rows, wanted)

    def _small_rows(self, schema: pa.Schema) -> pa.Table | None:
        """Return all rows of a plain table of few small files; None for any other, and where a scan has to say what is wrong."""
        if not is_on_local_disk(self.uri) or self._reader_version > 1 or self.partition_columns:
            return None
        try:
            rows = SMALL_FILES.read([f"{self.uri}/{file}" for file in sorted(self.files())])
        except (OSError, pa.ArrowException):
            return None
        wanted = {field.name: field.type for field in schema}
        has_types = rows is not None and all(wanted.get(field.name, field.type) == field.type for field in rows.schema)
        return rows if has_types else None

    @property
    def _reader_version(self) -> int:
        return self._ask(lambda table: table.protocol().min_reader_version)

    @refusing("to read")
    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows as an Arrow stream that can be read once. The table must have all `columns`."""
        names, predicate = list(columns) if columns else None, sql_of(conditions)
        return self._ask(lambda table: table.scan(columns=names, predicate=predicate))

    @refusing("to read")
    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None without one."""
        if app_id not in self.transactions:
            try:
                self.transactions[app_id] = self._ask(lambda table: table.transaction_version(app_id))
            except StoreError:
                # Another program has cleaned the log up, and the open table does not know its log checkpoint.
                with _translated():
                    self.transactions[app_id] = self._open(self.version).transaction_version(app_id)
        return self.transactions[app_id]

    @refusing("to read")
    def history(self, limit: int | None = None) -> list[Commit]:
        """Return the commits up to this version that the log still has, newest first.

        deltalake lists all commits up to the latest one, but numbers them from the version that was opened. So the latest
        version is opened for the list, and opened again after it: if another program committed meanwhile, repeat.
        """
        log = OpenedTable(self.uri, self.storage)
        while True:
            latest = self.table if log.is_latest(self.version) else self._open()
            version = latest.version()
            wanted = None if limit is None else limit + version - self.version
            with _translated():
                entries = latest.history(wanted)
            is_same = latest.version() == version  # another thread may have moved it on
            if is_same and (log.is_latest(version) or self._open().version() == version):
                commits = self._numbered(entries, version, wanted)
                return [commit for commit in commits if commit.version <= self.version]

    def _numbered(self, entries: Sequence[Mapping[str, Any]], latest: int, wanted: int | None) -> list[Commit]:
        """Return commits with their versions, from deltalake's list of the last ones, or of all.

        deltalake leaves out commits without information on their writer, which other programs may make, and numbers the others as if
        these were not there. Then the log's own entries are read.
        """
        is_whole = bool(entries) and (len(entries) == wanted or entries[-1]["version"] == 0)
        if not is_whole:
            versions = versions_down_from(latest, self._files, wanted)
            if len(versions) != len(entries):
                return [self._commit(version) for version in versions]
        return [Commit(entry["version"], commit_info(entry), entry.get("operation") in _KEEP_ROWS) for entry in entries]

    def _commit(self, version: int) -> Commit:
        """Return a commit as the log's own entry has it."""
        actions = actions_of(self._files.read(commit_file(version)))
        entry: dict[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
        changes_rows = any(kind in action for action in actions for kind in ("add", "remove"))
        return Commit(version, commit_info(entry), entry.get("operation") in _KEEP_ROWS or not changes_rows)

    @property
    def _files(self) -> Files:
        return Files(self.uri, self.storage)

    def _open(self, version: int | None = None) -> DeltaTable:
        with _translated():
            return DeltaTable(self.uri, version, dict(self.storage) if self.storage else None)


def _as_created(schema: pa.Schema) -> pa.Schema:
    """Return a schema as a table gets it: with NOT NULL only where Spark could read the table.

    deltalake 1.6 gives a table with timestamps without a zone the features for them, but not the feature "invariants" that NOT NULL
    needs there, and Spark refuses such a table (DELTA_FEATURES_PROTOCOL_METADATA_MISMATCH). What writes to it checks its nulls anyway.
    """
    if not any(map(_has_local_times, schema.types)):
        return schema
    return pa.schema([column.with_nullable(True) for column in schema])


def _has_local_times(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is None
    return any(_has_local_times(kind.field(place).type) for place in range(kind.num_fields))


@dataclass(frozen=True, slots=True)
class DeltaStore:
    """Table of Delta, on a disk or an object store."""

    uri: str
    storage: Options = field(default=None, repr=False)

    @property
    def opened_table(self) -> OpenedTable:
        """Table that the process keeps open."""
        return delta_commits.OPENED_TABLES.of(self.uri, self.storage)

    @refusing("to create")
    @_alone
    def create(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        description: str | None = None,
        info: CommitInfo = NO_INFO,
    ) -> None:
        """Create an empty table at version 0, unless it exists."""
        if (known := self.opened_table.known()) is not None:
            if known.version() == 0:
                self.sync_commit(0)
            return
        make_folder(self._log)
        with _translated():
            table = DeltaTable.create(
                self.uri,
                schema=_as_created(schema),
                mode="ignore",
                partition_by=[*partition_by] or None,
                description=description,
                storage_options=self._options,
                configuration=_PROPERTIES,
                commit_properties=commit_properties(info),
            )
        if table.version() == 0:  # its creator may have died before it could sync it
            self.sync_commit(0)

    @refusing("to read")
    def latest(self) -> Snapshot:
        """Return the latest version. Raises `TableMissingError` when there is no table."""
        with self.opened_table.lock:
            return self._snapshot(self._open())

    @refusing("to read")
    def at(self, version: int) -> Snapshot:
        """Return a version. Raises `StorageError` when the log does not have it, or no longer has it."""
        with self.opened_table.lock:
            try:
                return self._snapshot(self._open(version))
            except TableMissingError as error:  # also raised where the log begins after the version
                latest = self.latest().version
                msg = f"the log of {self.uri} does not have version {version} any more, the latest one is {latest}"
                raise StoreError(msg) from error

    def _snapshot(self, table: DeltaTable) -> Snapshot:
        is_kept = self.opened_table.keeps(table)
        transactions = self.opened_table.transactions if is_kept else {}
        own = DeltaSnapshot(self.uri, table.version(), table, self.storage, transactions)
        base = base_of(table.metadata().description)
        if base is None:
            return own
        return OverlaySnapshot(own, base, lambda: DeltaStore(base.uri(self.uri), self.storage).at(base.version))

    @committing
    @_alone
    def append(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Add staged files, possibly none; return the new version."""
        if not files and (own := self._own_commits(parent)) is not None:
            return self._landed(own.record(parent, info))
        return self._add(parent, schema, files, "append", info)

    @committing
    @_alone
    def append_rows(self, parent: int, rows: pa.Table, info: CommitInfo = NO_INFO, *, is_checked: bool = False) -> int:
        """Write rows as a file and add it, with columns that the table lacks; return the new version.

        If `is_checked`, raise `SinkMismatchError` for a row that breaks a rule of the table.
        """
        table = self._open(parent)
        if not is_checked and {*rows.schema.names} <= {field.name for field in table.schema().fields}:
            file = self._files.stage(f"part-{clock.unique_id()}.parquet", rows)
            return self._add(parent, rows.schema, [file], "append", info)
        self.sync_commit(parent)
        columns = pa.schema(table.schema())
        for column in columns:
            if column.name not in rows.schema.names:
                rows = rows.append_column(column, pa.nulls(len(rows), column.type))
        is_wider = len(rows.schema) > len(
            columns
        )  # deltalake widens no table that maps its columns, and refuses to be asked
        with _translated():
            write_deltalake(
                table,
                rows,
                mode="append",
                schema_mode="merge" if is_wider else None,
                commit_properties=commit_properties(info),
                post_commithook_properties=_after_commit(table),
            )
        if table.version() != parent + 1:
            msg = f"rows landed at version {table.version()} of {self.uri}, not {parent + 1}"
            raise EngineBug(msg)
        self.sync(table.version())
        return table.version()

    @committing
    @_alone
    def replace(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Replace the whole content by staged files; return the new version."""
        if not files and (own := self._own_commits(parent)) is not None:
            return self._landed(own.empty(parent, info))
        return self._add(parent, schema, files, "overwrite", info)

    @committing
    @_alone
    def add_columns(self, parent: int, columns: Sequence[pa.Field], info: CommitInfo = NO_INFO) -> int:
        """Add columns, null in existing rows; return the new version. No file is rewritten."""
        table = self._open(parent)
        self.sync_commit(parent)
        with _translated():
            fields = Schema.from_arrow(pa.schema(columns)).fields
            table.alter.add_columns(fields, commit_properties=commit_properties(info))
        return self._landed(parent + 1)

    @committing
    @_alone
    def optimize(self, parent: int, target_size: int, cluster_by: Sequence[str] = ()) -> int:
        """Rewrite small files into larger ones; return the new version, or `parent` if there are none.

        This is one commit: deltalake makes several only if a time between them is given.
        """
        table = self._open(parent)
        self.sync_commit(parent)
        options: dict[str, Any] = {
            "target_size": target_size,
            "max_concurrent_tasks": 1,
            "commit_properties": commit_properties(NO_INFO),
        }
        with _translated():
            if cluster_by:
                table.optimize.z_order([*cluster_by], **options)
            else:
                table.optimize.compact(**options)
        if table.version() != parent:
            self.sync(table.version())
        return table.version()

    @committing
    @_alone
    def restore(self, parent: int, target: int, info: CommitInfo = NO_INFO) -> int:
        """Make the content of an earlier version the latest; return the new version.

        Raises `VersionTakenError` when the table is not at `parent`, and `StorageError` when a file of the target is gone.
        """
        table = self._open()
        if table.version() != parent:
            msg = f"{self.uri} is at version {table.version()}, not {parent}"
            raise VersionTakenError(msg)
        self.sync_commit(parent)
        if (own := self._own_commits(parent)) is not None:
            return self._landed(own.restore(parent, target, info))
        with _translated():
            table.restore(target, commit_properties=commit_properties(info))
        return self._landed(parent + 1)

    @committing
    @_alone
    def rewind(
        self, parent: int, target: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO
    ) -> int:
        """Make an earlier version's content, and staged files, the latest. Files that come back lose their statistics."""
        table = self._open(parent)
        current, target_files = _actions(table), _actions(self._open(target))
        removals = [_removal(action) for path, action in current.items() if path not in target_files]
        returns = [_return(action) for path, action in target_files.items() if path not in current]
        return self._transact(table, schema, [*removals, *returns, *map(_addition, files)], "append", info)

    @committing
    @_alone
    def merge(self, parent: int, rows: pa.Table, keys: Sequence[str], info: CommitInfo = NO_INFO) -> int:
        """Apply changes by primary key; return the new version, or `parent` when nothing changed."""
        table = self._open(parent)
        columns = {name: f"source.{name}" for name in map(quoted, rows.schema.names) if name != quoted(ROW_KIND)}
        self.sync_commit(parent)
        with _translated():
            merge = table.merge(
                rows,
                predicate=" AND ".join(f"target.{name} = source.{name}" for name in map(quoted, keys)),
                source_alias="source",
                target_alias="target",
                streamed_exec=False,
                commit_properties=commit_properties(info),
                post_commithook_properties=_after_commit(table),
            )
            merge = merge.when_matched_delete(predicate=f"source.{ROW_KIND} = '-D'")
            merge = merge.when_matched_update(columns, predicate=f"source.{ROW_KIND} <> '-D'")
            merge.when_not_matched_insert(columns, predicate=f"source.{ROW_KIND} <> '-D'").execute()
        self.opened_table.keep(table)  # it is at the new version
        if table.version() != parent:
            self.sync(table.version())
        return table.version()

    @refusing("to sync")
    def sync(self, version: int) -> None:
        """Make a version survive a power failure, with the files that it adds."""
        commit = Path(self.uri, commit_file(version))
        if (
            is_on_local_disk(self.uri) and commit.exists()
        ):  # else a clean-up of the log has removed it, after a log checkpoint
            self._files.sync(_added_files(commit.read_bytes()))
            self.sync_commit(version)

    @refusing("to list the log of")
    def log_as_of(self, timestamp: int) -> TableLog:
        """List the table's log, and find the version that was the latest at a timestamp (ms)."""
        store, root = self._files.file_system()
        files = store.get_file_info(fs.FileSelector(f"{root}/{LOG}", allow_not_found=True))
        files = [file for file in files if _ENTRY.fullmatch(file.base_name)]
        entries = {f"{LOG}/{file.base_name}": _version_of(file) for file in files}
        commits = [file for file in files if file.base_name.endswith(COMMIT_SUFFIX)]
        old = (_version_of(file) for file in commits if file.mtime_ns < timestamp * 1_000_000)
        return TableLog(entries, max(old, default=min(map(_version_of, commits), default=0)))

    @refusing("a checkpoint in the log of")
    @_alone
    def keep_versions(self, versions: Iterable[int]) -> None:
        """Write a log checkpoint for each version, so that entries of the log before it may be deleted."""
        store, root = self._files.file_system()
        for version in sorted(versions):
            log_checkpoint = f"{root}/{_log_checkpoint(version)}"
            if store.get_file_info(log_checkpoint).type is fs.FileType.NotFound:
                table = self._open(version)
                with _translated():
                    table.create_checkpoint()
            self._files.sync([_log_checkpoint(version)])

    @refusing("to read the log of")
    def trace(self, files: Collection[str]) -> FileTrace:
        """Find the places in the log that name one of these data files."""
        return trace_in_log(self.uri, self.log_as_of(0).entries, files, self.storage)

    @property
    def _log(self) -> str:
        return f"{self.uri}/{LOG}"

    @refusing("to sync")
    def sync_commit(self, version: int) -> None:
        """Sync the log's entry of a commit, unless a clean-up of the log has removed it.

        Each commit first syncs its parent, since the parent's writer may have died before it could, and then itself. So at
        most the last commit is not synced. deltalake adds a log checkpoint to some commits.
        """
        if is_on_local_disk(self.uri):
            entries = [commit_file(version), _log_checkpoint(version)]
            self._files.sync([name for name in entries if Path(self.uri, name).exists()])

    def _own_commits(self, parent: int) -> OwnCommits | None:
        """Return the writer of commits without rows to a table that deltalake cannot commit to; None for any other table."""
        form = form_of(self._open(parent))
        if form.takes_commits and not (form.needs_spark and is_on_local_disk(self.uri)):
            return None
        self.sync_commit(parent)
        return OwnCommits(self._files)

    @property
    def _files(self) -> Files:
        return Files(self.uri, self.storage)

    @property
    def _options(self) -> dict[str, str] | None:
        return dict(self.storage) if self.storage else None

    def _open(self, version: int | None = None) -> DeltaTable:
        """Return the table at a version, by default the latest. The next call may move it on to a later version."""
        known = self.opened_table.known(version)
        if known is not None:
            return known
        table = self._open_anew(version)
        self.opened_table.keep(table)
        return table

    def _open_anew(self, version: int | None) -> DeltaTable:
        try:
            return self._opened(version)
        except StoreError as error:
            if "_last_checkpoint hint" in str(error):
                self._remove_torn_checkpoint()
                return self._opened(version)
            wanted = "its latest version" if version is None else f"version {version}"
            if (torn := torn_commit(self.uri, self.storage)) is not None:
                raise DamagedError(torn) from error
            msg = f"the Delta log in {self.uri}/{LOG} does not give {wanted} (damaged, incomplete or out of reach): {error}"
            raise StoreError(msg) from error

    def _opened(self, version: int | None) -> DeltaTable:
        with _translated():
            return DeltaTable(self.uri, version=version, storage_options=self._options)

    def _remove_torn_checkpoint(self) -> None:
        """Remove the hint to a log checkpoint that is gone or empty: the power failed before it was synced."""
        store, root = self._files.file_system()
        files = store.get_file_info(fs.FileSelector(f"{root}/{LOG}"))
        torn = [f"{LOG}/{file.base_name}" for file in files if file.extension == "parquet" and file.size == 0]
        self._files.delete([HINT, *torn])

    def _add(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], mode: Any, info: CommitInfo) -> int:
        return self._transact(self._open(parent), schema, [*map(_addition, files)], mode, info)

    def _transact(
        self,
        table: DeltaTable,
        schema: pa.Schema,
        actions: list[AddAction | RemoveAction],
        mode: Any,
        info: CommitInfo,
    ) -> int:
        parent = table.version()
        self.sync_commit(parent)
        with _translated():
            table.create_write_transaction(
                actions,
                mode=mode,
                schema=schema,
                partition_by=table.metadata().partition_columns or None,
                commit_properties=commit_properties(info),
                post_commithook_properties=_after_commit(table),
            )
        return self._landed(parent + 1)

    def _landed(self, expected: int) -> int:
        if not self.opened_table.has_commit(expected) and self._open().version() < expected:
            msg = f"a commit to {self.uri} did not land at version {expected}"
            raise EngineBug(msg)
        self.sync_commit(expected)
        return expected


@contextmanager
def _translated() -> Iterator[None]:
    """Convert deltalake's errors to those of `TableStore`."""
    try:
        yield
    except CommitFailedError as error:
        refusal = TableRefusedError if is_refusal(str(error)) else VersionTakenError
        raise refusal(plain(str(error))) from error
    except TableNotFoundError as error:
        raise TableMissingError(plain(str(error))) from error
    except DeltaError as error:
        message = plain(str(error))
        raise (TableRefusedError if is_refusal(message) else StoreError)(message) from error


def _after_commit(table: DeltaTable) -> PostCommitHookProperties:
    """Return what deltalake does behind a commit: a log checkpoint, where one is due, and the table's own clean-up of its log.

    For a clean-up deltalake lists the whole log behind each commit: after 500 commits 3 of 5 ms of CPU. In a log that is kept as long as
    Headrace keeps it there is nothing to remove.
    """
    is_kept = table.metadata().configuration.get(_LOG_RETENTION) == _PROPERTIES[_LOG_RETENTION]
    return PostCommitHookProperties(cleanup_expired_logs=False if is_kept else None)


def _addition(file: StagedFile) -> AddAction:
    return AddAction(file.path, file.size, file.partition, clock.now(), True, file.statistics())


def _actions(table: DeltaTable) -> dict[str, dict[str, Any]]:
    """Return the data files of a table by their paths, as its log has them."""
    with _translated():
        return {action["path"]: action for action in pa.table(table.get_add_actions()).to_pylist()}


def _removal(action: dict[str, Any]) -> RemoveAction:
    return RemoveAction(_decoded(action), True, clock.now(), action["size_bytes"], _texts(action.get("partition")))


def _return(action: dict[str, Any]) -> AddAction:
    stats = msgspec.json.encode({"numRecords": action["num_records"]}).decode()
    values = _texts(action.get("partition"))
    return AddAction(_decoded(action), action["size_bytes"], values, clock.now(), True, stats)


def _texts(partition: Mapping[str, Any] | None) -> dict[str, str | None]:
    """Return the values of partition columns as the log writes them."""
    return {name: partition_text(value) for name, value in (partition or {}).items()}


def _decoded(action: dict[str, Any]) -> str:
    """Return the path of a file for a commit, which encodes it again."""
    return unquote(action["path"])


_ENTRY = re.compile(r"\d{20}(\.json|\.checkpoint.*\.parquet)")
"""Names of entries of a table's log: commits and log checkpoints."""


def _version_of(entry: fs.FileInfo) -> int:
    return int(entry.base_name.partition(".")[0])


def _log_checkpoint(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def _added_files(commit: bytes) -> list[str]:
    """Return the data files that a commit adds, relative to the table's folder. The log has paths as URLs."""
    actions = [msgspec.json.decode(line) for line in commit.splitlines() if line]
    added = [action["add"] for action in actions if "add" in action]
    vectors = (DeletionVector.of(file["deletionVector"]) for file in added if file.get("deletionVector"))
    return [
        *(unquote(file["path"]) for file in added),
        *dict.fromkeys(name for vector in vectors for name in vector.files),
    ]
