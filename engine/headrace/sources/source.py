"""What a source is asked: which input there is, and which slice of it a micro-batch takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from headrace.checkpoint.checkpoint import Checkpoint
from headrace.sources.interval import Interval, intervals_of


class InputFile(msgspec.Struct, frozen=True):
    """A source file in a slice: the rows [first_row, last_row) in arrival order, and where they stand among all of their line.

    `rows` is how many the whole file has. `ordinals` is the staged file with the arrival ordinals of the rows taken, where
    sources meet; without one they go on from `first_ordinal`.
    """

    path: str
    name: str
    rows: int
    first_ordinal: int
    source: str = ""
    first_row: int = 0
    last_row: int | None = None
    ordinals: str | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """What one micro-batch takes in, and where the source stands afterwards."""

    files: tuple[InputFile, ...]
    rows: int
    last_file: str | None
    files_behind: int
    interval: Interval | None
    names: tuple[str, ...] | None = None
    """See `SourceOffset.names`."""


NO_INPUT = Slice((), 0, None, 0, None)


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What a line of checkpoints says of a source: digests of the file names it knows, and the intervals it has taken in.

    `names` is None where only earlier releases have written: they counted files.
    """

    names: frozenset[str] | None = None
    intervals: tuple[Interval, ...] = ()

    @classmethod
    def by(cls, trail: Sequence[Checkpoint], source: str) -> TakenIn:
        """Return what the checkpoints of a line have taken in together."""
        offsets = (checkpoint.offsets[source] for checkpoint in trail if source in checkpoint.offsets)
        recorded = [offset.names for offset in offsets if offset.names is not None]
        names = frozenset(name for names in recorded for name in names) if recorded else None
        return cls(names, tuple(interval for interval, _ in intervals_of(trail)))

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
