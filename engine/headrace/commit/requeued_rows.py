"""Refused rows of sources in quarantine: find those that can be taken in again, and check that their files still have them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from headrace.api import SourceNode
from headrace.commit.protocol import OpenJob
from headrace.errors import ConfigError, SourceError
from headrace.sources.file_format import UNREADABLE, FileRows
from headrace.sources.file_formats import SUFFIXES
from headrace.sources.kinds import read_rows_of, source_of
from headrace.sources.offset import SourceOffset
from headrace.sources.requeued import RequeuedRows, count_rows, ranges_of, rows_in
from headrace.sources.source import Source, SourceFile

QuarantinedRow = dict[str, Any]

_POSITION: Final = re.compile(rf"(.+(?:{'|'.join(map(re.escape, SUFFIXES))}))(?::(\d+)(?:-(\d+))?)?", re.DOTALL)


class RefusedPlace(NamedTuple):
    """Input that a source has refused: rows of a file with numbers in [`start`, `end`).

    A single row has its number in the stored file; a part of a file has numbers in arrival order. `start` None: the whole file.
    """

    source: str
    file: str
    start: int | None = None
    end: int | None = None
    is_part: bool = False

    def is_among(self, requeued: Iterable[RequeuedRows]) -> bool:
        """Return whether the requeued rows include this place."""
        return any(rows.file == self.file and self._is_of(rows) for rows in requeued)

    def _is_of(self, rows: RequeuedRows) -> bool:
        if self.start is None or rows.ranges is None:
            return self.start is None and rows.ranges is None
        return any(start <= self.start < end for start, end in rows.ranges)


def refused_place(row: QuarantinedRow, sources: Collection[str]) -> RefusedPlace | None:
    """Return the refused input behind a row of the quarantine; None if none of these sources refused it.

    For example a record with a null key: its source has taken it in, and other parts of the pipeline may have it.
    """
    match = _POSITION.fullmatch(row["position"]) if row["operator"] in sources else None
    if match is None:
        return None
    file, start, end = match.groups()
    if start is None:
        return RefusedPlace(row["operator"], file)
    return RefusedPlace(row["operator"], file, int(start), int(end or int(start) + 1), end is not None)


@dataclass(slots=True)
class _FileEntries:
    """Entries of one file in the quarantine."""

    is_whole: bool = False
    parts: list[tuple[int, int]] = field(default_factory=list)
    raw: dict[int, str | None] = field(default_factory=dict)
    """Text of each refused row, by its number in the file."""

    def add(self, place: RefusedPlace, raw: str | None) -> None:
        """Add a row of the quarantine."""
        if place.start is None or place.end is None:
            self.is_whole = True
        elif place.is_part:
            self.parts.append((place.start, place.end))
        else:
            self.raw[place.start] = raw


class RefusedRows:
    """Reader of refused rows in the files of a job's sources."""

    def __init__(self, job: OpenJob, sources: Iterable[SourceNode]) -> None:
        """Take the `sources` of the job's pipeline."""
        self._job = job
        self._nodes = {node.name: node for node in sources}

    def requeued(self, rows: Iterable[QuarantinedRow]) -> dict[str, tuple[RequeuedRows, ...]]:
        """Return the rows to take in again, by source.

        Raises `SourceError` for a file that is gone, cannot be read, or has other rows than those that were refused, and
        `ConfigError` for a part of a file whose rows are unknown; nothing was changed then.
        """
        by_source: dict[str, dict[str, _FileEntries]] = defaultdict(lambda: defaultdict(_FileEntries))
        for row in rows:
            place = refused_place(row, self._nodes)
            if place is not None:
                by_source[place.source][place.file].add(place, row["raw"])
        return {name: self._of_source(name, files) for name, files in sorted(by_source.items())}

    def _of_source(self, name: str, files: Mapping[str, _FileEntries]) -> tuple[RequeuedRows, ...]:
        config = self._job.config.sources[name]
        source = source_of(self._nodes[name], config, self._job.config)
        stored = source.named(files.keys())
        if missing := sorted(files.keys() - stored.keys()):
            raise SourceError(
                f"source '{name}': {_listed(missing)} of {config.place} {'is' if len(missing) == 1 else 'are'} gone, and only the "
                "file has the rows as they were: the quarantine has a text of them. Nothing was requeued. Put the file back, or "
                "name the files to requeue rows of (--file NAME); or deliver the rows again in a new file."
            )
        return tuple(self._of_file(name, stored[file], files[file], source) for file in sorted(files))

    def _of_file(self, name: str, file: SourceFile, entries: _FileEntries, source: Source) -> RequeuedRows:
        if entries.is_whole:
            self._check_whole(name, file, entries, source)
            return RequeuedRows(file.name)
        if entries.parts and self._nodes[name].order_by:
            raise ConfigError(
                f"source '{name}': a part of {file.path} was refused when it was read in parts, and its order_by may have "
                "changed since, so nobody can tell which rows these are. Nothing was requeued. Requeue other files (--file "
                "NAME), and deliver these rows again in a new file."
            )
        try:
            rows = read_rows_of(
                file, self._nodes[name], self._job.config.sources[name].files, self._job.config.storage_options
            )
        except UNREADABLE as error:
            msg = f"source '{name}': cannot read {file.path}: {error}. Nothing was requeued. Put the former file back."
            raise SourceError(msg) from error
        for number, raw in sorted(entries.raw.items()):
            _check_same(name, file, rows, number, raw)
        ranges = ranges_of([*entries.raw, *rows_in(entries.parts)])
        if ranges[-1][1] > rows.table.num_rows:
            raise _changed(name, file, ranges[-1][1] - 1)
        return RequeuedRows(file.name, ranges, rows.table.num_rows)

    def _check_whole(self, name: str, file: SourceFile, entries: _FileEntries, source: Source) -> None:
        """Raise `ConfigError` for a file that was taken in partly: earlier releases did not record which rows were refused."""
        offsets = (point.offsets.get(name, SourceOffset()) for point in self._job.lineage.line)
        taken = max((offset.rows_taken for offset in offsets if offset.unread[:1] == (file.name,)), default=0)
        if entries.parts or entries.raw or 0 < taken < source.rows(file):
            raise ConfigError(
                f"source '{name}': {file.path} was read in parts, and the quarantine does not say which of them was refused. "
                "Nothing was requeued. Requeue other files (--file NAME), and deliver the rows that are missing in a new file."
            )


def count_requeued(requeued: Mapping[str, Sequence[RequeuedRows]]) -> dict[str, int]:
    """Return the numbers of rows and of whole files to take in again, as metrics of the checkpoint."""
    every = [rows for files in requeued.values() for rows in files]
    return {
        "requeued_rows": sum(count_rows(rows.ranges) for rows in every if rows.ranges is not None),
        "requeued_files": sum(rows.ranges is None for rows in every),
    }


def _check_same(name: str, file: SourceFile, rows: FileRows, number: int, raw: str | None) -> None:
    if number >= rows.table.num_rows or rows.raw(number) != raw:
        raise _changed(name, file, number)


def _changed(name: str, file: SourceFile, number: int) -> SourceError:
    return SourceError(
        f"source '{name}': row {number} of {file.path} is not the row that was refused: the file has changed, so others of its rows "
        "might be taken in twice. Nothing was requeued. Put the former file back, or name the files to requeue rows of "
        "(--file NAME); deliver rows that you have repaired in a new file."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"  # noqa: PLR2004 - names in a message
