"""What a slice is planned from, and what one group of sources has of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from headrace.sources.interval import Interval
from headrace.sources.offset import SourceOffset
from headrace.sources.source import InputFile, LineSlice, TakenIn


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands before a micro-batch.

    `now` is the processing time and `since` that of
    the job's first checkpoint (ms). Ordinals of rows are staged in the folder `transit`.
    """

    offsets: Mapping[str, SourceOffset]
    taken_in: Mapping[str, TakenIn]
    now: int
    since: int
    transit: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which part of the input to take in: an interval, what a recorded micro-batch took, or the next slice of all there is.

    `until` has the offsets that the recorded micro-batch left, `interval` then its interval. With `ends` no more input is to
    come: nothing waits for it.
    """

    interval: Interval | None = None
    until: Mapping[str, SourceOffset] | None = None
    ends: bool = False

    @property
    def is_whole(self) -> bool:
        """Tell whether to read all of it, whatever the limits are."""
        return self.interval is not None or self.until is not None


NEXT_SLICE = Wanted()


class Waiting(NamedTuple):
    """So many rows of a source wait for another one."""

    rows: int
    source: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class Part:
    """What a slice has of one group of sources; `moves` tells whether it takes anything in."""

    line: LineSlice
    files: tuple[InputFile, ...] = ()
    offsets: Mapping[str, SourceOffset] = field(default_factory=dict)
    waiting: tuple[Waiting, ...] = ()
    moves: bool = False
