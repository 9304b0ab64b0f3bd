"""One slice of sources that are merged: read, merge, release, and compute the position in each source.

Sources are merged if they meet, or if one has punctuations. Rows that are ahead of other sources are not released; a later
micro-batch reads them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.names import counted
from headrace.records.source_columns import EventTimeLimit, limit_of
from headrace.records.watermarks import Timeline, lag_of
from headrace.sources.arrival import (
    EARLIEST,
    ArrivalTimeline,
    Queue,
    Released,
    first_in_turn,
    last_recorded,
    merge_keys,
    release,
    until_recorded,
)
from headrace.sources.interval import Interval
from headrace.sources.position import NO_FACTS, SourceFacts, stored_name
from headrace.sources.slices import GroupSlice, JobPosition, SliceRequest, TimelineSlice, Waiting
from headrace.sources.source import Ahead, InputFile, Source, SourceFile

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class MergeRules:
    """Settings of a merge: ordinals per bucket; the job; disorder and configuration by source."""

    bucket: int
    out_of_orderness: Mapping[str, timedelta]
    job: str
    configs: Mapping[str, SourceConfig]

    def are_merged(self, names: Sequence[str], first: SourceFacts) -> bool:
        """Return whether a group of sources is merged; `first` has the facts of its first source."""
        config = self.configs[names[0]]
        return len(names) > 1 or config.complete_intervals or config.kind.has_partitions or bool(first.begun)

    def limit(self, name: str, began_at: int) -> EventTimeLimit | None:
        """Return the latest event time of a source's rows in a micro-batch that began at `began_at` (ms); None: any."""
        max_ahead = self.configs[name].max_ahead
        return None if max_ahead is None else limit_of(began_at, max_ahead)

    def of_pieces(self, owners: Mapping[str, str]) -> MergeRules:
        """Return the rules for pieces of sources; `owners` has the source of each piece."""
        return replace(
            self,
            out_of_orderness={piece: self.out_of_orderness[name] for piece, name in owners.items()},
            configs={piece: self.configs[name] for piece, name in owners.items()},
        )


class _FileItems(NamedTuple):
    """Items of a file that are not taken in yet. `skipped` items were taken in before; `rows` is the size of the whole file."""

    file: SourceFile
    rows: int
    skipped: int
    keys: pa.Int64Array
    counts: pa.BooleanArray
    """Whether an item is input: a refused row is not, so it keeps no source from being idle."""


@dataclass(slots=True)
class _Reading:
    """Files of one source that this slice has read."""

    name: str
    source: Source
    config: SourceConfig
    facts: SourceFacts
    ahead: Ahead
    limit: EventTimeLimit | None = None
    files: list[_FileItems] = field(default_factory=list)
    punctuations: dict[int, int] = field(default_factory=dict)
    is_idle: bool = False
    recorded_files: int = field(init=False)
    """Number of files to take in if the slice is taken whole."""

    def __post_init__(self) -> None:
        """Count the files ahead without those beyond."""
        self.recorded_files = len(self.ahead.files)

    @property
    def is_read(self) -> bool:
        """Return whether all files are read."""
        return len(self.files) == len(self.ahead.files)

    @property
    def is_last(self) -> bool:
        """Return whether all files are read, and no others wait behind them."""
        return self.is_read and not self.ahead.has_waiting

    @property
    def is_drained(self) -> bool:
        """Return whether all input of the source is taken in, of every interval. Files with nothing but refused rows are no input."""
        if not self.is_last or any(pc.any(part.counts).as_py() for part in self.files):
            return False
        last = max([self.facts.last, *(stored_name(part.file.place) for part in self.files)])
        return all(file.place <= last for file in self.ahead.listed)

    @property
    def count(self) -> int:
        """Count the items that wait to be released."""
        return sum(len(part.keys) for part in self.files)

    def frontier(self, key: int | None) -> int:
        """Return the least merge key that unread items can have; `key` is that of the timeline."""
        last = next((part.keys[-1].as_py() for part in reversed(self.files) if len(part.keys)), None)
        return last if last is not None else EARLIEST if key is None else key

    def within_limits(self) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take."""
        return self.source.within_limits(self.ahead.files, self.facts.rows)

    def read_more(self, key: int | None) -> None:
        """Read the next file. Merge keys continue from `key`, the timeline's key, which includes the rows taken in before."""
        file = self.ahead.files[len(self.files)]
        times = self.source.event_times(file, self.limit)
        rows = len(times)
        interval = self.source.interval_of(file.name) if self.config.complete_intervals else None
        if interval is not None:
            self._refuse_ahead(file, interval)
            times = pa.concat_arrays([times, pa.array([interval.end], pa.int64())])
        skipped = self.facts.rows if file.place in self.facts.begun[:1] else 0
        if skipped > len(times):
            raise self._changed(file, rows)
        before = self.count
        times = times[skipped:]
        self.files.append(_FileItems(file, rows, skipped, merge_keys(times, self.frontier(key)), times.is_valid()))
        if interval is not None and self.count > before:
            self.punctuations[self.count - 1] = interval.end

    def _refuse_ahead(self, file: SourceFile, interval: Interval) -> None:
        """Raise `SourceError` where a file's interval begins too far ahead: its end would end all windows up to there."""
        if self.limit is None or interval.start <= self.limit.latest:
            return
        msg = (
            f"source '{self.name}': the interval of {file.path} {self.limit.problem(interval.start)}, and with complete_intervals the watermark "
            f"would move to its end. Nothing was taken in. Correct the file's name, or name the file in the source's 'ignore', "
            "or set max_ahead where such intervals are right."
        )
        raise SourceError(msg)

    def _changed(self, file: SourceFile, rows: int) -> SourceError:
        return SourceError(
            f"source '{self.name}': {file.path} has {counted(rows, 'row')}, but {self.facts.rows} of its rows were taken in already: the file has changed. "
            "Nothing was taken in. Put the former file back, or restore a checkpoint before it was read."
        )

    def queue(self, key: int | None, *, is_live: bool) -> Queue:
        """Return the items that wait to be released."""
        keys = pa.concat_arrays([pa.array([], pa.int64()), *(part.keys for part in self.files)])
        start = EARLIEST if key is None else key
        return Queue(
            self.facts.number, keys, start, self.frontier(key), is_live=is_live, punctuations=self.punctuations
        )

    def has_input(self, count: int) -> bool:
        """Return whether one of the first `count` items is input."""
        for part in self.files:
            if pc.any(part.counts[: max(count, 0)]).as_py():
                return True
            count -= len(part.counts)
        return False

    def position(self, count: int) -> tuple[int, int]:
        """Return the position after `count` more items: the number of finished files, and the items taken from the next file."""
        for index, part in enumerate(self.files):
            if count < len(part.keys):
                return index, part.skipped + count
            count -= len(part.keys)
        return len(self.files), 0

    def recorded(self, until: SourceFacts) -> int:
        """Count the items read here that a recorded micro-batch took."""
        items = 0
        unread = [stored_name(place) for place in until.begun]  # the step, and so its digest, may have changed since
        for part in self.files[: self.recorded_files]:
            if (place := stored_name(part.file.place)) in unread:
                taken = until.rows if place == unread[0] else 0
                return items + max(0, min(taken - part.skipped, len(part.keys)))
            items += len(part.keys)
        return items


class Merge:
    """Planner of a group's part of a slice."""

    def __init__(  # noqa: PLR0917 - the state of `Intake`
        self,
        rules: MergeRules,
        sources: Mapping[str, Source],
        ahead: Mapping[str, Ahead],
        facts: Mapping[str, SourceFacts],
        timeline: Timeline,
        at: JobPosition,
        wanted: SliceRequest,
    ) -> None:
        """Keep what is ahead in each source of the group, and its facts, and its timeline; the other arguments are those of `Intake.next`."""
        self._rules, self._at, self._wanted = rules, at, wanted
        self._readings = [
            _Reading(
                name,
                sources[name],
                rules.configs[name],
                facts[name],
                ahead[name],
                rules.limit(name, at.now),
            )
            for name in facts
        ]
        punctuated = {own.number: own.punctuated for own in facts.values() if own.punctuated is not None}
        self._timeline = ArrivalTimeline(timeline.bucket, timeline.watermark, punctuated)

    def plan(self) -> GroupSlice:
        """Read, merge and release items; return the group's part of the slice."""
        self._read()
        released = release(self._queues())
        lags = {reading.facts.number: lag_of(self._rules.out_of_orderness[reading.name]) for reading in self._readings}
        timeline, watermarks = self._timeline.advanced(released, size=self._rules.bucket, lags=lags)
        facts = {reading.name: self._facts(reading, released, timeline) for reading in self._readings}
        return GroupSlice(
            TimelineSlice(tuple(facts), self._timeline.bucket, len(released), timeline.bucket, watermarks),
            tuple(file for reading in self._readings for file in self._inputs(reading, released)),
            facts,
            tuple(self._waiting(released)),
            moves=len(released) > 0
            or any(
                _has_moved(reading.facts, facts[reading.name]) or reading.ahead.needs_checkpoint
                for reading in self._readings
            ),
        )

    def _read(self) -> None:
        """Read the files of this slice. While nothing can be released, read more of the source that the others wait for."""
        for reading in self._readings:
            for _ in reading.ahead.files if self._wanted.is_whole else reading.within_limits():
                reading.read_more(self._timeline.key)
            reading.is_idle = self._is_idle(reading)
        if self._wanted.until is not None:
            self._read_beyond(self._wanted.until)
        while (first := self._first_in_turn()) is not None and not first.is_read and not first.count:
            first.read_more(self._timeline.key)

    def _read_beyond(self, until: Mapping[str, SourceFacts]) -> None:
        """Read further files of sources whose next items may sort before the last recorded one, unless they were idle then."""
        last = last_recorded(self._recorded_queues(), self._counts(until))
        for reading in self._readings:
            recorded = until.get(reading.name, NO_FACTS)
            reading.ahead = replace(reading.ahead, files=(*reading.ahead.files, *reading.ahead.beyond))
            while not (last is None or recorded.idle or recorded.ended or reading.is_read) and (
                (reading.frontier(self._timeline.key), reading.facts.number) < (last.frontier, last.number)
            ):
                reading.read_more(self._timeline.key)

    def _counts(self, until: Mapping[str, SourceFacts]) -> list[int]:
        return [reading.recorded(until.get(reading.name, NO_FACTS)) for reading in self._readings]

    def _recorded_queues(self) -> list[Queue]:
        return [reading.queue(self._timeline.key, is_live=False) for reading in self._readings]

    def _is_idle(self, reading: _Reading) -> bool:
        """Return whether a source had no input for so long that the others no longer wait for it (`idle_after`)."""
        if self._wanted.until is not None or reading.config.idle_after is None or not reading.is_drained:
            return False
        since = self._at.since if reading.facts.taken_at is None else reading.facts.taken_at
        return self._at.now - since >= reading.config.idle_after // _MILLISECOND

    def _queues(self) -> list[Queue]:
        """Return the items of each source that wait; for a repeated micro-batch, only those that it takes."""
        if self._wanted.until is None:
            return [self._queue(reading) for reading in self._readings]
        return until_recorded(self._recorded_queues(), self._counts(self._wanted.until))

    def _queue(self, reading: _Reading) -> Queue:
        has_ended = self._wanted.ends and reading.is_last
        return reading.queue(self._timeline.key, is_live=not (has_ended or reading.is_idle))

    def _first_in_turn(self) -> _Reading | None:
        """Return the live source whose unread items can sort before all others."""
        first = first_in_turn(self._queues())
        return (
            None
            if first is None
            else next(reading for reading in self._readings if reading.facts.number == first.number)
        )

    def _facts(self, reading: _Reading, released: Released, timeline: ArrivalTimeline) -> SourceFacts:
        """Return the facts of a source after its released items."""
        count = len(released.ranks[reading.facts.number])
        whole, rows_taken = reading.position(count)
        files = [part.file for part in reading.files]
        passed_files = whole + (rows_taken > 0)
        taken_up = files[: max(reading.recorded_files, passed_files) if self._wanted.is_whole else passed_files]
        passed = reading.source.facts_after(reading.facts, reading.ahead, taken_up)
        known = {*reading.facts.begun, *(file.place for file in taken_up)}
        recorded = None if self._wanted.until is None else self._wanted.until.get(reading.name)
        begun = tuple(file.place for file in reading.ahead.files[whole:] if file.place in known)
        return msgspec.structs.replace(
            passed.with_begun(begun, rows_taken),
            punctuated=timeline.punctuated.get(reading.facts.number),
            taken_at=self._at.now if reading.has_input(count) else reading.facts.taken_at,
            idle=reading.is_idle if recorded is None else recorded.idle,
        )

    def _inputs(self, reading: _Reading, released: Released) -> Iterator[InputFile]:
        """Yield the files for the tasks to read: files with released rows, and empty files that are finished."""
        ordinals = pc.add(released.ranks[reading.facts.number], self._timeline.bucket.next_ordinal)
        whole, _ = reading.position(len(ordinals))
        start = 0
        for index, part in enumerate(reading.files):
            own = ordinals[start : start + max(0, min(len(part.keys), part.rows - part.skipped))]
            start += len(part.keys)
            if len(own) or (index < whole and not part.rows):
                yield part.file.taken(
                    reading.name,
                    part.rows,
                    own[0].as_py() if len(own) else self._timeline.bucket.next_ordinal,
                    first_row=part.skipped,
                    last_row=part.skipped + len(own),
                    ordinals=self._staged(reading.name, own),
                )

    def _staged(self, name: str, ordinals: pa.Int64Array) -> str | None:
        """Write the ordinals of a file's rows for the tasks, unless they are consecutive."""
        if not len(ordinals) or ordinals[-1].as_py() - ordinals[0].as_py() == len(ordinals) - 1:
            return None
        file = f"ordinals-{name}-{ordinals[0].as_py()}.parquet"
        staged = self._at.transit.stage(file, pa.table({"ordinal": ordinals}), survives=False)
        return self._at.transit.within(staged.path)

    def _waiting(self, released: Released) -> Iterator[Waiting]:
        """Yield the numbers of rows that wait for a source without more input."""
        first = self._first_in_turn()
        if first is not None and first.is_read:
            for reading in self._readings:
                if left := reading.count - len(released.ranks[reading.facts.number]):
                    yield Waiting(left, reading.name, first.name)


def _has_moved(before: SourceFacts, after: SourceFacts) -> bool:
    """Return whether the position in a source has changed, also if it only passed empty files."""
    return (before.last, before.begun) != (after.last, after.begun) or after.is_ahead_of(before)
