"""What a source is asked: which input there is, and which slice of it a micro-batch takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa

from headrace.plan.watermarks import Bucket, Watermarks
from headrace.sources.delta_rows import DeltaRows
from headrace.sources.interval import Interval
from headrace.sources.messages import Messages
from headrace.sources.offset import SourceOffset
from headrace.sources.requeued import Ranges, count_rows


class InputFile(msgspec.Struct, frozen=True):
    """A source's file in a slice: which of its rows are taken in, and their arrival ordinals.

    `rows` is the number of rows in the whole file. Those in [`first_row`, `last_row`) are taken, in arrival order within the
    file (after `order_by`); `last_row` None: up to the end. Their ordinals are in the Parquet file `ordinals` (one column, a row
    each), or consecutive from `first_ordinal` where that is None.

    Of a file with `picked`, the rows of these numbers in the stored file are taken instead: they were taken in before and set aside.
    """

    source: str
    path: str
    name: str
    rows: int
    first_ordinal: int
    first_row: int = 0
    last_row: int | None = None
    ordinals: str | None = None
    picked: Ranges | None = None
    delta: DeltaRows | None = None
    """Of a file of a Delta table: what the log says of its rows, and which of them count."""
    messages: Messages | None = None
    """Of a landed file of a topic: how its rows become records."""
    derived: bool = False
    """Whether Spark's step over the source has made the rows (`headrace.sources.derived`)."""

    @property
    def taken(self) -> int:
        """Count the rows that are taken in."""
        if self.picked is not None:
            return count_rows(self.picked)
        return (self.rows if self.last_row is None else self.last_row) - self.first_row

    @property
    def place(self) -> str:
        """Name what is taken in, as `position` in the quarantine does: the file, or a part of it in arrival order."""
        is_part = self.first_row > 0 or self.last_row not in {None, self.rows}
        return f"{self.name}:{self.first_row}-{self.first_row + self.taken}" if is_part else self.name


@dataclass(frozen=True, slots=True)
class LineSlice:
    """The part of a slice that one group of sources has: where its line of ordinals begins and ends.

    `after` and `watermarks` are None where reports of tasks are to tell them: for a source that meets no other.
    """

    sources: tuple[str, ...]
    before: Bucket
    rows: int
    after: Bucket | None = None
    watermarks: Watermarks | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """What one micro-batch takes in, and where the sources stand afterwards.

    `offsets` has the sources that move; their `bucket` and all that is said of the job as a whole are as before.
    """

    files: tuple[InputFile, ...] = ()
    lines: tuple[LineSlice, ...] = ()
    offsets: Mapping[str, SourceOffset] = field(default_factory=dict)
    interval: Interval | None = None

    @property
    def rows(self) -> int:
        """Count the rows that it takes in."""
        return sum(file.taken for file in self.files)

    @property
    def last_files(self) -> dict[str, str]:
        """Return the last file of each source in it."""
        return {file.source: file.name for file in self.files}


NO_INPUT = Slice()


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What a line of checkpoints says of a source: digests of the file names it knows, and the intervals it has taken in.

    `names` is None where only earlier releases have written: they counted files.
    """

    names: frozenset[str] | None = None
    intervals: tuple[Interval, ...] = ()

    def around(self, moment: int) -> Interval | None:
        """Return the interval that has a moment in it, or the gap between two; None before the first and after the last."""
        end: int | None = None
        for interval in self.intervals:
            if interval.start <= moment < interval.end:
                return interval
            if end is not None and end <= moment < interval.start:
                return Interval(end, interval.start)
            end = interval.end
        return None


class SourceFile(NamedTuple):
    """A file of a source; ordered by name. `modified` is when it was written (ns since the epoch), `size` its bytes."""

    name: str
    path: str
    modified: int
    delta: DeltaRows | None = None
    messages: Messages | None = None
    derived: bool = False
    size: int = 0


class ListedFile(NamedTuple):
    """A file of a source that is there at present, and its interval; None without a pattern."""

    file: SourceFile
    interval: Interval | None = None


class TableReach(NamedTuple):
    """How far one look went into the log of a table: up to and including `version`.

    `snapshot` is the version that is taken in as a whole. The place `is_drawn` if a later first look would give another one.
    """

    table: str
    version: int
    snapshot: int | None = None
    is_drawn: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """One look at a source: the files to take in next, in order, and all that are there."""

    files: tuple[SourceFile, ...]
    listed: tuple[SourceFile, ...]
    reach: TableReach | None = None

    @property
    def must_be_kept(self) -> bool:
        """Tell whether a checkpoint has to record the place of the source even if nothing is taken in."""
        return self.reach is not None and self.reach.is_drawn


class Source(Protocol):
    """One kind of input, as the driver sees it."""

    def latest(self) -> str | None:
        """Return the name of the last file there is."""
        ...

    def ahead(
        self,
        offset: SourceOffset,
        taken_in: TakenIn,
        *,
        interval: Interval | None = None,
        until: str | None = None,
        meets: bool = False,
    ) -> Ahead:
        """Return the files behind `offset`: of an interval, up to and including a file, or all.

        A source that `meets` others may have taken up files of the interval before. With both an interval and a file: what a
        micro-batch took that had both, and late files of the interval. Raises `SourceError` when the folder is gone, or a late file would never be read.
        """
        ...

    def listed(self) -> Sequence[SourceFile]:
        """Return all files there are, in order; none of a table or topic: there, versions and offsets tell what was taken in.

        Raises `SourceError` when the folder is gone.
        """
        ...

    def named(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files of these names that are there. Raises `SourceError` when the folder is gone."""
        ...

    def within_limits(self, files: Sequence[SourceFile]) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch takes at most."""
        ...

    def rows(self, file: SourceFile) -> int:
        """Return how many rows a file has. Raises `SourceError` when it cannot be read, unless such files go to quarantine."""
        ...

    def event_times(self, file: SourceFile) -> pa.Int64Array:
        """Return the event times of a file in arrival order (ms); null where one is not readable, or out of range."""
        ...

    def passed(
        self,
        offset: SourceOffset,
        look: Ahead,
        files: Sequence[SourceFile],
        taken_in: TakenIn,
        interval: Interval | None = None,
    ) -> SourceOffset:
        """Return the offset behind `files`, and what to remember of their names."""
        ...

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval of a file, if file names tell."""
        ...

    def check_intervals(self, taken_in: TakenIn) -> None:
        """Raise an error for what an interval run that goes on from there could not do."""
        ...

    def count_missing(self, names: frozenset[str]) -> int:
        """Return how many files of these digests are not there."""
        ...
