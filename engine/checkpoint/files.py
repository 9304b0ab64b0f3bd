"""Staged files: Parquet written by a task that no commit names yet."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from engine.errors import StorageError

_STATISTICS = ("operator", "key_group", "key", "checkpoint_id", "state")


class StagedFile(msgspec.Struct, frozen=True):
    """A written file: path relative to its table's folder, size, and what Delta may prune by."""

    path: str
    rows: int
    size: int
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}

    def statistics(self) -> str:
        """The `stats` field of a Delta add action."""
        stats = {
            "numRecords": self.rows,
            "minValues": self.minimum,
            "maxValues": self.maximum,
            "nullCount": dict.fromkeys(self.minimum, 0),
        }
        return msgspec.json.encode(stats).decode()


def stage(folder: str, name: str, table: pa.Table) -> StagedFile:
    """Write `table` as `folder/name`. The name must be unique to the attempt.

    Raises `StorageError` when the file system refuses (full, read-only, gone). A half-written
    file is removed where that is possible; being named by no commit, it would do no harm.
    """
    path = Path(folder) / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path, compression="zstd", compression_level=1)
        size = path.stat().st_size
    except OSError as error:
        _remove(path)
        msg = f"could not write {path}: {error}. Nothing was committed; free space or repair, then run again."
        raise StorageError(msg) from error
    minimum, maximum = _range(table)
    return StagedFile(name, table.num_rows, size, minimum, maximum)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # the first error is the one to report; vacuum removes the orphan


def _range(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
    minimum, maximum = {}, {}
    names: Sequence[str] = table.schema.names
    for name in _STATISTICS:
        if name in names and table.num_rows:
            column = table[name]
            extremes = pc.min_max(column).as_py()
            minimum[name], maximum[name] = extremes["min"], extremes["max"]
    return minimum, maximum
