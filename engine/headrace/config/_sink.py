"""Sinks in a job's file: their keys, and the formats that have them.

Code asks what a format is (`SinkConfig.kind`), and never compares names of formats. So a new format is a class here, and its
kind in `headrace.sinks.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final, Literal

import msgspec

from headrace.config._formats import Problem, client_problems, topic_place, without_settings
from headrace.config._types import Location, Scalar, Section, shown_repr

FOLDER_TABLE: Final = "_headrace"
"""Folder of a Parquet sink's table, within the sink's own. Readers of Parquet folders skip names that begin with `_`."""


class SinkConfig(Section, frozen=True, kw_only=True):
    """Location and format of a sink of the pipeline."""

    format: Literal["delta", "parquet", "kafka"] = "delta"
    """delta: a Delta table. parquet: a [folder of Parquet files](sinks.md#folders-of-parquet-files) that rows are only added to, for readers without Delta. kafka: a [topic of Apache Kafka](kafka.md#topics-as-sinks) that rows are sent to, at least once."""

    path: Location
    """Folder or URI of the Delta table, or of the Parquet files. Format kafka: of the Delta table that rows are sent from, the outbox."""

    servers: str | None = None
    """Format kafka: brokers to ask first, as `HOST:PORT`, separated by commas."""

    topic: str | None = None
    """Format kafka: the topic's name."""

    options: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """Format kafka: [settings of Kafka's clients](kafka.md#security), with `kafka.` before their names, such as `kafka.security.protocol`. Secrets: `"${NAME}"`."""

    key: str | None = None
    """Format kafka: the column whose values are the keys of the messages: those of a key stay in order. null: messages have no keys."""

    rename: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """[Names of fields of the record in the sink's table](sinks.md#names-of-columns), where they differ. They win over the names that the record gives."""

    mode: Literal["merge", "append"]
    """merge: one row per primary key, updated in place. append: rows are only added. Behind a materializer they are its changes then, with `_row_kind` and `_order`."""

    partition_by: tuple[str, ...] = ()
    """Columns that the table is [partitioned by](sinks.md#partitions) when it is created: texts, whole numbers, days or truth values. A table that is there keeps its partitions."""

    cluster_by: tuple[str, ...] = ()
    """Columns by which [`headrace maintain --sinks`](sinks.md#small-files) puts rows that are alike into the same files (Z-order)."""

    @property
    def kind(self) -> SinkFormat:
        """Return the facts of the format."""
        return SINK_FORMATS[self.format]

    @property
    def table_path(self) -> str:
        """Return the folder or URI of the Delta table of published rows: the sink itself, or one within its folder."""
        return self.kind.table_path(self)

    @property
    def place(self) -> str:
        """Return the place where readers find the sink, for messages."""
        return self.kind.place(self)

    def shown(self) -> dict[str, Any]:
        """Return the settings for printing: values of a client's settings are hidden, since they may be secrets."""
        return without_settings(self)

    def __repr__(self) -> str:
        """Return a struct's text without the values of settings: configurations end up in tracebacks and logs."""
        return shown_repr(self, self.shown())


class SinkFormat:
    """Format of a sink."""

    keys: ClassVar[tuple[str, ...]] = ()
    """Keys that it has, and other formats lack."""
    required: ClassVar[tuple[str, ...]] = ()
    refused: ClassVar[Mapping[str, str]] = {}
    """Why it lacks keys that all other formats have."""

    only_appended: ClassVar[str | None] = None
    """Such a sink, for messages, where rows are only ever added to it; None: rows can be replaced as well."""
    kept_files: ClassVar[str | None] = None
    """Why its files are never rewritten; None: they may be."""
    has_folders: ClassVar[bool] = False
    """True: readers see the partitions of its table as folders."""
    sends_messages: ClassVar[bool] = False
    """True: rows leave the table for readers who cannot give them back."""
    only_on_spark: ClassVar[str | None] = None
    """What only Spark can do with it, and what to do instead; None: it is written without Spark."""

    def __init__(self, name: str) -> None:
        """Keep the name that the job's file has."""
        self.name = name

    def table_path(self, config: SinkConfig) -> str:
        """Return the folder or URI of the Delta table of published rows."""
        return config.path

    def place(self, config: SinkConfig) -> str:
        """Return the place where readers find the sink, for messages."""
        return config.path

    def problems(self, config: SinkConfig) -> Iterator[Problem]:  # noqa: ARG002 - for subclasses
        """Yield the problems with values of its keys."""
        yield from ()


class DeltaSinkFormat(SinkFormat):
    """Delta table."""


class FolderSinkFormat(SinkFormat):
    """Folder of Parquet files, with its table in a folder within."""

    refused: ClassVar = {
        "cluster_by": "files of a Parquet folder are never rewritten: remove it, or write format: delta"
    }
    only_appended = "a folder of Parquet files"
    kept_files = (
        "readers of a folder of Parquet files know the files by name, and would take rewritten files for new rows"
    )
    has_folders = True

    def table_path(self, config: SinkConfig) -> str:
        """Return the folder or URI of the Delta table of published rows."""
        return f"{config.path}/{FOLDER_TABLE}"


class TopicSinkFormat(SinkFormat):
    """Topic of Apache Kafka; rows are sent from a Delta table."""

    keys = ("servers", "topic", "options", "key")
    required = ("servers", "topic")
    refused: ClassVar = {"partition_by": "messages go to partitions by their keys: remove it, and write key"}
    only_appended = "a topic"
    sends_messages = True
    only_on_spark = "sends its rows to a topic of Kafka, which needs Spark: write them to a Delta table (format: delta)"

    def place(self, config: SinkConfig) -> str:
        """Return the place where readers find the sink, for messages."""
        return topic_place(config.topic, config.servers)

    def problems(self, config: SinkConfig) -> Iterator[Problem]:
        """Yield what is wrong with the name of the topic, and with the client's settings."""
        yield from client_problems(config.topic, config.options, _PRODUCER_OPTIONS)


SINK_FORMATS: Final[Mapping[str, SinkFormat]] = {
    kind.name: kind for kind in (DeltaSinkFormat("delta"), FolderSinkFormat("parquet"), TopicSinkFormat("kafka"))
}


_PRODUCER_OPTIONS: Final = (
    *("kafka.bootstrap.servers", "kafka.acks", "kafka.enable.idempotence", "kafka.transactional.id"),
    *("kafka.key.serializer", "kafka.value.serializer"),
)
