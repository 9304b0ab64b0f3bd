"""How the input of a line of checkpoints has changed since it was taken in: files that are new, written again, or gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.interval_order import interval_of
from headrace.sources.folder import digest, stamp
from headrace.sources.source import ListedFile, SourceFile

_NANOSECONDS: Final = 1_000_000
"""In a millisecond."""


class ChangeOfInput(StrEnum):
    """What has become of a file."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class InputChange:
    """A file that is not what the line took in. Checkpoint `checkpoint_id` took it in, or passed by its place."""

    change: ChangeOfInput
    source: str
    file: str | None
    """Its name; None of one that is gone: checkpoints remember digests of names."""
    checkpoint_id: int

    def __str__(self) -> str:
        """Say it in a clause."""
        if self.change is ChangeOfInput.NEW:
            return f"file {self.file} of source '{self.source}' is new since checkpoint {self.checkpoint_id} passed its place"
        if self.change is ChangeOfInput.CHANGED:
            return f"file {self.file} of source '{self.source}' has changed since checkpoint {self.checkpoint_id} took it in"
        return f"a file of source '{self.source}' that checkpoint {self.checkpoint_id} took in is gone"


def input_changes(line: Sequence[Checkpoint], listed: Mapping[str, Sequence[ListedFile]]) -> list[InputChange]:
    """Return how the files that are `listed` differ from what a line has taken in, the earliest checkpoint first.

    Files from before the line's first interval are no part of it. Those that are gone from the beginning of a source are not in it
    either: that is how old input is cleaned up, and what they gave stays. A file is taken for changed when its size or its time of change
    is another one, or, where an earlier release has recorded its name alone, when it was written behind the commit.
    """
    changes = [change for source, files in listed.items() for change in _of_source(line, source, files)]
    return sorted(changes, key=lambda change: (change.checkpoint_id, change.source, change.file or ""))


def _of_source(line: Sequence[Checkpoint], source: str, files: Sequence[ListedFile]) -> Iterator[InputChange]:
    there = {digest(one.file.name): one.file for one in files}
    taken_by: dict[str, Checkpoint] = {}
    for checkpoint, name, mark in _recorded(line, source):
        first = taken_by.setdefault(name, checkpoint)
        if name in there and _has_changed(there[name], mark, checkpoint):
            yield InputChange(ChangeOfInput.CHANGED, source, there[name].name, first.checkpoint_id)
    oldest = min((taken_by[name].checkpoint_id for name in taken_by.keys() & there.keys()), default=None)
    for name in taken_by.keys() - there.keys():
        if oldest is not None and taken_by[name].checkpoint_id > oldest:
            yield InputChange(ChangeOfInput.GONE, source, None, taken_by[name].checkpoint_id)
    beginning = next((interval.start for interval in map(interval_of, line) if interval is not None), None)
    for one in files:
        is_known = digest(one.file.name) in taken_by
        if is_known or one.interval is None or beginning is None or one.interval.start < beginning:
            continue
        passed_by = _first_behind(line, source, one)
        if passed_by is not None:
            yield InputChange(ChangeOfInput.NEW, source, one.file.name, passed_by.checkpoint_id)


def _recorded(line: Sequence[Checkpoint], source: str) -> Iterator[tuple[Checkpoint, str, str | None]]:
    """Yield the digests of the names that each checkpoint has recorded, and what their files were like, if that is recorded."""
    for checkpoint in line:
        offset = checkpoint.offsets.get(source)
        names = () if offset is None or offset.names is None else offset.names
        marks: Sequence[str | None] = () if offset is None else offset.stamps
        for name, mark in zip(names, marks or [None] * len(names), strict=True):
            yield checkpoint, name, mark


def _has_changed(file: SourceFile, mark: str | None, taken_by: Checkpoint) -> bool:
    return file.modified > taken_by.committed_at * _NANOSECONDS if mark is None else stamp(file) != mark


def _first_behind(line: Sequence[Checkpoint], source: str, one: ListedFile) -> Checkpoint | None:
    """Return the first checkpoint that stands behind a file; None if the file is ahead."""
    return next((checkpoint for checkpoint in line if _is_behind(checkpoint, source, one)), None)


def _is_behind(checkpoint: Checkpoint, source: str, one: ListedFile) -> bool:
    interval = interval_of(checkpoint)
    if interval is not None and one.interval is not None and one.interval.start < interval.end:
        return True
    # Names are places where no interval was recorded, and where sources meet.
    last = checkpoint.offsets[source].last_file if source in checkpoint.offsets else None
    return (interval is None or len(checkpoint.offsets) > 1) and last is not None and one.file.name <= last
