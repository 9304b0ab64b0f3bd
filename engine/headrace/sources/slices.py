"""Slices of a job's input, each for one micro-batch, and requests for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.records.watermarks import Bucket, Timeline, Timelines, Watermarks, timeline_of
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts
from headrace.sources.source import InputFile, TakenIn
from headrace.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """Part of a slice in one timeline of ordinals, the timeline of a group of sources.

    `after` and `watermarks` are None for a source that meets no other: reports of tasks tell them later.
    """

    sources: tuple[str, ...]
    before: Bucket
    rows: int
    after: Bucket | None = None
    watermarks: Watermarks | None = None


@dataclass(frozen=True, slots=True)
class Slice:
    """Input of one micro-batch, and the facts of sources after it; `sources` has those whose facts change."""

    files: tuple[InputFile, ...] = ()
    timelines: tuple[TimelineSlice, ...] = ()
    sources: Mapping[str, SourceFacts] = field(default_factory=dict)
    interval: Interval | None = None
    began_at: int | None = None
    """Processing time at which the slice was planned, and by which rows are judged too far ahead (ms); None without rows."""

    @property
    def rows(self) -> int:
        """Count the rows of the slice."""
        return sum(file.taken for file in self.files)

    @property
    def last_files(self) -> dict[str, str]:
        """Return the name of the last file of each source in the slice."""
        return {file.source: file.name for file in self.files}


NO_INPUT = Slice()


@dataclass(frozen=True, slots=True)
class JobPosition:
    """Position of a job before a micro-batch.

    `sources` and `timelines` are those of the last checkpoint. `now` is the processing time, `since` the processing time of the job's first checkpoint (ms). Ordinals of rows are staged
    in the folder `transit`.
    """

    sources: Mapping[str, SourceFacts]
    timelines: Timelines
    taken_in: Mapping[str, TakenIn]
    now: int
    since: int
    transit: Storage

    def timeline(self, names: Sequence[str]) -> Timeline:
        """Return the timeline that these sources share."""
        return timeline_of(self.timelines, names)


@dataclass(frozen=True, slots=True)
class SliceRequest:
    """Input that a slice should take: an interval, the input of a recorded micro-batch, or by default the next slice of all input.

    `until` has the facts of sources after the recorded micro-batch, and `interval` its interval. `follows` has those after the micro-batch
    that a branch follows, and after each later one of its job: their versions of dimension tables count. With `ends`, no more input will
    come, so no source waits for another one.
    """

    interval: Interval | None = None
    until: Mapping[str, SourceFacts] | None = None
    ends: bool = False
    follows: Sequence[Mapping[str, SourceFacts]] = ()

    @property
    def is_whole(self) -> bool:
        """Return whether to take all of it, without limits."""
        return self.interval is not None or self.until is not None

    def recorded(self, source: str) -> list[SourceFacts]:
        """Return the facts of a source after the recorded micro-batch, and after later ones that are known."""
        recorded = (*(() if self.until is None else (self.until,)), *self.follows)
        return [sources[source] for sources in recorded if source in sources]


NEXT_SLICE = SliceRequest()


class Waiting(NamedTuple):
    """Number of rows of a source that wait for another source."""

    rows: int
    source: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """Part of a slice in one group of sources; `moves` is True if the position of a source changes."""

    timeline: TimelineSlice
    files: tuple[InputFile, ...] = ()
    sources: Mapping[str, SourceFacts] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    moves: bool = False
