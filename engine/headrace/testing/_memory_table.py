"""Table in memory that behaves like a Delta table, for unit tests and simulations.

As with deltalake, a merge that changes nothing makes no commit; a restore needs the files of its target, and keeps transactions;
a power failure loses versions and files that were not synced (`memory_disk`). Data files are Parquet, as in Delta.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from threading import Lock
from typing import Any

import pyarrow as pa

from headrace import clock
from headrace.storage.files import Files, StagedFile
from headrace.storage.overlay import OverlaySnapshot, base_of, own_rows
from headrace.storage.predicate import Conditions, rows_that_meet
from headrace.storage.refusals import StoreError, committing, refusing
from headrace.storage.schemes import Scheme, register
from headrace.storage.table import (
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
    typed_rows,
)
from headrace.testing._memory_disk import (
    SCHEME,
    MemoryDisk,
    PostponedError,
    disk_and_path,
    memory_file_system,
    sync_on_disk,
)

_COMMITTING = Lock()


@dataclass(frozen=True, slots=True)
class _Version:
    """Content of a table at one version."""

    schema: pa.Schema
    files: dict[str, StagedFile]
    transactions: dict[str, int]
    partition_columns: tuple[str, ...] = ()
    description: str | None = None
    info: CommitInfo = NO_INFO
    committed_at: int = field(default_factory=clock.now)


@dataclass(frozen=True, slots=True)
class MemorySnapshot:
    """Table in memory at one version."""

    uri: str
    version: int
    _versions: Sequence[_Version] = field(repr=False)

    @property
    def table_id(self) -> str:
        """Return nothing: one process has the disk."""
        return ""

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table at this version."""
        return self._now.schema

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Columns that the table is partitioned by."""
        return self._now.partition_columns

    @property
    def rules(self) -> tuple[str, ...]:
        """No rules: a table in memory has none."""
        return ()

    @property
    def form(self) -> TableForm:
        """Form of a table that Headrace has made."""
        return TableForm()

    @refusing("to read")
    def files(self) -> set[str]:
        """Return the data files, relative to the table's folder."""
        return set(self._now.files)

    @refusing("to read")
    def add_actions(self) -> pa.Table:
        """Return the data files with their sizes, partition values and statistics."""
        rows = [
            {"path": path, "size_bytes": file.size, "num_records": file.rows}
            | {f"partition.{name}": value for name, value in file.partition.items()}
            | {f"min.{name}": value for name, value in file.minimum.items()}
            | {f"max.{name}": value for name, value in file.maximum.items()}
            for path, file in self._now.files.items()
        ]
        names = list(dict.fromkeys(name for row in rows for name in row)) or ["path", "size_bytes", "num_records"]
        return pa.table({name: [row.get(name) for row in rows] for name in names})

    @refusing("to read")
    def read(self, schema: pa.Schema, *, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> pa.Table:
        """Return the rows that meet all conditions, in the types of `schema`."""
        names = list(columns) if columns is not None else schema.names
        rows = self._rows(pa.unify_schemas([self.schema, schema]), conditions)
        return typed_rows(self.uri, rows, pa.schema([schema.field(name) for name in names]))

    @refusing("to read")
    def stream(self, columns: Sequence[str] | None = None, conditions: Conditions = ()) -> Any:
        """Return the rows as an Arrow stream that can be read once."""
        rows = self._rows(self.schema, conditions)
        return rows.select(list(columns) if columns else rows.schema.names).to_reader()

    @refusing("to read")
    def transaction(self, app_id: str) -> int | None:
        """Return the version of an application's last transaction; None without one."""
        return self._now.transactions.get(app_id)

    @refusing("to read")
    def history(self, limit: int | None = None) -> list[Commit]:
        """Return the commits up to this version that were not deleted, newest first."""
        numbered = reversed([*enumerate(self._versions)])
        kept = takewhile(lambda pair: pair[1] is not None, numbered)  # deleted commits, and those before, are left out
        infos = (
            Commit(
                number, replace(version.info, transaction=None, incarnation=None, further=()), self._keeps_rows(number)
            )
            for number, version in kept
        )  # as Delta's history
        return list(islice(infos, limit))

    def _keeps_rows(self, number: int) -> bool:
        """Tell whether a version has the columns of the one before and more, and the same rows."""
        before, now = (self._versions[number - 1] if number else None), self._versions[number]
        return before is not None and before.files == now.files and before.schema != now.schema

    @property
    def _now(self) -> _Version:
        return self._versions[-1]

    def _rows(self, schema: pa.Schema, conditions: Conditions) -> pa.Table:
        disk, folder = disk_and_path(self.uri)
        tables = [schema.empty_table()]
        for path, file in self._now.files.items():
            rows = disk.opened(f"{folder}/{path}").rows()
            for name, value in file.partition.items():
                column = pa.array([value], pa.string()).cast(schema.field(name).type)[0]
                rows = rows.append_column(name, pa.repeat(column, len(rows)))
            tables.append(typed_rows(self.uri, rows, schema))
        return rows_that_meet(conditions, pa.concat_tables(tables))


class MemoryStore:
    """Table in memory."""

    def __init__(self, uri: str) -> None:
        """Open the table at `uri`, which begins with `memory://`."""
        self.uri = uri
        self._disk: MemoryDisk
        self._disk, self._path = disk_and_path(uri)

    @refusing("to create")
    def create(
        self,
        schema: pa.Schema,
        partition_by: Sequence[str] = (),
        description: str | None = None,
        info: CommitInfo = NO_INFO,
    ) -> None:
        """Create an empty table at version 0, unless it exists."""
        if self._path not in self._disk.tables:
            self._disk.fault("commit", self._path)
            first = _Version(schema, {}, dict(info.transactions), tuple(partition_by), description, info)
            self._disk.tables.setdefault(self._path, [first])  # another writer may have made it by now
        if len(self._present()) == 1:  # its creator may have died before it could sync it
            self._disk.sync_versions(self._path, [0])

    @refusing("to read")
    def latest(self) -> Snapshot:
        """Return the latest version. Raises `TableMissingError` when there is no table."""
        versions = self._versions()
        return self._snapshot(versions)

    @refusing("to read")
    def at(self, version: int) -> Snapshot:
        """Return a version. Raises `StorageError` when the table does not have it, or no longer has it."""
        versions = self._versions()
        self._version(version)
        return self._snapshot(versions[: version + 1])

    def _snapshot(self, versions: Sequence[_Version]) -> Snapshot:
        own, base = MemorySnapshot(self.uri, len(versions) - 1, tuple(versions)), base_of(versions[-1].description)
        if base is None:
            return own
        return OverlaySnapshot(own, base, lambda: MemoryStore(base.uri(self.uri)).at(base.version))

    @committing
    def append(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Add staged files, possibly none; return the new version."""
        del schema
        return self._commit(parent, info, lambda now: replace(now, files=now.files | _by_path(files)))

    @committing
    def append_rows(self, parent: int, rows: pa.Table, info: CommitInfo = NO_INFO, *, is_checked: bool = False) -> int:
        """Write rows as a file and add it, with columns that the table lacks; return the new version. There are no rules."""
        del is_checked
        file = Files(self.uri).stage(f"part-{clock.unique_id()}.parquet", rows)

        def with_rows(now: _Version) -> _Version:
            schema = pa.unify_schemas([now.schema, rows.schema])
            return replace(now, schema=schema, files=now.files | _by_path([file]))

        return self._commit(parent, info, with_rows)

    @committing
    def replace(self, parent: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO) -> int:
        """Replace the whole content by staged files; return the new version."""
        del schema
        return self._commit(parent, info, lambda now: replace(now, files=_by_path(files)))

    @committing
    def add_columns(self, parent: int, columns: Sequence[pa.Field], info: CommitInfo = NO_INFO) -> int:
        """Add columns, null in existing rows; return the new version."""
        return self._commit(parent, info, lambda now: replace(now, schema=pa.schema([*now.schema, *columns])))

    @committing
    def optimize(self, parent: int, target_size: int, cluster_by: Sequence[str] = ()) -> int:
        """Return `parent`: files in memory are never rewritten."""
        del target_size, cluster_by
        self._version(parent)
        return parent

    @committing
    def restore(self, parent: int, target: int, info: CommitInfo = NO_INFO) -> int:
        """Make the content of an earlier version the latest; return the new version.

        Raises `StorageError` when a file of the target is gone, or the target is not before the parent.
        """

        def restored(now: _Version) -> _Version:
            if target >= parent:
                msg = f"version {target} of {self.uri} is not before version {parent}"
                raise StoreError(msg)
            content = self._version(target)
            if lost := sorted(path for path in content.files if f"{self._path}/{path}" not in self._disk.files):
                msg = f"file {lost[0]} of version {target} of {self.uri} is gone"
                raise StoreError(msg)
            return replace(content, transactions=now.transactions)

        return self._commit(parent, info, restored)

    @committing
    def rewind(
        self, parent: int, target: int, schema: pa.Schema, files: Sequence[StagedFile], info: CommitInfo = NO_INFO
    ) -> int:
        """Make an earlier version's content, and staged files, the latest."""
        del schema
        content = self._version(target)
        return self._commit(parent, info, lambda now: replace(now, files=content.files | _by_path(files)))

    @committing
    def merge(self, parent: int, rows: pa.Table, keys: Sequence[str], info: CommitInfo = NO_INFO) -> int:
        """Apply changes by primary key; return the new version, or `parent` when nothing changed."""
        before = own_rows(self.at(parent))
        schema = before.schema
        merged = _merge_rows(before.read(schema), rows, keys)
        if merged is None:
            return parent
        file = Files(self.uri).stage(f"part-{clock.unique_id()}.parquet", merged, survives=False)
        merged_at = self._add_version(parent, info, lambda now: replace(now, files=_by_path([file])))
        self.sync(merged_at)
        return merged_at

    @refusing("to sync")
    def sync(self, version: int) -> None:
        """Make a version survive a power failure, with the files that it adds."""
        before, now = self._present()[version - 1] if version else None, self._present()[version]
        added = now.files.keys() - (before.files if before is not None else {})
        self._disk.sync_files(f"{self._path}/{name}" for name in added)
        self.sync_commit(version)

    @refusing("to list the log of")
    def log_as_of(self, timestamp: int) -> TableLog:
        """List the versions, and find the one that was the latest at a timestamp (ms)."""
        versions: list[_Version | None] = [*self._versions()]
        present = {number: version for number, version in enumerate(versions) if version is not None}
        old = (number for number, version in present.items() if version.committed_at < timestamp)
        entries = {_entry_of(number): number for number in present}
        return TableLog(entries, max(old, default=min(present)))

    @refusing("a checkpoint in the log of")
    def keep_versions(self, versions: Iterable[int]) -> None:
        """Check that the versions exist; each of them is independent of the others."""
        for version in versions:
            self.at(version)

    @refusing("to read the log of")
    def trace(self, files: Collection[str]) -> FileTrace:
        """Find the versions that contain one of these data files."""
        versions: list[_Version | None] = [*self._versions()]
        wanted = frozenset(files)
        numbered = enumerate(versions)
        naming = frozenset(
            number for number, version in numbered if version is not None and wanted & version.files.keys()
        )
        return FileTrace(frozenset(map(_entry_of, naming)), naming)

    def sync_commit(self, version: int) -> None:
        """Sync a commit. As in `DeltaStore`, each commit first syncs its parent, and then itself."""
        self._disk.sync_versions(self._path, [version])

    def _versions(self) -> list[_Version]:
        self._disk.fault("open", self._path)
        return self._present()

    def _version(self, number: int) -> _Version:
        versions = self._present()
        if not 0 <= number < len(versions) or versions[number] is None:
            msg = f"{self.uri} has versions 0 to {len(versions) - 1}, not {number}"
            raise StoreError(msg)
        return versions[number]

    def _present(self) -> list[_Version]:
        if self._path not in self._disk.tables:
            msg = f"there is no table at {self.uri}"
            raise TableMissingError(msg)
        return self._disk.tables[self._path]

    def _commit(self, parent: int, info: CommitInfo, change: Callable[[_Version], _Version]) -> int:
        """Add a version and sync it."""
        version = self._add_version(parent, info, change)
        self.sync_commit(version)
        return version

    def _add_version(self, parent: int, info: CommitInfo, change: Callable[[_Version], _Version]) -> int:
        """Add a version, by compare-and-set on the number of versions."""
        if parent < len(self._versions()):
            self.sync_commit(parent)
        try:
            self._disk.fault("commit", self._path)
        except PostponedError:
            self._disk.postponed.append(lambda: self._land_late(parent, info, change))
            raise
        self._land(parent, info, change)
        self._disk.acknowledge("commit", self._path)
        return parent + 1

    def _land(self, parent: int, info: CommitInfo, change: Callable[[_Version], _Version]) -> None:
        with _COMMITTING:  # no call of `fault` here: it may commit itself
            versions = self._present()
            if len(versions) != parent + 1:
                msg = f"{self.uri} is at version {len(versions) - 1}, not {parent}"
                raise VersionTakenError(msg)
            after = replace(change(versions[-1]), info=info, committed_at=clock.now())
            after = replace(after, transactions=after.transactions | dict(info.transactions))
            versions.append(after)

    def _land_late(self, parent: int, info: CommitInfo, change: Callable[[_Version], _Version]) -> None:
        """Land a commit whose writer has already got an error."""
        with suppress(VersionTakenError, TableMissingError, StoreError):
            self._land(parent, info, change)


def open_memory() -> str:
    """Open places `memory://` in this process from now on; return the scheme's name."""
    register(SCHEME, Scheme(memory_file_system, sync_on_disk, MemoryStore))
    return SCHEME


def _entry_of(version: int) -> str:
    """Return the name of a version's entry in the table's log."""
    return f"{LOG}/{version:020d}.version"


def _by_path(files: Sequence[StagedFile]) -> dict[str, StagedFile]:
    return {file.path: file for file in files}


def _merge_rows(target: pa.Table, changes: pa.Table, keys: Sequence[str]) -> pa.Table | None:
    """Apply changes to a table by primary key; return None if they change nothing. A null matches no key, as in SQL."""
    rows: dict[Any, dict[str, Any]] = {_identity(row, keys): row for row in target.to_pylist()}
    is_changed = False
    for change in changes.to_pylist():
        key = _identity(change, keys)
        if change[ROW_KIND] == "-D":
            is_changed |= rows.pop(key, None) is not None
        else:
            untouched = rows.get(key, {})
            rows[key] = {name: change.get(name, untouched.get(name)) for name in target.schema.names}
            is_changed = True
    return pa.Table.from_pylist(list(rows.values()), target.schema) if is_changed else None


def _identity(row: dict[str, Any], keys: Sequence[str]) -> object:
    key = tuple(row[name] for name in keys)
    return object() if None in key else key
