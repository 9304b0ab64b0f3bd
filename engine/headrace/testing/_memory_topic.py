"""A topic in memory, for tests of pipelines without a broker."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from headrace import clock

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import SourceConfig
    from headrace.sources.kafka.landed import FirstMessage, OffsetRange, TopicState
    from headrace.storage.storage import Storage


_ids = itertools.count(1)


class _Message(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Mapping[str, bytes]


@dataclass
class MemoryTopic:
    """A topic of Kafka in memory, for `PipelineHarness(topics={"orders": MemoryTopic()})`.

        topic = MemoryTopic("orders", partitions=2)
        topic.append([Order("a", 1)], partition=1)

    It can do what brokers do to a topic, too: add partitions, expire or compact messages, abort transactions, and
    delete and recreate the topic.
    """

    name: str = "topic"
    partitions: InitVar[int] = 1
    others: dict[str, MemoryTopic] = field(default_factory=dict)
    """Other topics of the same brokers by name, which backfills read as corrected input."""
    reads: int = field(default=0, init=False)
    """Number of ranges that the engine read."""

    def __post_init__(self, partitions: int) -> None:
        """Create the partitions."""
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
        headers: Mapping[str, bytes] | None = None,
    ) -> int:
        """Append messages to a partition; return the offset of the first.

        A record, or a dict, becomes JSON; bytes are a value unchanged, and None is a tombstone. `timestamp` is the time
        of the messages (ms), by default the clock's. All of them have the `key` and the `headers`.
        """
        first = self._bounds[partition][1]
        time = clock.now() if timestamp is None else timestamp
        for record in records:
            value = record if record is None or isinstance(record, bytes) else msgspec.json.encode(record)
            self._messages[partition].append(_Message(self._bounds[partition][1], key, value, time, headers or {}))
            self._bounds[partition][1] += 1
        return first

    def skip(self, offsets: int = 1, *, partition: int = 0) -> None:
        """Use offsets without a message, as markers of transactions and aborted messages do."""
        self._bounds[partition][1] += offsets

    # --------------------------------------------------------------------------------------------- what brokers do

    def grow(self, partitions: int = 1) -> None:
        """Add empty partitions."""
        self._messages += [[] for _ in range(partitions)]
        self._bounds += [[0, 0] for _ in range(partitions)]

    def expire(self, before: int, *, partition: int = 0) -> None:
        """Delete the messages of a partition before an offset, as retention does."""
        self._bounds[partition][0] = before
        self._messages[partition] = [message for message in self._messages[partition] if message.offset >= before]

    def compact(self, *offsets: int, partition: int = 0) -> None:
        """Delete single messages, as compaction does."""
        self._messages[partition] = [message for message in self._messages[partition] if message.offset not in offsets]

    def truncate(self, end: int, *, partition: int = 0) -> None:
        """Remove all messages of a partition from an offset on, as after an unclean leader election."""
        self._bounds[partition][1] = end
        self._messages[partition] = [message for message in self._messages[partition] if message.offset < end]

    def recreate(self, partitions: int = 1) -> None:
        """Delete the topic, and create one of the same name."""
        self.__post_init__(partitions)

    def tables(self) -> list[pa.Table]:
        """Return the messages of each partition, in the columns of `headrace.sources.kafka.messages.read_messages`."""
        import pyarrow as pa

        from headrace.sources.kafka.landed import MESSAGES

        return [
            pa.Table.from_pylist([self._row(message, number) for message in messages], MESSAGES)
            for number, messages in enumerate(self._messages)
        ]

    def _row(self, message: _Message, partition: int) -> dict[str, Any]:
        times = {"timestamp": 1000 * message.timestamp}
        headers = [{"key": name, "value": value} for name, value in message.headers.items()] or None
        return {**message._asdict(), "topic": self.name, "partition": partition, **times, "headers": headers}

    # -------------------------------------------------------------------------------------------- what the engine asks

    def beside(self, config: SourceConfig) -> MemoryTopic:
        """Return another topic of the same brokers. Called by the engine."""
        return self.others[config.topic or ""]

    def state(self) -> TopicState:
        """Return the topic's id, and the offsets of its partitions. Called by the engine."""
        from headrace.sources.kafka.landed import Bounds, TopicState

        return TopicState(self._id, {number: Bounds(*bounds) for number, bounds in enumerate(self._bounds)})

    def first_since(self, timestamp: int) -> Mapping[int, FirstMessage]:
        """Return, by partition, the first message at or after a timestamp (ms). Called by the engine."""
        from headrace.sources.kafka.landed import FirstMessage

        later = ([own for own in messages if own.timestamp >= timestamp] for messages in self._messages)
        return {number: FirstMessage(own[0].offset, own[0].timestamp) for number, own in enumerate(later) if own}

    def land(self, ranges: Mapping[OffsetRange, str], folder: Storage) -> None:
        """Write the messages of each range to a file of its name in `folder`. Called by the engine."""
        import pyarrow as pa

        from headrace.sources.kafka.landed import MESSAGES, publish_landed, temporary_name, write_messages

        for offsets, name in ranges.items():
            self.reads += 1
            rows = [
                self._row(message, offsets.partition)
                for message in self._messages[offsets.partition]
                if offsets.first <= message.offset < offsets.end
            ]
            temporary = temporary_name()
            write_messages(folder.below(temporary), [pa.RecordBatch.from_pylist(rows, schema=MESSAGES)])
            publish_landed(folder, temporary, name)
