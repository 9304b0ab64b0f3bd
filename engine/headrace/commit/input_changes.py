"""Changes of input that checkpoints have taken in: files that are new, were written again, or are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.interval_order import interval_of
from headrace.sources.content import UNKNOWN, content_digest
from headrace.sources.folder_listing import stamp
from headrace.sources.interval import Interval
from headrace.sources.offset import digest
from headrace.sources.source import ListedFile, SourceFile
from headrace.tables.files import Storage

GONE: Final = ""
"""Mark of a file that is gone, and whose absence somebody has acknowledged."""

_NANOSECONDS: Final = 1_000_000
"""Nanoseconds in a millisecond."""


class ChangeOfInput(StrEnum):
    """Kind of change of an input file."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class InputChange:
    """File that differs from the input that the line took in. Checkpoint `checkpoint_id` took it in, or passed its place."""

    change: ChangeOfInput
    source: str
    file: str | None
    """Name of the file; None if it is gone, since checkpoints keep only digests of names."""
    checkpoint_id: int
    interval: Interval | None = None
    """Interval of the file; None if it is gone, and without a pattern."""

    def __str__(self) -> str:
        """Return the change as a clause."""
        if self.change is ChangeOfInput.NEW:
            return f"file {self.file} of source '{self.source}' is new since checkpoint {self.checkpoint_id} passed its place"
        if self.change is ChangeOfInput.CHANGED:
            return f"file {self.file} of source '{self.source}' has changed since checkpoint {self.checkpoint_id} took it in"
        return f"a file of source '{self.source}' that checkpoint {self.checkpoint_id} took in is gone"


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """Record that a line has of a file: the first checkpoint that made one, the last one that did, and its content."""

    first: Checkpoint
    last: Checkpoint
    mark: str | None
    """Digest of size and time of change; GONE if somebody acknowledged that the file is gone; None: an earlier release."""
    content: str | None
    """Digest of the content; UNKNOWN if no checkpoint took the file in; None: an earlier release."""

    def is_like(self, file: SourceFile, storage: Storage) -> bool:
        """Return whether a file is as recorded. Reads it only where its size or time of change differs."""
        if self.mark is None:
            return file.modified <= self.last.committed_at * _NANOSECONDS
        return self.mark == stamp(file) or self.is_touched(file, storage)

    def is_touched(self, file: SourceFile, storage: Storage) -> bool:
        """Return whether a file has another size or time of change than recorded, and the same content."""
        if self.mark in {None, GONE, stamp(file)} or self.content in {None, UNKNOWN}:
            return False
        options = None if storage is None else tuple(sorted(storage.items()))
        return self.content == _content_of(file.path, file.modified, file.size, options)


def input_changes(
    line: Sequence[Checkpoint], listed: Mapping[str, Sequence[ListedFile]], storage: Storage = None
) -> list[InputChange]:
    """Return how the `listed` files differ from the input of a line, the earliest checkpoint first.

    Leaves out files before the line's first interval, and files that are missing at the beginning of a source: users clean up old
    input that way, and its results stay. A file counts as changed when its size or modification time differs, and its content too; where
    an earlier release recorded no content, when one of the first two differs; where it recorded only the name, when the file was written
    after the commit.
    """
    changes = [change for source, files in listed.items() for change in _of_source(line, source, files, storage)]
    return sorted(changes, key=lambda change: (change.checkpoint_id, change.source, change.file or ""))


def touched_files(
    line: Sequence[Checkpoint], source: str, files: Sequence[SourceFile], storage: Storage = None
) -> dict[str, tuple[str, str]]:
    """Return new records of files that were touched, or copied with the same content: so that no later run has to read them for that.

    By the digests of their names, the stamps and digests of contents.
    """
    recorded = recorded_files(line, source)
    known = ((file, recorded[name]) for file in files if (name := digest(file.name)) in recorded)
    return {
        digest(file.name): (stamp(file), record.content)
        for file, record in known
        if record.content is not None and record.is_touched(file, storage)
    }


def recorded_files(line: Sequence[Checkpoint], source: str) -> dict[str, RecordedFile]:
    """Return what a line has recorded of the files of a source, by the digests of their names. A later record takes the place of an earlier one."""
    files: dict[str, RecordedFile] = {}
    for checkpoint in line:
        offset = checkpoint.offsets.get(source)
        names = () if offset is None or offset.names is None else offset.names
        marks: Sequence[str | None] = () if offset is None else offset.stamps
        contents: Sequence[str | None] = () if offset is None else offset.contents
        for name, mark, content in zip(
            names, marks or [None] * len(names), contents or [None] * len(names), strict=True
        ):
            first = files[name].first if name in files else checkpoint
            files[name] = RecordedFile(first, checkpoint, mark, content)
    return files


def _of_source(
    line: Sequence[Checkpoint], source: str, files: Sequence[ListedFile], storage: Storage
) -> Iterator[InputChange]:
    there = {digest(file.file.name): file for file in files}
    recorded = recorded_files(line, source)
    beginning = next((interval.start for interval in map(interval_of, line) if interval is not None), None)
    for name, record in recorded.items():
        if name not in there or (record.content == UNKNOWN and _begins_before(beginning, there[name])):
            continue
        file, interval = there[name]
        if not record.is_like(file, storage):
            yield InputChange(ChangeOfInput.CHANGED, source, file.name, record.first.checkpoint_id, interval)
    oldest = min((recorded[name].first.checkpoint_id for name in recorded.keys() & there.keys()), default=None)
    for name in recorded.keys() - there.keys():
        first = recorded[name].first.checkpoint_id
        if oldest is not None and first > oldest and recorded[name].mark != GONE:
            yield InputChange(ChangeOfInput.GONE, source, None, first)
    for listed in files:
        is_known = digest(listed.file.name) in recorded
        if is_known or listed.interval is None or beginning is None or _begins_before(beginning, listed):
            continue
        passed_by = _first_behind(line, source, listed)
        if passed_by is not None:
            yield InputChange(ChangeOfInput.NEW, source, listed.file.name, passed_by.checkpoint_id, listed.interval)


@lru_cache(maxsize=10_000)
def _content_of(path: str, _modified: int, _size: int, storage: tuple[tuple[str, str], ...] | None) -> str:
    """Return the digest of a file's content. One process reads the file once, until it is written again."""
    return content_digest(path, None if storage is None else dict(storage))


def _begins_before(beginning: int | None, file: ListedFile) -> bool:
    """Return whether a file's interval begins before the first one of the line: no run takes such a file in."""
    return beginning is not None and file.interval is not None and file.interval.start < beginning


def _first_behind(line: Sequence[Checkpoint], source: str, file: ListedFile) -> Checkpoint | None:
    """Return the first checkpoint whose position is after a file; None if the file is ahead of all."""
    return next((checkpoint for checkpoint in line if _is_behind(checkpoint, source, file)), None)


def _is_behind(checkpoint: Checkpoint, source: str, file: ListedFile) -> bool:
    interval = interval_of(checkpoint)
    if interval is not None and file.interval is not None and file.interval.start < interval.end:
        return True
    # Names decide the order where no interval was recorded, and where sources meet.
    last = checkpoint.offsets[source].last_file if source in checkpoint.offsets else None
    return (interval is None or len(checkpoint.offsets) > 1) and last is not None and file.file.name <= last
