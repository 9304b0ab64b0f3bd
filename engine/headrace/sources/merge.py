"""One slice of sources that meet, or of one with punctuations: read, merge, release, and say where each source stands then.

What is ahead of the others stays with its source, and is read again by a later micro-batch.
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
from headrace.plan.watermarks import lag_of
from headrace.sources.arrival import EARLIEST, Line, Queue, Released, first_in_line, merge_keys, release
from headrace.sources.offset import SourceOffset, latest_watermark, line_of
from headrace.sources.source import Ahead, InputFile, LineSlice, Source, SourceFile, TakenIn
from headrace.sources.wanted import Part, Standing, Waiting, Wanted
from headrace.tables.files import Storage, stage

_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What the job and its pipeline say of merging: ordinals a bucket, and by source its disorder and its configuration."""

    bucket: int
    out_of_orderness: Mapping[str, timedelta]
    configs: Mapping[str, SourceConfig]
    storage: Storage = None

    def are_merged(self, names: Sequence[str], first: SourceOffset) -> bool:
        """Tell whether the rows of a group of sources get their places by merging; `first` is the offset of its first source."""
        config = self.configs[names[0]]
        return len(names) > 1 or config.complete_intervals or config.format == "kafka" or bool(first.unread)

    def of_pieces(self, owners: Mapping[str, str]) -> MergeRules:
        """Return the rules for pieces of sources; `owners` has the source of each piece."""
        return replace(
            self,
            out_of_orderness={piece: self.out_of_orderness[name] for piece, name in owners.items()},
            configs={piece: self.configs[name] for piece, name in owners.items()},
        )


class _FileItems(NamedTuple):
    """The items of a file that are not taken in yet: `skipped` were taken in before. `rows` counts the whole file."""

    file: SourceFile
    rows: int
    skipped: int
    keys: pa.Int64Array


@dataclass(slots=True)
class _Reading:
    """What was read of one source."""

    name: str
    source: Source
    config: SourceConfig
    offset: SourceOffset
    look: Ahead
    files: list[_FileItems] = field(default_factory=list)
    punctuations: dict[int, int] = field(default_factory=dict)
    is_idle: bool = False

    @property
    def is_read(self) -> bool:
        """Tell whether no file is left to read."""
        return len(self.files) == len(self.look.files)

    @property
    def is_drained(self) -> bool:
        """Tell whether there is no input at all that was not taken in, of whatever interval."""
        last = self.offset.last_file
        return not self.look.files and all(last is not None and file.name <= last for file in self.look.listed)

    @property
    def count(self) -> int:
        """Count the items that wait to be released."""
        return sum(len(part.keys) for part in self.files)

    def frontier(self, key: int | None) -> int:
        """Return the merge key that items behind what was read have at least; `key` is that of the line."""
        last = next((part.keys[-1].as_py() for part in reversed(self.files) if len(part.keys)), None)
        return last if last is not None else EARLIEST if key is None else key

    def read_more(self, key: int | None) -> None:
        """Read the next file. Rows that were taken in before are in the line's key, from which the others go on."""
        file = self.look.files[len(self.files)]
        times = self.source.event_times(file)
        rows = len(times)
        interval = self.source.interval_of(file.name) if self.config.complete_intervals else None
        if interval is not None:
            times = pa.concat_arrays([times, pa.array([interval.end], pa.int64())])
        skipped = self.offset.rows_taken if file.name in self.offset.unread[:1] else 0
        if skipped > len(times):
            raise self._changed(file, rows)
        before = self.count
        self.files.append(_FileItems(file, rows, skipped, merge_keys(times[skipped:], self.frontier(key))))
        if interval is not None and self.count > before:
            self.punctuations[self.count - 1] = interval.end

    def _changed(self, file: SourceFile, rows: int) -> SourceError:
        return SourceError(
            f"source '{self.name}': {file.path} has {rows} rows, but {self.offset.rows_taken} of it were taken in: it has changed. "
            "Nothing was taken in. Put the former file back, or restore a checkpoint before it was read."
        )

    def queue(self, key: int | None, *, is_live: bool) -> Queue:
        """Return what waits to be released."""
        keys = pa.concat_arrays([pa.array([], pa.int64()), *(part.keys for part in self.files)])
        start = EARLIEST if key is None else key
        return Queue(
            self.offset.number, keys, start, self.frontier(key), is_live=is_live, punctuations=self.punctuations
        )

    def position(self, count: int) -> tuple[int, int]:
        """Return how many files `count` more items finish, and how many items of the next one are taken in then altogether."""
        for index, part in enumerate(self.files):
            if count < len(part.keys):
                return index, part.skipped + count
            count -= len(part.keys)
        return len(self.files), 0

    def recorded(self, until: SourceOffset) -> int:
        """Count the items that a recorded micro-batch took of what was read again."""
        items = 0
        for part in self.files:
            if part.file.name in until.unread:
                taken = until.rows_taken if part.file.name == until.unread[0] else 0
                return items + max(0, min(taken - part.skipped, len(part.keys)))
            items += len(part.keys)
        return items


class Merge:
    """Plans the part of a slice that a group of sources has."""

    def __init__(  # noqa: PLR0917 - as `Intake` has them
        self,
        rules: MergeRules,
        sources: Mapping[str, Source],
        looks: Mapping[str, Ahead],
        offsets: Mapping[str, SourceOffset],
        at: Standing,
        wanted: Wanted,
    ) -> None:
        """`looks` and `offsets` have the sources of the group; the others are as in `Intake`."""
        self._rules, self._at, self._wanted = rules, at, wanted
        self._readings = [
            _Reading(name, sources[name], rules.configs[name], offsets[name], looks[name]) for name in offsets
        ]
        bucket = line_of(offsets.values())
        punctuated = {one.number: one.punctuated for one in offsets.values() if one.punctuated is not None}
        self._line = Line(bucket, latest_watermark(offsets.values()), punctuated)

    def part(self) -> Part:
        """Read, merge and release."""
        self._read()
        released = release(self._queues())
        lags = {one.offset.number: lag_of(self._rules.out_of_orderness[one.name]) for one in self._readings}
        line, watermarks = self._line.moved(released, size=self._rules.bucket, lags=lags)
        offsets = {one.name: self._offset(one, released, line) for one in self._readings}
        return Part(
            LineSlice(tuple(offsets), self._line.bucket, len(released), line.bucket, watermarks),
            tuple(file for one in self._readings for file in self._inputs(one, released)),
            offsets,
            tuple(self._waiting(released)),
            moves=len(released) > 0
            or any(_has_moved(one.offset, offsets[one.name]) or one.look.must_be_kept for one in self._readings),
        )

    def _read(self) -> None:
        """Read the files of this slice; then more of the source that holds the others back, while nothing can be released."""
        for one in self._readings:
            one.is_idle = self._is_idle(one)
            files = one.look.files if self._wanted.is_whole else one.source.within_limits(one.look.files)
            for _ in files:
                one.read_more(self._line.key)
        while (first := self._first_in_line()) is not None and not first.is_read and not first.count:
            first.read_more(self._line.key)

    def _is_idle(self, one: _Reading) -> bool:
        """Tell whether nothing came of a source for so long that others wait for it no longer."""
        if self._wanted.until is not None or one.config.idle_after is None or not one.is_drained:
            return False
        since = self._at.since if one.offset.taken_at is None else one.offset.taken_at
        return self._at.now - since >= one.config.idle_after // _MILLISECOND

    def _queues(self) -> list[Queue]:
        return [self._queue(one) for one in self._readings]

    def _queue(self, one: _Reading) -> Queue:
        """Return what waits of a source. When a recorded micro-batch is repeated: what that took, without regard to others."""
        if self._wanted.until is None:
            has_ended = self._wanted.ends and one.is_read
            return one.queue(self._line.key, is_live=not (has_ended or one.is_idle))
        queue = one.queue(self._line.key, is_live=False)
        count = one.recorded(self._wanted.until.get(one.name, SourceOffset()))
        return replace(queue, keys=queue.keys[:count])

    def _first_in_line(self) -> _Reading | None:
        """Return the live source whose unread items can sort before all others."""
        first = first_in_line(self._queues())
        return None if first is None else next(one for one in self._readings if one.offset.number == first.number)

    def _offset(self, one: _Reading, released: Released, line: Line) -> SourceOffset:
        """Return where a source stands behind what is released of it."""
        count = len(released.ranks[one.offset.number])
        whole, rows_taken = one.position(count)
        files = [part.file for part in one.files]
        taken_up = files if self._wanted.is_whole else files[: whole + (rows_taken > 0)]
        taken_in = self._at.taken_in.get(one.name, TakenIn())
        passed = one.source.passed(one.offset, one.look, taken_up, taken_in, self._wanted.interval)
        known = {*one.offset.unread, *(file.name for file in taken_up)}
        recorded = None if self._wanted.until is None else self._wanted.until.get(one.name)
        return msgspec.structs.replace(
            passed,
            unread=tuple(file.name for file in one.look.files[whole:] if file.name in known),
            rows_taken=rows_taken,
            punctuated=line.punctuated.get(one.offset.number),
            watermark=line.watermark,
            taken_at=self._at.now if count else one.offset.taken_at,
            idle=one.is_idle if recorded is None else recorded.idle,
        )

    def _inputs(self, one: _Reading, released: Released) -> Iterator[InputFile]:
        """Yield the files that tasks are to read: those of which rows are released, and those without any that are passed."""
        ordinals = pc.add(released.ranks[one.offset.number], self._line.bucket.next_ordinal)
        whole, _ = one.position(len(ordinals))
        start = 0
        for index, part in enumerate(one.files):
            own = ordinals[start : start + max(0, min(len(part.keys), part.rows - part.skipped))]
            start += len(part.keys)
            if len(own) or (index < whole and not part.rows):
                yield InputFile(
                    one.name,
                    part.file.path,
                    part.file.name,
                    part.rows,
                    own[0].as_py() if len(own) else self._line.bucket.next_ordinal,
                    part.skipped,
                    part.skipped + len(own),
                    self._staged(one.name, own),
                    delta=part.file.delta,
                    messages=part.file.messages,
                    derived=part.file.derived,
                )

    def _staged(self, name: str, ordinals: pa.Int64Array) -> str | None:
        """Write the ordinals of a file's rows for the tasks, unless they follow each other."""
        if not len(ordinals) or ordinals[-1].as_py() - ordinals[0].as_py() == len(ordinals) - 1:
            return None
        file = f"ordinals-{name}-{ordinals[0].as_py()}.parquet"
        staged = stage(self._at.transit, file, pa.table({"ordinal": ordinals}), self._rules.storage, survives=False)
        return f"{self._at.transit}/{staged.path}"

    def _waiting(self, released: Released) -> Iterator[Waiting]:
        """Yield which rows wait for a source of which there are no more."""
        first = self._first_in_line()
        if first is not None and first.is_read:
            for one in self._readings:
                if left := one.count - len(released.ranks[one.offset.number]):
                    yield Waiting(left, one.name, first.name)


def _has_moved(before: SourceOffset, after: SourceOffset) -> bool:
    """Tell whether a source stands elsewhere, be it behind files without rows alone."""
    return (before.last_file, before.unread) != (after.last_file, after.unread)
