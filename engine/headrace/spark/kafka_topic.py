"""Topic of real brokers, through the JVM of a Spark session: Kafka's admin client reads offsets, Spark's reader lands messages.

Offsets end at the last stable one: messages of open transactions are not read yet, and those of aborted transactions never.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from headrace.config import JobConfig, SinkConfig, SourceConfig
from headrace.errors import ConfigError, StorageError
from headrace.sources.corrected import connection_name
from headrace.sources.kafka.landed import (
    Bounds,
    FirstMessage,
    TopicState,
    publish_landed,
    temporary_name,
    write_messages,
)
from headrace.spark.errors import jvm_answers, kafka_errors
from headrace.spark.tasks import Partition
from headrace.storage.refusals import reason_of, storage_advice
from headrace.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from headrace.sources.kafka.landed import OffsetRange, Topic


_ADMIN: Final = "org.apache.kafka.clients.admin"
TIMEOUTS: Final = {"kafka.request.timeout.ms": "15000", "kafka.default.api.timeout.ms": "30000"}

LANDED_DDL: Final = "report binary"


class LandedPart(msgspec.Struct, frozen=True):
    """Report of a task: the landed file, with a temporary name. `error` says why storage refused it."""

    partition: int
    file: str = ""
    rows: int = 0
    error: str | None = None


def topics_of(spark: SparkSession, config: JobConfig) -> dict[str, Topic]:
    """Return the topics that a job reads, by name of the source, and those of corrected input. Makes no request yet."""
    corrected = {connection_name(name): config.corrected(name) for name in config.replay.sources}
    return {
        name: SparkTopic(spark, name, source)
        for name, source in {**config.sources, **corrected}.items()
        if source.kind.has_partitions
    }


@dataclass(frozen=True, slots=True)
class SparkTopic:
    """Implementation of `Topic` through Spark."""

    spark: SparkSession
    source: str
    config: SourceConfig

    def beside(self, config: SourceConfig) -> SparkTopic:
        """Return the topic of other settings."""
        return replace(self, config=config)

    def state(self) -> TopicState:
        """Return the partitions and offsets, as `Topic.state` describes."""
        with self._translated(), self._admin() as admin:
            topic = self._topic
            description = admin.describeTopics(java_list(self._jvm, [topic])).allTopicNames().get().get(topic)
            partitions = [info.partition() for info in description.partitions()]
            specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec
            first = self._offsets(admin, partitions, specs.earliest())
            end = self._offsets(admin, partitions, specs.latest())
            bounds = {number: Bounds(first[number].offset, end[number].offset) for number in partitions}
            return TopicState(description.topicId().toString(), bounds)

    def first_since(self, timestamp: int) -> Mapping[int, FirstMessage]:
        """Return the first messages since a timestamp (ms), as `Topic.first_since` describes."""
        partitions = [*self.state().partitions]
        with self._translated(), self._admin() as admin:
            spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.forTimestamp(max(0, timestamp))
            first = self._offsets(admin, partitions, spec)
        return {partition: message for partition, message in first.items() if message.offset >= 0}

    def land(self, ranges: Mapping[OffsetRange, str], folder: Storage) -> None:
        """Land ranges of messages, as `Topic.land` describes: one Spark job, a task for each partition."""
        by_partition = {offsets.partition: name for offsets, name in ranges.items()}
        with self._translated():
            messages = self.spark.read.format("kafka").options(**self._reader_options([*ranges])).load()
            rows = messages.mapInArrow(landing_partition(folder), LANDED_DDL).collect()
        parts = [msgspec.json.decode(bytes(row.report), type=LandedPart) for row in rows]
        for part in parts:
            if part.error is not None:
                raise StorageError(f"{part.error}. Nothing was committed; {storage_advice(part.error)}.")
        for part in parts:
            publish_landed(folder, part.file, by_partition.pop(part.partition))
        for name in by_partition.values():  # ranges whose messages are all compacted, or of aborted transactions
            empty = temporary_name()
            write_messages(folder.below(empty), [])
            publish_landed(folder, empty, name)

    # ------------------------------------------------------------------------------------------------ how it's done

    @property
    def _topic(self) -> str:
        return self.config.topic or ""

    @property
    def _jvm(self) -> Any:
        return self.spark._jvm  # noqa: SLF001 - pyspark has no other way to the JVM

    def _reader_options(self, ranges: list[OffsetRange]) -> dict[str, str]:
        def offsets(place: Callable[[OffsetRange], int]) -> str:
            return msgspec.json.encode(
                {self._topic: {str(requested.partition): place(requested) for requested in ranges}}
            ).decode()

        return {
            **TIMEOUTS,
            **self.config.options,
            "kafka.bootstrap.servers": self.config.servers or "",
            "kafka.isolation.level": "read_committed",
            "assign": msgspec.json.encode({self._topic: [requested.partition for requested in ranges]}).decode(),
            "startingOffsets": offsets(lambda requested: requested.first),
            "endingOffsets": offsets(lambda requested: requested.end),
            "failOnDataLoss": "true",
            "includeHeaders": "true",
        }

    def _admin(self) -> AbstractContextManager[Any]:
        return kafka_admin(
            self._jvm, self.config, f"source '{self.source}' reads a topic of Kafka", "Nothing was taken in."
        )

    def _offsets(self, admin: Any, partitions: list[int], spec: Any) -> dict[int, FirstMessage]:
        kafka = self._jvm.org.apache.kafka
        asked = self._jvm.java.util.HashMap()
        by_partition = {partition: kafka.common.TopicPartition(self._topic, partition) for partition in partitions}
        for result_of_partition in by_partition.values():
            asked.put(result_of_partition, spec)
        committed = kafka.common.IsolationLevel.READ_COMMITTED
        result = admin.listOffsets(asked, kafka.clients.admin.ListOffsetsOptions(committed))
        infos = {partition: result.partitionResult(own).get() for partition, own in by_partition.items()}
        return {partition: FirstMessage(info.offset(), info.timestamp()) for partition, info in infos.items()}

    def _translated(self) -> AbstractContextManager[None]:
        return kafka_errors(self.source, self.config, lambda: jvm_answers(self.spark.sparkContext))


@contextmanager
def kafka_admin(jvm: Any, config: SourceConfig | SinkConfig, doing: str, unchanged: str) -> Iterator[Any]:
    """Open an admin client for the length of the block.

    Raises `ConfigError` if Spark has no client for Kafka. Its message begins with `doing`, and says what is `unchanged`.
    """
    try:
        client = getattr(jvm, f"{_ADMIN}.Admin")
        settings = jvm.java.util.Properties()
        given = {**TIMEOUTS, **config.options, "kafka.bootstrap.servers": config.servers or ""}
        for key, value in given.items():
            settings.put(key.removeprefix("kafka."), value)
        admin = client.create(settings)
    except TypeError as error:  # py4j treats a missing class as a package
        raise ConfigError(
            f"{doing}, and Spark has no client for it. {unchanged} Run 'headrace setup --kafka', and add kafka to "
            "'connectors' of the cluster profile."
        ) from error
    try:
        yield admin
    finally:
        admin.close()


def landing_partition(folder: Storage) -> Partition:
    """Return a function that writes the messages of one partition of the topic to a file of its own."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        first = next((batch for batch in batches if batch.num_rows), None)
        if first is None:
            return

        def every() -> Iterator[pa.RecordBatch]:
            yield first
            yield from batches

        partition, file = first.column("partition")[0].as_py(), temporary_name()
        try:
            rows = write_messages(folder.below(file), every())
            part = LandedPart(partition, file, rows)
        except StorageError as error:  # an error raised here would make Spark retry
            part = LandedPart(partition, error=f"could not write {folder.within(file)}: {reason_of(error)}")
        yield pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(part)], pa.binary())], names=["report"])

    return run


def java_list(jvm: Any, items: list[str]) -> Any:
    """Return texts as a Java list."""
    texts = jvm.java.util.ArrayList()
    for item in items:
        texts.add(item)
    return texts
