"""Log of a Delta table that other programs write, commit by commit: the files that each version adds, removes or lists as changes.

deltalake returns the files of a version, not those of a commit, so commits are read from the log's own files (Delta protocol,
"Delta Log Entries").

Search for data files in the log of a Delta table. Its entries contain the smallest and largest key of each file.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.storage.deletion_vectors import DeletionVector
from headrace.storage.delta_schema import DeltaColumn, from_logged, logged_columns, unknown_types
from headrace.storage.files import Files
from headrace.storage.log_checkpoints import LogCheckpoint, last_log_checkpoint
from headrace.storage.refusals import StoreError
from headrace.storage.schemes import Options, file_system, logged_path
from headrace.storage.table import COMMIT_SUFFIX, CORRECTION, LOG, Correction, FileTrace, TableMissingError, commit_file

CHANGE_FEED: Final = "delta.enableChangeDataFeed"
_MAPPING: Final = "delta.columnMapping.mode"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_READABLE: Final = frozenset(
    {
        *("columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint"),
        *("vacuumProtocolCheck", "variantType", "variantType-preview", "variantShredding", "variantShredding-preview"),
        *("geospatial", "geospatial-dev"),  # their columns have types of their own, which are refused
    }
)
"""Reader features of Delta that a table may list."""
_LAST_READER: Final = 3
"""Last reader version of Delta's protocol. It lists features by name."""

_DESCRIPTIONS: Final = frozenset({"metaData", "protocol"})
"""Actions that describe a table."""

PartitionValues = Mapping[str, str | None]


class LoggedFile(NamedTuple):
    """File in the log: its path in the table's folder or an absolute one, and the values of partition columns as text.

    `partition` is None where a removed file is listed without them. A column that it lacks is null.
    """

    path: str
    partition: PartitionValues | None
    is_data_change: bool = True
    vector: DeletionVector | None = None
    """Rows of the file that are deleted."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the paths that the log has for the file: its own, and that of its deletion vector, unless it has the vector's name or rows."""
        return (self.path, *(() if self.vector is None or self.vector.storage != "p" else (self.vector.path,)))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Return what tells the file from others of the table. One path with two vectors is two of them."""
        return (self.path, *(("", 0) if self.vector is None else (self.vector.content, self.vector.offset)))


@dataclass(frozen=True, slots=True)
class DeltaCommit:
    """Commit of a table."""

    version: int
    timestamp: int
    """Time of the commit (ms)."""
    operation: str
    added: tuple[LoggedFile, ...] = ()
    removed: tuple[LoggedFile, ...] = ()
    changes: tuple[LoggedFile, ...] = ()
    """Files of the change data feed. If there are any, they contain all changes of the commit."""
    restored: int | None = None
    """Target version of a RESTORE."""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    is_dated: bool = True
    """Whether the commit has its time in itself; else `timestamp` is the time at which its file was last changed, which a copy changes."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Versions of transactions, by application."""
    correction: Correction | None = None
    """Correction of earlier rows by the job that writes the table, if the commit is one."""

    @property
    def is_restore(self) -> bool:
        """Return whether the commit brings an earlier version back."""
        return self.operation == "RESTORE"

    @property
    def appended(self) -> tuple[LoggedFile, ...]:
        """Return the files with new rows, without files that only rewrite existing rows in another layout."""
        return _changed_files(self.added, self.removed)

    @property
    def dropped(self) -> tuple[LoggedFile, ...]:
        """Return the files whose rows were removed or changed, without files that were rewritten in another layout."""
        return _changed_files(self.removed, self.added)


def _changed_files(files: Sequence[LoggedFile], others: Sequence[LoggedFile]) -> tuple[LoggedFile, ...]:
    """Return the files with another content. A file that a commit removes and adds with the same vector has the same rows."""
    same = {file.identity for file in others}
    return tuple(file for file in files if file.is_data_change and file.identity not in same)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table at one version: its id, columns and settings."""

    table_id: str
    columns: tuple[DeltaColumn, ...]
    in_files: tuple[DeltaColumn, ...] = field(repr=False)
    """The columns, with what a reader of data files needs to know of them."""
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str] = field(repr=False)
    actions: tuple[Mapping[str, Any], Mapping[str, Any]] = field(repr=False)
    """Actions of the log that describe the table: its metadata, and its protocol."""

    @classmethod
    def of(cls, metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> TableState:
        """Return the state that two actions of the log describe."""
        configuration = metadata.get("configuration") or {}
        columns = logged_columns(metadata["schemaString"], configuration.get(_MAPPING, "none"))
        partition = tuple(metadata.get("partitionColumns") or ())
        in_files = tuple(column.in_files for column in columns)
        return cls(metadata["id"], columns, in_files, partition, configuration, (metadata, protocol))

    @property
    def schema(self) -> pa.Schema:
        """Return the columns with Arrow's types."""
        return from_logged(msgspec.json.decode(self.actions[0]["schemaString"]))

    @property
    def has_change_feed(self) -> bool:
        """Return whether the change data feed is on, so that commits list their changes."""
        return self.configuration.get(CHANGE_FEED, "").lower() == "true"

    @property
    def unreadable(self) -> str | None:
        """Return the feature that makes its files unreadable; None if they can be read."""
        return next(self._unreadable(), None)

    def _unreadable(self) -> Iterator[str]:
        mode = self.configuration.get(_MAPPING, "none")
        if mode not in {"none", "name", "id"}:
            yield f"column mapping by {mode} ({_MAPPING})"
        protocol = self.actions[1]
        if unknown := sorted({*(protocol.get("readerFeatures") or ())} - _READABLE):
            yield f"the table feature {', '.join(unknown)}"
        if protocol.get("minReaderVersion", 1) > _LAST_READER:
            yield f"reader version {protocol['minReaderVersion']} of Delta's protocol"
        if types := sorted(unknown_types(self.columns)):
            yield f"columns of other types: {', '.join(types)}"
        if others := sorted({*self.partition_columns} - {column.name for column in self.columns}):
            yield f"partition columns that are none of its columns ({', '.join(others)})"
        counts = Counter(column.name.lower() for column in self.columns)
        if twins := sorted(column.name for column in self.columns if counts[column.name.lower()] > 1):
            yield f"columns whose names differ only in case ({', '.join(twins)})"


def versions_down_from(latest: int, table: Files, count: int | None = None) -> list[int]:
    """Return the versions whose commits are in a table's log, from the latest one down to the first gap; at most `count` of them."""
    present = {int(match[1]) for name, _ in table.listed(LOG, recursive=False) if (match := _COMMIT.fullmatch(name))}
    least = 0 if count is None else max(0, latest - count + 1)
    return [*takewhile(present.__contains__, range(latest, least - 1, -1))]


class DeltaLog:
    """Reader of one table's log. Commits never change, so each is read once."""

    def __init__(self, uri: str, storage: Options = None) -> None:
        """Keep the arguments; read nothing yet."""
        self._uri, self._storage = uri, storage
        self._commits: dict[int, DeltaCommit | None] = {}
        self._states: dict[int, TableState] = {}

    def versions(self) -> range:
        """Return the versions whose commits are in the log, up to the latest one, without a gap.

        A log that ends with a checkpoint has that version alone. Raises `TableMissingError` where there is no table, `StoreError` where
        the log cannot be listed.
        """
        listed = [*Files(self._uri, self._storage).listed(LOG, recursive=False)]
        sizes = {int(match[1]): file.size for name, file in listed if (match := _COMMIT.fullmatch(name))}
        # The last commit may be empty since its writer is still at work. One before it has lost its content: reading it says so.
        last = max((version for version, size in sizes.items() if size), default=-1)
        checkpoint = last_log_checkpoint(name for name, _ in listed)
        if checkpoint is not None and checkpoint.version > last:
            return range(checkpoint.version, checkpoint.version + 1)
        present = {version for version in sizes if version <= last}
        if not present:
            msg = f"there is no Delta table {self._uri}"
            raise TableMissingError(msg)
        first = last
        while first - 1 in present:
            first -= 1
        return range(first, last + 1)

    def commit(self, version: int) -> DeltaCommit:
        """Return a commit. Raises `StoreError` where the log no longer has it, or it cannot be read."""
        commit = self._written(version)
        if commit is None:
            msg = f"{self._uri}/{commit_file(version)} is empty: its writer died, or the power failed"
            raise StoreError(msg)
        return commit

    def _written(self, version: int) -> DeltaCommit | None:
        """Return a commit; None if its file is empty. To all who read the table, such a commit changes nothing."""
        if version not in self._commits:
            self._commits[version] = self._read(version)
        return self._commits[version]

    def state(self, version: int) -> TableState:
        """Return the state of the table at a version. Raises `StoreError` where the log no longer has the version."""
        if version not in self._states:
            known = self._states.get(version - 1)
            self._states[version] = (
                self._open_state(version) if known is None else self._state_after(known, self._written(version))
            )
        return self._states[version]

    def files(self, version: int) -> tuple[LoggedFile, ...]:
        """Return all files of a version. Raises `StoreError` where the log no longer has what lists them."""
        checkpoint = self._checkpoint(version)
        present: dict[tuple[str, str, int], LoggedFile] = {}
        if checkpoint is not None:
            present = {file.identity: file for file in _logged(self._in_checkpoint(checkpoint, "add"))}
        for number in range(0 if checkpoint is None else checkpoint.version + 1, version + 1):
            if (commit := self._written(number)) is not None:
                for file in commit.removed:
                    present.pop(file.identity, None)
                present.update((file.identity, file) for file in commit.added)
        return tuple(present.values())

    def _read(self, version: int) -> DeltaCommit | None:
        store, path = file_system(f"{self._uri}/{commit_file(version)}", self._storage)
        try:
            info = store.get_file_info(path)
            with store.open_input_stream(path) as stream:
                content = stream.read()
            return _parse_commit(version, content, (info.mtime_ns or 0) // 1_000_000) if content else None
        except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
            msg = f"cannot read {path}: {error}"
            raise StoreError(msg) from error

    def _open_state(self, version: int) -> TableState:
        """Return the state that the last log checkpoint and the commits after it leave."""
        checkpoint = self._checkpoint(version)
        actions: dict[str, Mapping[str, Any]] = {}
        for number in range(version, -1 if checkpoint is None else checkpoint.version, -1):
            commit = self._written(number)
            ours = {} if commit is None else {"metaData": commit.metadata, "protocol": commit.protocol}
            actions = {**{kind: action for kind, action in ours.items() if action is not None}, **actions}
            if len(actions) == len(_DESCRIPTIONS):
                break
        for kind in _DESCRIPTIONS - actions.keys():
            listed = [] if checkpoint is None else self._in_checkpoint(checkpoint, kind)
            if not listed:
                msg = f"the log of {self._uri} has no {kind} up to version {version}"
                raise StoreError(msg)
            actions[kind] = listed[-1]
        return self._state_of(version, actions["metaData"], actions["protocol"])

    def _state_after(self, known: TableState, commit: DeltaCommit | None) -> TableState:
        if commit is None or (commit.metadata is None and commit.protocol is None):
            return known
        metadata, protocol = known.actions
        return self._state_of(commit.version, commit.metadata or metadata, commit.protocol or protocol)

    def _state_of(self, version: int, metadata: Mapping[str, Any], protocol: Mapping[str, Any]) -> TableState:
        try:
            return TableState.of(metadata, protocol)
        except KeyError as error:
            msg = f"the metadata or the protocol of {self._uri} in the log, up to version {version}, lacks {error}"
            raise StoreError(msg) from error
        except (msgspec.DecodeError, TypeError) as error:
            msg = f"cannot read the columns of {self._uri} in the log, up to version {version}: {error}"
            raise StoreError(msg) from error

    def _checkpoint(self, version: int) -> LogCheckpoint | None:
        names = (name for name, _ in Files(self._uri, self._storage).listed(LOG, recursive=False))
        return last_log_checkpoint(names, version)

    def _in_checkpoint(self, checkpoint: LogCheckpoint, kind: str) -> list[Mapping[str, Any]]:
        """Return the actions of a kind in a log checkpoint. Its table belongs to another program: a damaged one is not repaired."""
        try:
            return [*checkpoint.actions(kind, Files(self._uri, self._storage))]
        except (OSError, pa.ArrowException, msgspec.DecodeError, KeyError, TypeError) as error:
            msg = f"cannot read the log checkpoint of version {checkpoint.version} of {self._uri}: {error}"
            raise StoreError(msg) from error


def _parse_commit(version: int, content: bytes, modified: int) -> DeltaCommit:
    actions: dict[str, list[dict[str, Any]]] = {}
    for line in content.splitlines():
        if line.strip():
            for kind, action in msgspec.json.decode(line).items():
                actions.setdefault(kind, []).append(action)
    info: dict[str, Any] = next(iter(actions.get("commitInfo", ())), {})
    return DeltaCommit(
        version,
        int(info.get("inCommitTimestamp") or info.get("timestamp") or modified),
        str(info.get("operation", "")),
        _logged(actions.get("add", ())),
        _logged(actions.get("remove", ()), are_removed=True),
        _logged(actions.get("cdc", ())),
        _restored(info),
        next(iter(actions.get("metaData", ())), None),
        next(iter(actions.get("protocol", ())), None),
        bool(info.get("inCommitTimestamp") or info.get("timestamp")),
        {action["appId"]: action["version"] for action in actions.get("txn", ())},
        _correction(info),
    )


def _correction(info: Mapping[str, Any]) -> Correction | None:
    """Return the correction in a commit's information; None without one, and where another program has written something else there."""
    try:
        return msgspec.json.decode(info[CORRECTION], type=Correction)
    except (KeyError, TypeError, msgspec.MsgspecError):
        return None


def _restored(info: Mapping[str, Any]) -> int | None:
    """Return the target version of a RESTORE; None for other commits. Spark records null if the RESTORE named a time."""
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if info.get("operation") == "RESTORE" and version.isdecimal() else None


def _logged(actions: Iterable[Mapping[str, Any]], *, are_removed: bool = False) -> tuple[LoggedFile, ...]:
    """Return the files of actions, ordered by path. The log has paths as URLs."""
    files = (
        LoggedFile(
            logged_path(action["path"]),
            _partition_of(action, is_removed=are_removed),
            bool(action.get("dataChange", True)),
            DeletionVector.of(action["deletionVector"]) if action.get("deletionVector") else None,
        )
        for action in actions
    )
    return tuple(sorted(files, key=lambda file: file.path))


def _partition_of(action: Mapping[str, Any], *, is_removed: bool) -> PartitionValues | None:
    """Return the values of partition columns; None for a removed file whose action does not say that it has them."""
    values: PartitionValues = action.get("partitionValues") or {}
    return values if values or not is_removed or action.get("extendedFileMetadata") else None


def trace_in_log(uri: str, entries: Mapping[str, int], files: Collection[str], storage: Options = None) -> FileTrace:
    """Return the entries of a table's log that name one of `files`, and the versions that contain one.

    `entries` has the version of each entry. Each entry is read once, in the order of versions; no version is opened. Raises
    `OSError` when an entry cannot be read.
    """
    wanted, content = frozenset(files), frozenset[str]()
    naming: set[str] = set()
    versions: set[int] = set()
    for version, names in sorted(_by_version(entries).items()):
        commits = [name for name in names if name.endswith(COMMIT_SUFFIX)]
        for name in commits:
            added, removed = _changed(uri, name, storage)
            content = (content - removed) | (added & wanted)
            if added & wanted:
                naming.add(name)
        whole = {name: _listed(uri, name, storage) & wanted for name in names if name not in commits}
        if whole:
            content = frozenset[str]().union(*whole.values())
            naming |= {name for name, listed in whole.items() if listed}
        if content:
            versions.add(version)
    return FileTrace(frozenset(naming), frozenset(versions))


def _by_version(entries: Mapping[str, int]) -> Mapping[int, Sequence[str]]:
    names = defaultdict(list)
    for name, version in entries.items():
        names[version].append(name)
    return names


def _changed(uri: str, name: str, storage: Options) -> tuple[frozenset[str], frozenset[str]]:
    """Return the data files that a commit adds, and those that it removes."""
    store, path = file_system(f"{uri}/{name}", storage)
    with store.open_input_stream(path) as stream:
        actions = [msgspec.json.decode(line) for line in stream.read().splitlines() if line]
    return _paths(actions, "add"), _paths(actions, "remove")


def _listed(uri: str, name: str, storage: Options) -> frozenset[str]:
    """Return the data files that a log checkpoint lists."""
    store, path = file_system(f"{uri}/{name}", storage)
    with store.open_input_file(path) as source:
        return _paths(pq.ParquetFile(source).read(columns=["add.path"]).to_pylist(), "add")


def _paths(actions: Sequence[Mapping[str, Mapping[str, str] | None]], kind: str) -> frozenset[str]:
    return frozenset(unquote(action[kind]["path"]) for action in actions if action.get(kind))  # type: ignore[index]
