"""A folder of Parquet files as a source: latest offset, plan of a slice, reading of a file.

Files are taken in the order of their names and must not change once they are there. Arrival order is
(file, the source's `order_by`, row): it does not depend on how files are grouped into micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from engine.checkpoint.checkpoint import Bucket, SourceOffset
from engine.checkpoint.files import Storage, file_system
from engine.config import SourceConfig
from engine.errors import ConfigError, SourceError
from engine.spark.reports import InputFile

DAY = 86_400_000


@dataclass(frozen=True, slots=True)
class Slice:
    """What one micro-batch takes in, and where the source stands afterwards."""

    files: tuple[InputFile, ...]
    rows: int
    last_file: str | None
    files_behind: int
    interval: tuple[int, int] | None


NO_INPUT = Slice((), 0, None, 0, None)


class _File(NamedTuple):
    """A file of the folder; ordered by name."""

    name: str
    path: str
    modified: int


class ParquetFolder:
    """The driver's view of the folder."""

    def __init__(self, name: str, config: SourceConfig, storage: Storage = None) -> None:
        """`name` is the source's name in the pipeline."""
        self._name = name
        self._config = config
        self._store, self._folder = file_system(config.path, storage)

    def latest(self) -> str | None:
        """The name of the last file there is."""
        files = self._files()
        return files[-1].name if files else None

    def plan(self, offset: SourceOffset, *, interval: tuple[int, int] | None = None) -> Slice | None:
        """The next slice after `offset` within the configured limits; None when there is nothing.

        With `interval` (ms, end exclusive): just its files, all at once, also when there are none.
        Raises `SourceError` when the folder is gone, a file cannot be read, or files appeared
        behind the offset, which would otherwise never be read.
        """
        files = self._files()
        if interval is not None:
            return self._slice(files, self._of_interval(files, interval), offset.bucket, interval)
        self._check_nothing_behind(files, offset)
        ahead = [file for file in files if offset.last_file is None or file.name > offset.last_file]
        if not ahead:
            return None
        return self._slice(files, self._within_limits(ahead), offset.bucket, None)

    def starts_at(self, name: str) -> int | None:
        """Where the interval of a file begins (ms), if file names tell."""
        pattern = self._config.interval
        if pattern is None:
            return None
        try:
            parsed = datetime.strptime(Path(name).stem, pattern)  # noqa: DTZ007 - made aware below
        except ValueError as error:
            msg = f"file '{name}' of source '{self._name}' does not fit the interval pattern '{pattern}'"
            raise SourceError(msg) from error
        return round(parsed.replace(tzinfo=UTC).timestamp() * 1000)

    def _files(self) -> list[_File]:
        if self._store.get_file_info(self._folder).type is not fs.FileType.Directory:
            msg = f"source '{self._name}': there is no folder {self._config.path}"
            raise SourceError(msg)
        found = self._store.get_file_info(fs.FileSelector(self._folder))
        names = [
            _File(info.base_name, f"{self._config.path}/{info.base_name}", info.mtime_ns or 0)
            for info in found
            if info.type is fs.FileType.File and info.base_name.endswith(".parquet") and info.base_name[0] not in "._"
        ]
        return sorted(names)

    def _of_interval(self, files: list[_File], interval: tuple[int, int]) -> list[_File]:
        if self._config.interval is None:
            msg = (
                f"source '{self._name}' has no 'interval' pattern in its configuration, so an interval run "
                "cannot tell which files to take; set it, or use --mode caught-up"
            )
            raise ConfigError(msg)
        start, end = interval
        return [file for file in files if start <= (self.starts_at(file.name) or 0) < end]

    def _within_limits(self, files: list[_File]) -> list[_File]:
        chosen = files[: self._config.max_files_per_batch]
        limit = self._config.max_rows_per_batch
        if limit is None:
            return chosen
        rows = 0
        for count, file in enumerate(chosen):
            rows += self._row_count(file)
            if rows > limit:
                return chosen[: max(count, 1)]
        return chosen

    def _slice(
        self, files: list[_File], chosen: list[_File], bucket: Bucket, interval: tuple[int, int] | None
    ) -> Slice:
        inputs: list[InputFile] = []
        ordinal = bucket.next_ordinal
        for file in chosen:
            rows = self._row_count(file)
            inputs.append(InputFile(file.path, file.name, rows, ordinal))
            ordinal += rows
        last = chosen[-1].name if chosen else None
        behind = sum(1 for file in files if last is not None and file.name <= last)
        covered = interval or self._interval_of(inputs)
        return Slice(tuple(inputs), ordinal - bucket.next_ordinal, last, behind, covered)

    def _interval_of(self, inputs: list[InputFile]) -> tuple[int, int] | None:
        if self._config.interval is None or not inputs:
            return None
        first, last = self.starts_at(inputs[0].name), self.starts_at(inputs[-1].name)
        return (first, last + DAY) if first is not None and last is not None else None

    def _row_count(self, file: _File) -> int:
        try:
            count: int = pq.read_metadata(f"{self._folder}/{file.name}", filesystem=self._store).num_rows
        except (OSError, pa.ArrowException) as error:
            if self._config.on_bad_file == "quarantine":
                return 0
            raise unreadable(self._name, file.path, error) from error
        return count

    def _check_nothing_behind(self, files: list[_File], offset: SourceOffset) -> None:
        if offset.last_file is None:
            return
        behind = [file for file in files if file.name <= offset.last_file]
        if len(behind) > offset.files_behind:
            newest = max(behind, key=lambda file: file.modified)
            msg = (
                f"source '{self._name}': {len(behind) - offset.files_behind} file(s) appeared behind the last "
                f"file read ({offset.last_file}), the newest is {newest.name}. They would never be read: give "
                "them later names, or restore the checkpoint before them and run again."
            )
            raise SourceError(msg)


def unreadable(source: str, path: str, error: Exception) -> SourceError:
    """The error for a file that is no Parquet, is cut off, or cannot be opened."""
    return SourceError(
        f"source '{source}': cannot read {path}: {error}. Repair or remove the file, or set "
        f"'sources.{source}.on_bad_file: quarantine' to go on without it."
    )
