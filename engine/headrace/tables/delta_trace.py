"""Search for data files in the log of a Delta table. Its entries contain the smallest and largest key of each file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from urllib.parse import unquote

import msgspec
import pyarrow.parquet as pq

from headrace.tables.files import Storage, file_system
from headrace.tables.store import COMMIT_SUFFIX, FileTrace


def trace_in_log(uri: str, entries: Mapping[str, int], files: Collection[str], storage: Storage = None) -> FileTrace:
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


def _changed(uri: str, name: str, storage: Storage) -> tuple[frozenset[str], frozenset[str]]:
    """Return the data files that a commit adds, and those that it removes."""
    store, path = file_system(f"{uri}/{name}", storage)
    with store.open_input_stream(path) as stream:
        actions = [msgspec.json.decode(line) for line in stream.read().splitlines() if line]
    return _paths(actions, "add"), _paths(actions, "remove")


def _listed(uri: str, name: str, storage: Storage) -> frozenset[str]:
    """Return the data files that a log checkpoint lists."""
    store, path = file_system(f"{uri}/{name}", storage)
    with store.open_input_file(path) as source:
        return _paths(pq.ParquetFile(source).read(columns=["add.path"]).to_pylist(), "add")


def _paths(actions: Sequence[Mapping[str, Mapping[str, str] | None]], kind: str) -> frozenset[str]:
    return frozenset(unquote(action[kind]["path"]) for action in actions if action.get(kind))  # type: ignore[index]
