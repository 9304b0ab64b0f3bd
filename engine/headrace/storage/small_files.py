"""Small data files of tables on a disk: a process keeps the rows of those that it read last.

A job's log is a table of some small files, and each command and each run reads it several times. A scan of it takes 4 to 20 ms of CPU,
most of it for files that were read before (measured: a run's own share of reading its log falls to a third).

A data file never changes. Its size and its time tell it from another file that somebody has put in its place.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

_SMALL = 1 << 18
"""Size up to which a file is small (bytes)."""

_MOST_FILES = 64
"""Number of files up to which a table is read file by file."""

_KEPT = 1 << 25
"""Number of bytes of rows that are kept."""

_Name = tuple[str, int, int]
"""Path of a file, its size and the time of its last change (ns)."""


class SmallFiles:
    """Rows of the small files that were read last, in the types of the files. Threads may share it."""

    def __init__(self, kept: int = _KEPT) -> None:
        """Keep up to `kept` bytes of rows."""
        self._tables: dict[_Name, pa.Table] = {}
        self._most, self._bytes = kept, 0
        self._lock = threading.Lock()

    def read(self, paths: Sequence[str]) -> pa.Table | None:
        """Return the rows of files on a disk, one file after the other; columns that a file lacks are null.

        None if there are no files, too many, or one that is not small: then a scan is faster. Raises `OSError` and
        `pa.ArrowException` for a file that is gone or damaged.
        """
        if not 0 < len(paths) <= _MOST_FILES:
            return None
        names = [_named(path) for path in paths]
        if any(size > _SMALL for _, size, _ in names):
            return None
        return pa.concat_tables(map(self._rows, names), promote_options="default")

    def _rows(self, name: _Name) -> pa.Table:
        with self._lock:
            if (known := self._tables.pop(name, None)) is not None:
                self._tables[name] = known  # the one that was asked for last
                return known
        rows = pq.ParquetFile(name[0]).read(use_threads=False)
        with self._lock:
            if name not in self._tables:
                self._tables[name] = rows
                self._bytes += rows.nbytes
            while self._bytes > self._most:
                self._bytes -= self._tables.pop(next(iter(self._tables))).nbytes
        return rows


def _named(path: str) -> _Name:
    status = Path(path).stat()
    return path, status.st_size, status.st_mtime_ns


SMALL_FILES = SmallFiles()
"""Those of this process."""
