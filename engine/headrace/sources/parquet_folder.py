"""A folder of Parquet files as a source: latest offset, plan of a slice, reading of a file.

Files are taken in the order of their names and must not change once they are there. Arrival order is
(file, the source's `order_by`, row): it does not depend on how files are grouped into micro-batches.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.checkpoint.checkpoint import SourceOffset
from headrace.checkpoint.files import Storage, file_system
from headrace.config import SourceConfig
from headrace.errors import ConfigError, SourceError
from headrace.sources.interval import Interval
from headrace.sources.source import InputFile, Slice, TakenIn

DAY = 86_400_000


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

    def plan(
        self,
        offset: SourceOffset,
        taken_in: TakenIn,
        *,
        interval: Interval | None = None,
        until: str | None = None,
    ) -> Slice | None:
        """Return the next slice after `offset` within the configured limits; None when there is nothing.

        With `interval`: just its files, all at once, also when there are none. With `until`: no file behind that one.
        Raises `SourceError` when the folder is gone, a file cannot be read, or a late file would never be read.
        """
        files = self._files()
        if interval is not None:
            self._check_nothing_between(files, taken_in)
            return self._slice(files, self._of_interval(files, interval), offset, taken_in, interval)
        self._check_nothing_behind(files, offset, taken_in)
        ahead = [file for file in files if offset.last_file is None or file.name > offset.last_file]
        ahead = [file for file in ahead if until is None or file.name <= until]
        return self._slice(files, self._within_limits(ahead), offset, taken_in) if ahead else None

    @property
    def has_intervals(self) -> bool:
        """Tell whether the configuration says how file names give intervals."""
        return self._config.interval is not None

    def check_intervals(self, taken_in: TakenIn) -> None:
        """Refuse what an interval run that goes on from there could not do.

        Raises `ConfigError` without an `interval` pattern, `SourceError` for a late file of an interval taken in already.
        """
        if not self.has_intervals:
            msg = (
                f"source '{self._name}' has no 'interval' pattern in its configuration, so an interval run "
                "cannot tell which files to take; set it, or use --mode caught-up"
            )
            raise ConfigError(msg)
        self._check_nothing_between(self._files(), taken_in)

    def count_missing(self, names: frozenset[str]) -> int:
        """Return how many files of these digests are not in the folder."""
        return len(names - {digest(file.name) for file in self._files()})

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

    def _of_interval(self, files: list[_File], interval: Interval) -> list[_File]:
        return [file for file in files if interval.start <= (self.starts_at(file.name) or 0) < interval.end]

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
        self,
        files: list[_File],
        chosen: list[_File],
        offset: SourceOffset,
        taken_in: TakenIn,
        interval: Interval | None = None,
    ) -> Slice:
        inputs: list[InputFile] = []
        ordinal = offset.bucket.next_ordinal
        for file in chosen:
            rows = self._row_count(file)
            inputs.append(InputFile(file.path, file.name, rows, ordinal))
            ordinal += rows
        last = chosen[-1].name if chosen else None
        behind = [file for file in files if last is not None and file.name <= last]
        return Slice(
            tuple(inputs),
            ordinal - offset.bucket.next_ordinal,
            last,
            len(behind),
            interval or self._interval_of(inputs),
            self._new_names(files, last or offset.last_file, taken_in, interval),
        )

    def _new_names(
        self, files: list[_File], last: str | None, taken_in: TakenIn, interval: Interval | None
    ) -> tuple[str, ...]:
        """Digests of the files that no later run takes in, as far as no checkpoint has recorded them."""
        behind = {file.name for file in files if last is not None and file.name <= last}
        if interval is not None:
            behind |= {file.name for file in files if (self.starts_at(file.name) or 0) < interval.end}
        return tuple(sorted({digest(name) for name in behind} - (taken_in.names or frozenset())))

    def _interval_of(self, inputs: list[InputFile]) -> Interval | None:
        if self._config.interval is None or not inputs:
            return None
        first, last = self.starts_at(inputs[0].name), self.starts_at(inputs[-1].name)
        return Interval(first, last + DAY) if first is not None and last is not None else None

    def _row_count(self, file: _File) -> int:
        try:
            count: int = pq.read_metadata(f"{self._folder}/{file.name}", filesystem=self._store).num_rows
        except (OSError, pa.ArrowException) as error:
            if self._config.on_bad_file == "quarantine":
                return 0
            raise unreadable(self._name, file.path, error) from error
        return count

    def _check_nothing_behind(self, files: list[_File], offset: SourceOffset, taken_in: TakenIn) -> None:
        """Refuse files behind the offset that no slice has taken in; where no names are recorded, more than were counted."""
        if offset.last_file is None:
            return
        behind = [file for file in files if file.name <= offset.last_file]
        late = _unknown(behind, taken_in) if taken_in.names is not None else behind
        count = len(late) if taken_in.names is not None else len(behind) - offset.files_behind
        if count > 0:
            newest = max(late, key=lambda file: file.modified)
            msg = (
                f"source '{self._name}': {count} file(s) appeared behind the last file read ({offset.last_file}), the newest "
                f"is {newest.name}. They would never be read: give them later names, "
                f"{self._replay_of(late[0] if taken_in.names is not None else newest, taken_in)}or restore the checkpoint "
                "before them and run again."
            )
            raise SourceError(msg)

    def _check_nothing_between(self, files: list[_File], taken_in: TakenIn) -> None:
        """Refuse files of intervals that were taken in without them: no later interval has them."""
        if taken_in.names is None or not taken_in.intervals:
            return
        covered = Interval(taken_in.intervals[0].start, taken_in.intervals[-1].end)
        late = _unknown(self._of_interval(files, covered), taken_in)
        if late:
            msg = (
                f"source '{self._name}': {len(late)} file(s) appeared in intervals that were taken in already, the first is "
                f"{late[0].name}. They would never be read: {self._replay_of(late[0], taken_in)}or give them names of a "
                "later interval. This interval was not taken in."
            )
            raise SourceError(msg)

    def _replay_of(self, late: _File, taken_in: TakenIn) -> str:
        """How to take a late file in by a replay, if its interval was taken in."""
        start = self.starts_at(late.name)
        interval = None if start is None else taken_in.around(start)
        return "" if interval is None else f"run interval {interval} again with --replay, "


def digest(name: str) -> str:
    """Return the short digest by which checkpoints remember a file name."""
    return blake2b(name.encode(), digest_size=8).hexdigest()


def _unknown(files: list[_File], taken_in: TakenIn) -> list[_File]:
    return [file for file in files if digest(file.name) not in (taken_in.names or ())]


def unreadable(source: str, path: str, error: Exception) -> SourceError:
    """The error for a file that is no Parquet, is cut off, or cannot be opened."""
    return SourceError(
        f"source '{source}': cannot read {path}: {error}. Repair or remove the file, or set "
        f"'sources.{source}.on_bad_file: quarantine' to go on without it."
    )
