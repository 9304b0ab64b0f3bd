"""Landed files with ranges of a topic's offsets, and the protocol of a topic.

Landing fixes a partition's messages. Tasks read landed files like files of a folder, without the JVM, and read the same
rows again after a crash, a restore or a requeue. A file is Parquet in the job's folder, and named after its range:

    <job folder>/landed/<source>/orders-0@00000000000000000120-00000000000000000499-1f3a9c2e-7b0c41d2.parquet

The last two parts are a digest of the topic's id, and a unique suffix.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import clock
from headrace.config import SourceConfig
from headrace.storage.files import SMALL
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

LANDED: Final = "landed"
"""Name of the folder of landed files, in the job's folder."""

MESSAGES: Final = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
    ]
)
"""Columns of a landed file; its rows are in the order of offsets."""

_NAME: Final = re.compile(r"(.+)-(\d+)@(\d{20})-(\d{20})-([0-9a-f]{8})-[0-9a-f]{8}\.parquet")


class OffsetRange(NamedTuple):
    """Offsets of a partition from `first` (inclusive) to `end` (exclusive), also those without a message."""

    partition: int
    first: int
    end: int


class LandedName(NamedTuple):
    """Parts of a landed file's name."""

    range: OffsetRange
    topic_id: str
    """Digest of the topic's id."""

    name: str


def landed_folder(folder: JobFolder, source: str) -> Storage:
    """Return the place of a source's landed files."""
    return folder.below(f"{LANDED}/{source}")


def digest_of(topic_id: str) -> str:
    """Return the digest of a topic's id, as in the names of its landed files."""
    return blake2b(topic_id.encode(), digest_size=4).hexdigest()


def landed_name(topic: str, topic_id: str, offsets: OffsetRange) -> str:
    """Make a unique file name for a range."""
    where = f"{topic}-{offsets.partition}@{offsets.first:020d}-{offsets.end:020d}"
    return f"{where}-{digest_of(topic_id)}-{clock.unique_id()[-8:]}.parquet"


def parse_landed(name: str) -> LandedName | None:
    """Parse the name of a landed file; return None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    _, partition, first, end, topic_id = match.groups()
    return LandedName(OffsetRange(int(partition), int(first), int(end)), topic_id, name)


def messages_name(name: str) -> str:
    """Return the name of the messages' file for the name of a file that a Spark transform made of them; any other name stays."""
    return name.partition("~")[0]  # no topic has a tilde in its name


def list_landed(folder: Storage) -> list[LandedName]:
    """Return the landed files in a source's folder, by range and name."""
    return sorted(landed for name in folder.files() if (landed := parse_landed(name)) is not None)


def temporary_name() -> str:
    """Make a unique name for a file until it is complete; `publish_landed` then renames it."""
    return f"part-{clock.unique_id()}.parquet"


def write_messages(file: Storage, batches: Iterable[pa.RecordBatch]) -> int:
    """Write messages of one partition in the order of `batches`; return their number.

    Only one batch is in memory at a time. Raises `StorageError` where the file cannot be written.
    """
    store, path = file.file_system()
    rows = 0
    with file.writing(), pq.ParquetWriter(path, MESSAGES, filesystem=store, compression=SMALL.compression) as writer:
        for batch in batches:
            if batch.num_rows:
                writer.write_table(pa.Table.from_batches([batch]).select(MESSAGES.names).cast(MESSAGES))
                rows += batch.num_rows
    return rows


def publish_landed(folder: Storage, temporary: str, name: str) -> None:
    """Rename a complete file. Only the driver does this, so a task that was given up cannot change a landed file."""
    folder.rename(temporary, name)


class Bounds(NamedTuple):
    """Offsets of a partition from `first` (inclusive) to `end` (exclusive), without those of open transactions."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class TopicState:
    """State of a topic at one time: its id, which changes when the topic is deleted and created again, and its partitions."""

    topic_id: str
    partitions: Mapping[int, Bounds]


class FirstMessage(NamedTuple):
    """First message of a partition that is not older than some timestamp: its offset, and its own timestamp (ms)."""

    offset: int
    timestamp: int


class Topic(Protocol):
    """Topic, as the driver of a job sees it.

    Each method raises `ServiceError` when no broker answers, and `SourceError` when there is no such topic, or the brokers refuse.
    """

    def state(self) -> TopicState:
        """Ask the brokers for the topic's id and partitions."""
        ...

    def first_since(self, timestamp: int) -> Mapping[int, FirstMessage]:
        """Return by partition the first message that is not older than a timestamp (ms); without the partitions that have none."""
        ...

    def beside(self, config: SourceConfig) -> Topic:
        """Return the topic of other settings. Makes no request yet."""
        ...

    def land(self, ranges: Mapping[OffsetRange, str], folder: Storage) -> None:
        """Write the messages of each range to the file of its name in `folder` (`headrace.sources.kafka.landed`).

        Each range is of a different partition. A file is complete or missing, also after an error.
        """
        ...
