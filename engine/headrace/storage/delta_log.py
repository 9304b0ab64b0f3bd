"""Log of a Delta table that other programs write, commit by commit: the files that each version adds, removes or lists as changes.

deltalake returns the files of a version, not those of a commit, so commits are read from the log's own files (Delta protocol,
"Delta Log Entries").

Search for data files in the log of a Delta table. Its entries contain the smallest and largest key of each file.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import takewhile
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from headrace.storage.files import Files
from headrace.storage.refusals import StoreError
from headrace.storage.schemes import Options, file_system
from headrace.storage.table import COMMIT_SUFFIX, LOG, FileTrace, TableMissingError, commit_file

CHANGE_FEED: Final = "delta.enableChangeDataFeed"
_MAPPING: Final = "delta.columnMapping.mode"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_READABLE: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "typeWidening", "typeWidening-preview", "v2Checkpoint", "vacuumProtocolCheck"}
)  # fmt: skip
"""Reader features of Delta that a table may list. Its use of column mapping and deletion vectors is checked separately."""

PartitionValues = Mapping[str, str | None]


class LoggedFile(NamedTuple):
    """File in the log: its path in the table's folder, and the values of partition columns as text."""

    path: str
    partition: PartitionValues
    is_data_change: bool = True
    has_deletion_vector: bool = False


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
    transactions: Mapping[str, int] = field(default_factory=dict)
    """Versions of transactions, by application."""

    @property
    def appended(self) -> tuple[LoggedFile, ...]:
        """Return the files with new rows, without files that only rewrite existing rows in another layout."""
        return tuple(file for file in self.added if file.is_data_change)

    @property
    def dropped(self) -> tuple[LoggedFile, ...]:
        """Return the files whose rows were removed or changed, without files that were rewritten in another layout."""
        return tuple(file for file in self.removed if file.is_data_change)


@dataclass(frozen=True, slots=True)
class TableState:
    """State of a table at one version: its id, columns and settings."""

    table_id: str
    columns: tuple[tuple[str, str], ...]
    """Names and types of columns; the type of a list, map or struct is only this kind."""
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str] = field(repr=False)
    features: frozenset[str] = frozenset()

    @property
    def has_change_feed(self) -> bool:
        """Return whether the change data feed is on, so that commits list their changes."""
        return self.configuration.get(CHANGE_FEED, "").lower() == "true"

    @property
    def unreadable(self) -> str | None:
        """Return the feature that makes its files unreadable; None if they can be read."""
        mode = self.configuration.get(_MAPPING, "none")
        if mode != "none":
            return f"column mapping by {mode} ({_MAPPING})"
        unknown = sorted(self.features - _READABLE)
        return f"the table feature {', '.join(unknown)}" if unknown else None


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
        self._commits: dict[int, DeltaCommit] = {}
        self._states: dict[int, TableState] = {}

    def versions(self) -> range:
        """Return the versions whose commits are in the log, up to the latest one, without a gap.

        Raises `TableMissingError` where there is no table, `StoreError` where the log cannot be listed.
        """
        listed = Files(self._uri, self._storage).listed(LOG, recursive=False)
        sizes = {int(match[1]): file.size for name, file in listed if (match := _COMMIT.fullmatch(name))}
        # The last commit may be empty since its writer is still at work. One before it has lost its content: reading it says so.
        last = max((version for version, size in sizes.items() if size), default=-1)
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
        if version not in self._commits:
            self._commits[version] = self._read(version)
        return self._commits[version]

    def state(self, version: int) -> TableState:
        """Return the state of the table at a version. Raises `StoreError` where the log no longer has the version."""
        if version not in self._states:
            known = self._states.get(version - 1)
            self._states[version] = (
                self._open_state(version) if known is None else _state_after(known, self.commit(version))
            )
        return self._states[version]

    def schema(self, version: int) -> pa.Schema:
        """Return the columns of a version. Raises `StoreError` where the log no longer has it."""
        return pa.schema(self._table(version).schema())

    def files(self, version: int) -> tuple[LoggedFile, ...]:
        """Return all files of a version. Raises `StoreError` where the log no longer has it, or deltalake cannot list them."""
        table = self._table(version)
        try:
            actions = pa.table(table.get_add_actions())
        except DeltaError as error:
            msg = f"cannot list the files of version {version} of {self._uri}: {str(error).partition(chr(10))[0]}"
            raise StoreError(msg) from error
        has_vectors = _has_vectors(table)
        paths = [unquote(path) for path in actions["path"].to_pylist()]
        partitions = (
            actions["partition"].to_pylist() if "partition" in actions.schema.names else [{}] * actions.num_rows
        )
        return tuple(
            LoggedFile(
                path,
                {name: _partition_text(value) for name, value in values.items()},
                has_deletion_vector=has_vectors,
            )
            for path, values in zip(paths, partitions, strict=True)
        )

    def _read(self, version: int) -> DeltaCommit:
        store, path = file_system(f"{self._uri}/{commit_file(version)}", self._storage)
        try:
            info = store.get_file_info(path)
            with store.open_input_stream(path) as stream:
                content = stream.read()
            if not content:
                msg = f"{path} is empty: its writer died, or the power failed"
                raise StoreError(msg)
            return _parse_commit(version, content, (info.mtime_ns or 0) // 1_000_000)
        except (OSError, msgspec.DecodeError, KeyError, TypeError) as error:
            msg = f"cannot read {path}: {error}"
            raise StoreError(msg) from error

    def _table(self, version: int) -> DeltaTable:
        """Open the table at a version. Do not repair a damaged log: it belongs to the program that writes the table."""
        try:
            return DeltaTable(self._uri, version, dict(self._storage) if self._storage else None)
        except DeltaError as error:
            msg = f"cannot open version {version} of {self._uri}: {str(error).partition(chr(10))[0]}"
            raise StoreError(msg) from error

    def _open_state(self, version: int) -> TableState:
        table = self._table(version)
        metadata, protocol = table.metadata(), table.protocol()
        return TableState(
            str(metadata.id),
            _columns(table.schema().to_json()),
            tuple(metadata.partition_columns),
            dict(metadata.configuration),
            frozenset(protocol.reader_features or ()),
        )


def _has_vectors(table: DeltaTable) -> bool:
    """Return whether a file has a deletion vector. deltalake cannot tell it for some tables: then a vector may be there."""
    if "deletionVectors" not in (table.protocol().reader_features or ()):
        return False  # deltalake refuses to look in some tables without them, such as those with widened types
    try:
        return bool(pa.table(table.deletion_vectors()).num_rows > 0)
    except DeltaError:
        return True


def _state_after(state: TableState, commit: DeltaCommit) -> TableState:
    """Return the state after a commit."""
    metadata, protocol = commit.metadata, commit.protocol
    if metadata is not None:
        state = TableState(
            metadata["id"],
            _columns(metadata["schemaString"]),
            tuple(metadata.get("partitionColumns") or ()),
            metadata.get("configuration") or {},
            state.features,
        )
    if protocol is not None:
        features = frozenset(protocol.get("readerFeatures") or ())
        state = TableState(state.table_id, state.columns, state.partition_columns, state.configuration, features)
    return state


def _columns(schema: str) -> tuple[tuple[str, str], ...]:
    fields = msgspec.json.decode(schema)["fields"]
    kinds = ((column["name"], column["type"]) for column in fields)
    return tuple((name, kind if isinstance(kind, str) else kind["type"]) for name, kind in kinds)


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
        _logged(actions.get("remove", ())),
        _logged(actions.get("cdc", ())),
        _restored(info),
        next(iter(actions.get("metaData", ())), None),
        next(iter(actions.get("protocol", ())), None),
        {action["appId"]: action["version"] for action in actions.get("txn", ())},
    )


def _restored(info: Mapping[str, Any]) -> int | None:
    """Return the target version of a RESTORE; None for other commits. Spark records null if the RESTORE named a time."""
    version = str((info.get("operationParameters") or {}).get("version"))
    return int(version) if info.get("operation") == "RESTORE" and version.isdecimal() else None


def _logged(actions: Iterable[Mapping[str, Any]]) -> tuple[LoggedFile, ...]:
    """Return the files of actions, ordered by path. The log has paths as URLs."""
    files = (
        LoggedFile(
            unquote(action["path"]),
            action.get("partitionValues") or {},
            bool(action.get("dataChange", True)),
            action.get("deletionVector") is not None,
        )
        for action in actions
    )
    return tuple(sorted(files, key=lambda file: file.path))


def _partition_text(value: Any) -> str | None:
    """Return a partition value as text in the log."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, bytes):
        return value.decode()  # deltalake has encoded the text in the log
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat(" ")
    return value.isoformat() if isinstance(value, date) else str(value)


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
