"""A topic in memory, for tests of pipelines without a broker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace import clock

if TYPE_CHECKING:
    from headrace.sources.landed import OffsetRange
    from headrace.sources.topic import TopicState

_ids = itertools.count(1)


class _Message(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int


@dataclass
class MemoryTopic:
    """A topic of Kafka in memory, for `PipelineHarness(topics={"orders": MemoryTopic()})`.

        topic = MemoryTopic("orders", partitions=2)
        topic.append([Order("a", 1)], partition=1)

    It has what brokers do to a topic, too: partitions are added, messages expire or are compacted away, transactions are aborted, and
    the topic is deleted and made anew.
    """

    name: str = "topic"
    partitions: InitVar[int] = 1
    reads: int = field(default=0, init=False)
    """How many ranges were landed."""

    def __post_init__(self, partitions: int) -> None:
        """Make the partitions."""
        self._id = f"id-{next(_ids)}"
        self._messages: list[list[_Message]] = []
        self._bounds: list[list[int]] = []
        self.grow(partitions)

    # ------------------------------------------------------------------------------------------- what producers do

    def append(
        self,
        records: Sequence[msgspec.Struct | dict[str, Any] | bytes | None],
        *,
        partition: int = 0,
        key: bytes | None = None,
        timestamp: int | None = None,
    ) -> int:
        """Append messages to a partition; return the offset of the first.

        A record, or a dict, becomes JSON; bytes are a value as it is, and None is a tombstone. `timestamp` is the time of the
        messages (ms), otherwise that of the clock.
        """
        first = self._bounds[partition][1]
        time = clock.now() if timestamp is None else timestamp
        for record in records:
            value = record if record is None or isinstance(record, bytes) else msgspec.json.encode(record)
            self._messages[partition].append(_Message(self._bounds[partition][1], key, value, time))
            self._bounds[partition][1] += 1
        return first

    def skip(self, offsets: int = 1, *, partition: int = 0) -> None:
        """Use up offsets without a message, as markers of transactions and aborted messages do."""
        self._bounds[partition][1] += offsets

    # --------------------------------------------------------------------------------------------- what brokers do

    def grow(self, partitions: int = 1) -> None:
        """Add empty partitions."""
        self._messages += [[] for _ in range(partitions)]
        self._bounds += [[0, 0] for _ in range(partitions)]

    def expire(self, before: int, *, partition: int = 0) -> None:
        """Delete the messages of a partition before an offset, as the retention does."""
        self._bounds[partition][0] = before
        self._messages[partition] = [one for one in self._messages[partition] if one.offset >= before]

    def compact(self, *offsets: int, partition: int = 0) -> None:
        """Delete single messages, as compaction does."""
        self._messages[partition] = [one for one in self._messages[partition] if one.offset not in offsets]

    def truncate(self, end: int, *, partition: int = 0) -> None:
        """Lose all messages of a partition from an offset on, as after an unclean leader election."""
        self._bounds[partition][1] = end
        self._messages[partition] = [one for one in self._messages[partition] if one.offset < end]

    def recreate(self, partitions: int = 1) -> None:
        """Delete the topic, and make one of the same name."""
        self.__post_init__(partitions)

    # -------------------------------------------------------------------------------------------- what the engine asks

    def state(self) -> TopicState:
        """See `headrace.sources.topic.Topic`."""
        from headrace.sources.topic import Bounds, TopicState

        return TopicState(self._id, {number: Bounds(*bounds) for number, bounds in enumerate(self._bounds)})

    def offsets_at(self, moment: int) -> Mapping[int, int]:
        """See `headrace.sources.topic.Topic`."""
        return {
            number: next((one.offset for one in messages if one.timestamp >= moment), self._bounds[number][1])
            for number, messages in enumerate(self._messages)
        }

    def land(self, ranges: Mapping[OffsetRange, str], folder: str, storage: Mapping[str, str] | None) -> None:
        """See `headrace.sources.topic.Topic`."""
        import pyarrow as pa

        from headrace.sources.landed import MESSAGES, publish_landed, temporary_name, write_messages

        for offsets, name in ranges.items():
            self.reads += 1
            rows = [
                {
                    **one._asdict(),
                    "topic": self.name,
                    "partition": offsets.partition,
                    "timestamp": 1000 * one.timestamp,
                    "headers": None,
                }
                for one in self._messages[offsets.partition]
                if offsets.first <= one.offset < offsets.end
            ]
            temporary = temporary_name()
            write_messages(f"{folder}/{temporary}", [pa.RecordBatch.from_pylist(rows, schema=MESSAGES)], storage)
            publish_landed(folder, temporary, name, storage)
