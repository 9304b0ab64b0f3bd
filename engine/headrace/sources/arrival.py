"""Arrival order and watermarks of several sources that are merged. Pure: no files, no clock.

An *item* is a row, or a punctuation: the end of a file, in a source with complete intervals. An item's *merge key* is the
highest event time so far in its own source. Items are merged by (merge key, source number, position in the source); a
punctuation that raises the merge key comes before all rows with that key. An item is released, and gets the next ordinal,
once no unread item of a live source can sort before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.watermarks import Bucket, Watermarks, latest

EARLIEST: Final = -(1 << 63)
"""Merge key of rows before the first readable event time."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Items of one source that were read and are not released yet, as merge keys (ms) that never decrease.

    `start` is the merge key before the first item; unread items have a merge key of at least `frontier`. A source is not live
    if it has ended or is idle: no other source waits for it. `punctuations` maps an item's index to the time of its
    punctuation (ms).
    """

    number: int
    keys: pa.Int64Array
    start: int
    frontier: int
    is_live: bool = True
    punctuations: Mapping[int, int] = field(default_factory=dict)

    def ranks_of_equals(self) -> pa.Int64Array:
        """Return the sort key of items with equal merge keys: the source's number; less for a punctuation that raises the key."""
        if not self.punctuations:
            return pa.repeat(pa.scalar(self.number, pa.int64()), len(self.keys))
        ranks = [self.number] * len(self.keys)
        for index in self.punctuations:
            if index < len(ranks):
                before = self.keys[index - 1].as_py() if index else self.start
                ranks[index] -= _BEFORE_ROWS if self.keys[index].as_py() > before else 0
        return pa.array(ranks, pa.int64())

    def item(self, index: int) -> Queue:
        """Return a queue without items whose frontier is where an item sorts."""
        return Queue(self.ranks_of_equals()[index].as_py(), self.keys[:0], self.start, self.keys[index].as_py())

    def up_to(self, last: Queue | None) -> int:
        """Count the items that sort at or before the frontier of queue `last`; all items if it is None."""
        if last is None:
            return len(self.keys)
        return self._count(last, pc.less_equal(self.ranks_of_equals(), last.number))

    def before(self, last: Queue) -> int:
        """Count the items that sort before the frontier of queue `last`."""
        return self._count(last, pc.less(self.ranks_of_equals(), last.number))

    def _count(self, last: Queue, of_equals: pa.BooleanArray) -> int:
        equals = pc.and_(pc.equal(self.keys, last.frontier), of_equals)
        return pc.sum(pc.or_(pc.less(self.keys, last.frontier), equals)).as_py() or 0


_BEFORE_ROWS: Final = 1 << 32


class Punctuation(NamedTuple):
    """Promise that no later row of source `number` is earlier than `time` (ms). `rank` is its index among released items."""

    rank: int
    number: int
    time: int


@dataclass(frozen=True, slots=True)
class Released:
    """Items in merged order: their merge keys, their ranks by source number, and the punctuations among them."""

    keys: pa.Int64Array
    ranks: dict[int, pa.Int64Array]
    punctuations: tuple[Punctuation, ...]

    def __len__(self) -> int:
        """Return the number of items."""
        return len(self.keys)


def merge_keys(times: pa.Int64Array, start: int | None) -> pa.Int64Array:
    """Return the running maximum of event times (ms), beginning with `start`. A null time does not change it."""
    return pc.cumulative_max(times.fill_null(EARLIEST), start=EARLIEST if start is None else start)


def first_in_turn(queues: Iterable[Queue]) -> Queue | None:
    """Return the live source that the others wait for: its unread items can sort first. None if no source is live."""
    return min(
        (queue for queue in queues if queue.is_live), key=lambda queue: (queue.frontier, queue.number), default=None
    )


def until_recorded(queues: Sequence[Queue], counts: Sequence[int]) -> list[Queue]:
    """Return queues with the first items that a recorded micro-batch took, by their `counts`, and all items that sort before the last one.

    Over the same input these are exactly the recorded items. If files were corrected since, the others keep the merge order: no item is
    passed over because the former file had fewer rows, or later ones.
    """
    last = last_recorded(queues, counts)
    if last is None:
        return [replace(queue, keys=queue.keys[:0]) for queue in queues]
    reaches = (max(count, queue.before(last)) for queue, count in zip(queues, counts, strict=True))
    return [replace(queue, keys=queue.keys[:reach]) for queue, reach in zip(queues, reaches, strict=True)]


def last_recorded(queues: Sequence[Queue], counts: Sequence[int]) -> Queue | None:
    """Return where the last of the recorded items sorts, as the frontier and the number of an empty queue; None without items."""
    lasts = (queue.item(count - 1) for queue, count in zip(queues, counts, strict=True) if count)
    return max(lasts, key=lambda item: (item.frontier, item.number), default=None)


def release(queues: Sequence[Queue]) -> Released:
    """Merge and return the items that no unread item of a live source can sort before.

    These are all items up to the last one read from the source that is first in turn. All unread items, of that source and
    of the others, sort after it.
    """
    last = first_in_turn(queues)
    counts = [queue.up_to(last) for queue in queues]
    keys = _joined(queue.keys[:count] for queue, count in zip(queues, counts, strict=True))
    equals = _joined(queue.ranks_of_equals()[:count] for queue, count in zip(queues, counts, strict=True))
    order = pc.sort_indices(pa.table({"key": keys, "equals": equals}), [("key", "ascending"), ("equals", "ascending")])
    ranks = pc.sort_indices(order).cast(pa.int64())  # the inverse of a permutation
    by_source: dict[int, pa.Int64Array] = {}
    punctuations: list[Punctuation] = []
    start = 0
    for queue, count in zip(queues, counts, strict=True):
        own = by_source[queue.number] = ranks[start : start + count]
        punctuations += [
            Punctuation(own[index].as_py(), queue.number, time)
            for index, time in queue.punctuations.items()
            if index < count
        ]
        start += count
    return Released(keys.take(order), by_source, tuple(sorted(punctuations)))


def _joined(arrays: Iterable[pa.Int64Array]) -> pa.Int64Array:
    return pa.concat_arrays([pa.array([], pa.int64()), *arrays])


@dataclass(frozen=True, slots=True)
class ArrivalTimeline:
    """Position of a timeline: its bucket, its last watermark (ms), and its last punctuations (ms) by source number."""

    bucket: Bucket = field(default_factory=Bucket)
    watermark: int | None = None
    punctuated: Mapping[int, int] = field(default_factory=dict)

    @property
    def key(self) -> int | None:
        """Return the merge key of the last item released (ms); None before the first readable event time."""
        return latest((self.bucket.open_max, self.bucket.closed_max))

    def advanced(self, released: Released, *, size: int, lags: Mapping[int, int]) -> tuple[ArrivalTimeline, Watermarks]:
        """Return the timeline after released items, and the watermarks of these items.

        A watermark follows each bucket of `size` ordinals and each punctuation, if it is higher than the last watermark.
        `lags` gives the distance of the watermark from the merge key (ms), by source number.
        """
        first, end = self.bucket.next_ordinal, self.bucket.next_ordinal + len(released)
        punctuated, watermark, watermarks = dict(self.punctuated), self.watermark, Watermarks()
        by_place = {first + punctuation.rank + 1: punctuation for punctuation in released.punctuations}
        for place in sorted({*range((first // size + 1) * size, end + 1, size), *by_place}):
            if place in by_place:
                punctuated[by_place[place].number] = by_place[place].time
            key = released.keys[place - first - 1].as_py()
            value = min(max(key - lag, punctuated.get(number, EARLIEST) - 1) for number, lag in lags.items())
            if key != EARLIEST and (watermark is None or value > watermark):
                watermark = value
                watermarks.append((place, value))
        return ArrivalTimeline(self._bucket(released, end, size), watermark, punctuated), watermarks

    def _bucket(self, released: Released, end: int, size: int) -> Bucket:
        if not len(released):
            return self.bucket
        first, boundary = self.bucket.next_ordinal, end // size * size
        closed = released.keys[boundary - first - 1].as_py() if boundary > first else self.bucket.closed_max
        last = released.keys[-1].as_py()
        return Bucket(end, _readable(last) if boundary < end else None, _readable(closed))


def _readable(key: int | None) -> int | None:
    return None if key == EARLIEST else key
