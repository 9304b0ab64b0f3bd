"""Input for planning a slice, and the part of a slice in one group of sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.sources.interval import Interval
from headrace.sources.offset import SourceOffset
from headrace.sources.source import InputFile, LineSlice, TakenIn


@dataclass(frozen=True, slots=True)
class JobPosition:
    """Position of a job before a micro-batch.

    `now` is the processing time, `since` the processing time of the job's first checkpoint (ms). Ordinals of rows are staged
    in the folder `transit`.
    """

    offsets: Mapping[str, SourceOffset]
    taken_in: Mapping[str, TakenIn]
    now: int
    since: int
    transit: str


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """Input that a slice should take: an interval, the input of a recorded micro-batch, or by default the next slice of all input.

    `until` has the offsets after the recorded micro-batch, and `interval` its interval. `follows` has the offsets after the micro-batch
    that a branch follows, and after each later one of its job: their versions of dimension tables count. With `ends`, no more input will
    come, so no source waits for another one.
    """

    interval: Interval | None = None
    until: Mapping[str, SourceOffset] | None = None
    ends: bool = False
    follows: Sequence[Mapping[str, SourceOffset]] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether to take all of it, without limits."""
        return self.interval is not None or self.until is not None

    def recorded(self, source: str) -> list[SourceOffset]:
        """Return the offsets of a source after the recorded micro-batch, and after later ones that are known."""
        recorded = (*(() if self.until is None else (self.until,)), *self.follows)
        return [offsets[source] for offsets in recorded if source in offsets]


NEXT_SLICE = SliceRequest()


class Waiting(NamedTuple):
    """Number of rows of a source that wait for another source."""

    rows: int
    source: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """Part of a slice in one group of sources; `moves` is True if the offset of a source changes."""

    line: LineSlice
    files: tuple[InputFile, ...] = ()
    offsets: Mapping[str, SourceOffset] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    moves: bool = False
