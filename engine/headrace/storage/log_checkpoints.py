"""Checkpoints in the log of a Delta table: files that list all actions of a version, so that earlier commits need not be read.

A log checkpoint is one Parquet file, several parts, or a file of version 2 (Parquet or JSON) that names sidecars (Delta
protocol, "Checkpoints").
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow.parquet as pq

from headrace.storage.files import Files
from headrace.storage.table import LOG

Action = Mapping[str, Any]

_NAME: Final = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-fA-F-]{36})?\.(?:parquet|json)")
_LEAVES: Final = {
    "add": ("add.path", "add.partitionValues", "add.dataChange", "add.deletionVector"),
    "metaData": ("metaData.id", "metaData.schemaString", "metaData.partitionColumns", "metaData.configuration"),
    "protocol": ("protocol",),
    "sidecar": ("sidecar.path",),
}
"""Parts of actions that are read: others, such as statistics, are long."""


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """Checkpoint of a version, by the names of its files in the log."""

    version: int
    names: tuple[str, ...]

    def actions(self, kind: str, table: Files, *, whole: bool = False) -> Iterator[Action]:
        """Yield all actions of a kind, also those in sidecars; with all their parts if `whole`. What it raises is raw."""
        leaves = (kind,) if whole else _LEAVES[kind]
        for name in self.names:
            yield from _actions(table, f"{LOG}/{name}", kind, leaves)
        if kind == "add":
            for sidecar in self.actions("sidecar", table):
                yield from _actions(table, f"{LOG}/_sidecars/{sidecar['path']}", kind, leaves)


def last_log_checkpoint(names: Iterable[str], version: int | None = None) -> LogCheckpoint | None:
    """Return the last complete checkpoint among the files of a log, up to a `version` if one is given; None without one."""
    of_version: dict[int, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name in sorted(names):
        match = _NAME.fullmatch(name)
        if match is not None and (version is None or int(match[1]) <= version):
            of_version[int(match[1])][int(match[3] or 0)].append(name)
    for number in sorted(of_version, reverse=True):
        if whole := _whole(of_version[number]):
            return LogCheckpoint(number, whole)
    return None


def _whole(by_parts: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
    """Return the files of a checkpoint, by the number of its parts (0: it has none), if all of its parts are there."""
    for parts, names in sorted(by_parts.items()):
        if not parts:
            return (names[-1],)
        if len(names) == parts:
            return tuple(names)
    return ()


def _actions(table: Files, path: str, kind: str, leaves: Sequence[str]) -> Iterator[Action]:
    if path.endswith(".json"):
        with table.open(path) as file:
            lines = (msgspec.json.decode(line) for line in file.read().splitlines() if line.strip())
            yield from (line[kind] for line in lines if kind in line)
        return
    with table.open(path) as file:
        column = pq.ParquetFile(file).read(columns=[*leaves])
    if kind in column.schema.names:
        yield from column[kind].drop_null().to_pylist(maps_as_pydicts="strict")
