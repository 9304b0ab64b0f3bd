"""Intervals of a topic: ranges of offsets, cut where the times of messages say so.

In each partition, an interval ends before the first message of its end or later, and the next one begins there. Messages that are out of order in
time are taken by their offsets: each message belongs to exactly one interval. What a checkpoint has recorded decides from then on, not times.

    offset      0      1      2      3      4      5
    time       10:00  23:00  00:10  23:50  00:20  01:00      of days 1 and 2
    interval   |-- day 1 --|  |-------- day 2 --------|

A message without a time, and one whose time lies more than a day ahead of this machine's clock, ends no interval: it belongs to that of its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.sources.interval import Interval
from headrace.sources.kafka.errors import KafkaErrors
from headrace.sources.kafka.landed import FirstMessage

_MOST_AHEAD: Final = timedelta(days=1) // timedelta(milliseconds=1)
"""How far the time of a message may lie ahead of this machine's clock (ms): a later one would end all intervals up to it."""


@dataclass(frozen=True, slots=True)
class TopicIntervals:
    """Rule by which the messages of a topic have intervals."""

    errors: KafkaErrors
    idle_after: int
    """Time after the end of an interval from which on a partition without a later message is idle (ms)."""
    ranges: Callable[[int, int], Sequence[str]]
    """Return the names of the files of a partition from an offset on. Raises `SourceError` where the topic lacks messages."""
    messages: Callable[[str], pa.Table]
    """Return offsets and timestamps of a file, and land it first."""

    def beginnings(
        self, first: Mapping[int, FirstMessage], starts: Mapping[int, int], time: int
    ) -> dict[int, int | None]:
        """Return by partition the first offset that a job may read whose first interval begins at `time` (ms); None without a later message.

        `first` has the first messages since then, and `starts` the first offsets that the job reads in any case.
        """
        return {number: self._first_from(number, start, time, first.get(number)) for number, start in starts.items()}

    def ends(
        self, first: Mapping[int, FirstMessage], positions: Mapping[int, int], interval: Interval
    ) -> dict[int, int | None]:
        """Return by partition the offset before which an interval ends; None where it ends with the partition, which is idle.

        `first` has the first messages since the interval's end. Raises `OpenIntervalError` where more messages may come to the interval.
        """
        ends = {
            number: self._first_from(number, position, interval.end, first.get(number))
            for number, position in positions.items()
        }
        waiting = [number for number, end in ends.items() if end is None]
        if waiting and clock.now() < interval.end + self.idle_after:
            raise self.errors.open(waiting, interval, self.idle_after)
        return ends

    def latest(self, name: str, rows: slice) -> int | None:
        """Return the time of the latest of some messages of a file (ms); None without one that has a time."""
        latest: int | None = pc.max(_told(self.messages(name)["timestamp"][rows])).as_py()
        return latest

    def earliest(self, name: str) -> int | None:
        """Return the time of the earliest message of a file (ms); None without one that has a time."""
        earliest: int | None = pc.min(_told(self.messages(name)["timestamp"])).as_py()
        return earliest

    def _first_from(self, partition: int, position: int, time: int, first: FirstMessage | None) -> int | None:
        """Return the first offset from `position` on whose message is of a time (ms) or later.

        The brokers know the first one of the whole partition. If that tells nothing, the messages behind it are read.
        """
        if first is None:
            self.ranges(partition, position)  # raises an error if the partition ends before
            return None
        if first.offset >= position and first.timestamp <= clock.now() + _MOST_AHEAD:
            return first.offset
        for name in self.ranges(partition, max(position, first.offset)):
            messages = self.messages(name)
            later = messages.filter(pc.greater_equal(_told(messages["timestamp"]), time))
            if later.num_rows:
                offset: int = later["offset"][0].as_py()
                return offset
        return None


def _told(times: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return timestamps in ms, null where they tell nothing."""
    milliseconds = pc.cast(pc.cast(times, pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    tells = pc.and_(pc.greater_equal(milliseconds, 0), pc.less_equal(milliseconds, clock.now() + _MOST_AHEAD))
    return pc.if_else(tells, milliseconds, None)
