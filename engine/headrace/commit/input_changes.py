"""Changes of input that checkpoints have taken in: files that are new, were written again, or are gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.interval_order import interval_of
from headrace.sources.folder import stamp
from headrace.sources.interval import Interval
from headrace.sources.offset import digest
from headrace.sources.source import ListedFile, SourceFile

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


def input_changes(line: Sequence[Checkpoint], listed: Mapping[str, Sequence[ListedFile]]) -> list[InputChange]:
    """Return how the `listed` files differ from the input of a line, the earliest checkpoint first.

    Leaves out files before the line's first interval, and files that are missing at the beginning of a source: users clean up old
    input that way, and its results stay. A file counts as changed when its size or modification time differs; where an earlier
    release recorded only its name, when it was written after the commit.
    """
    changes = [change for source, files in listed.items() for change in _of_source(line, source, files)]
    return sorted(changes, key=lambda change: (change.checkpoint_id, change.source, change.file or ""))


def _of_source(line: Sequence[Checkpoint], source: str, files: Sequence[ListedFile]) -> Iterator[InputChange]:
    there = {digest(file.file.name): file for file in files}
    taken_by: dict[str, Checkpoint] = {}
    for checkpoint, name, mark in _recorded(line, source):
        first = taken_by.setdefault(name, checkpoint)
        if name in there and _has_changed(there[name].file, mark, checkpoint):
            file, interval = there[name]
            yield InputChange(ChangeOfInput.CHANGED, source, file.name, first.checkpoint_id, interval)
    oldest = min((taken_by[name].checkpoint_id for name in taken_by.keys() & there.keys()), default=None)
    for name in taken_by.keys() - there.keys():
        if oldest is not None and taken_by[name].checkpoint_id > oldest:
            yield InputChange(ChangeOfInput.GONE, source, None, taken_by[name].checkpoint_id)
    beginning = next((interval.start for interval in map(interval_of, line) if interval is not None), None)
    for listed in files:
        is_known = digest(listed.file.name) in taken_by
        if is_known or listed.interval is None or beginning is None or listed.interval.start < beginning:
            continue
        passed_by = _first_behind(line, source, listed)
        if passed_by is not None:
            yield InputChange(ChangeOfInput.NEW, source, listed.file.name, passed_by.checkpoint_id, listed.interval)


def _recorded(line: Sequence[Checkpoint], source: str) -> Iterator[tuple[Checkpoint, str, str | None]]:
    """Yield each checkpoint, the digests of file names that it recorded, and the mark of each file if it recorded one."""
    for checkpoint in line:
        offset = checkpoint.offsets.get(source)
        names = () if offset is None or offset.names is None else offset.names
        marks: Sequence[str | None] = () if offset is None else offset.stamps
        for name, mark in zip(names, marks or [None] * len(names), strict=True):
            yield checkpoint, name, mark


def _has_changed(file: SourceFile, mark: str | None, taken_by: Checkpoint) -> bool:
    return file.modified > taken_by.committed_at * _NANOSECONDS if mark is None else stamp(file) != mark


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
