"""Sources in a job's file: their keys, and the formats that have them.

Code asks what a format is (`SourceConfig.kind`), and never compares names of formats. So a new kind of source is a class
here, and its kind in `headrace.sources.registry`; a new format of files is a class in `headrace.sources.folder`, and its name here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, ClassVar, Final, Literal
from urllib.parse import urlsplit

import msgspec

from headrace.config._csv import csv_problems
from headrace.config._file_pattern import file_pattern
from headrace.config._formats import Problem, client_problems, foreign_keys, topic_place, without_settings
from headrace.config._interval_pattern import IntervalPattern, interval_pattern
from headrace.config._sections import (
    CorrectedInput,
    CsvOptions,
    EventOptions,
    FileOptions,
    IntervalOptions,
    JsonOptions,
    RegistryOptions,
)
from headrace.config._types import Count, Location, Name, Scalar, Section, Span, SpanOrNone, shown_repr
from headrace.config._values import (
    QuarantineLimit,
    Start,
    StartKind,
    Unit,
    parse_offsets,
    parse_quarantine_limit,
    parse_start,
    parse_versions,
)


class SourceConfig(Section, frozen=True, kw_only=True):
    """Location and format of a source of the pipeline."""

    format: Literal["parquet", "json", "csv", "avro", "delta", "kafka"] = "parquet"
    """parquet, json, csv, avro: a [folder of such files](sources.md) (json: one object a line). delta: a [Delta table](delta-tables.md). kafka: a [topic of Apache Kafka](kafka.md)."""

    path: Location = ""
    """Folder of the files, also of those in its subfolders, which are read in their `order` and must not change; or folder or URI of the Delta table. A topic has none."""

    files: str | None = None
    """[Pattern of the paths](sources.md#which-files), from the source's folder, of the files to read, whatever their endings: `2026/*/orders-*.csv`, `**/*.csv.*`. Wildcards are `*`, `?`, `[...]` and, for folders, `**`; null: all files with an ending of the format."""

    order: Literal["name", "first_seen"] = "name"
    """[Order of the files](sources.md#the-order-of-files). name: that of their paths; a file that sorts before others that were taken in is late. first_seen: files that a run sees first come after those that it saw before, and among each other in the order of their paths: for names that do not sort by time, as Spark writes them. Cannot be changed later."""

    servers: str | None = None
    """Format kafka: brokers to ask first, as `HOST:PORT`, separated by commas."""

    topic: str | None = None
    """Format kafka: the topic's name."""

    options: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """Format kafka: [settings of Kafka's clients](kafka.md#security), with `kafka.` before their names, such as `kafka.security.protocol`. Secrets: `"${NAME}"`."""

    values: Literal["json", "avro", "protobuf"] = "json"
    """Format kafka: how the [values of messages](kafka.md#avro-and-protobuf) are written. avro needs a `registry` or a `schema`, protobuf a `registry`."""

    keys: Literal["text", "json", "avro", "protobuf"] | None = None
    """Format kafka: how the [keys of messages](kafka.md#keys-headers-and-places) are written, for fields that are named `__key` or `__key.NAME`, and for deletions. text: as they are. null: text; with `envelope`, as the values."""

    registry: RegistryOptions | None = None
    """Format kafka: the [schema registry](kafka.md#avro-and-protobuf) whose clients have written the messages, which begin with the number of their schema. null: they have no such beginning."""

    schema: Location | None = None
    """Format kafka: file with the schema of all values, where no registry has it. Of Avro: JSON (`.avsc`)."""

    on_tombstone: Literal["quarantine", "skip", "delete"] = "quarantine"
    """Format kafka: what happens to a message without a value. delete: it [deletes the row of its key](kafka.md#compacted-topics), and any other message is the last row of its own; the pipeline takes the kinds of the rows with `row_kind=COMPACTED`. With `envelope` it is always skipped."""

    skip_offsets: Scalar | None = None
    """Format kafka: messages that are [passed over](kafka.md#when-a-run-stops), as `PARTITION:OFFSETS`, such as `0:17` or `0:120-499, 3:7`."""

    csv: CsvOptions = CsvOptions()
    """Format csv: [how the files are written](sources.md#csv)."""

    rename: dict[str, Scalar] = msgspec.field(default_factory=dict)
    """[Names of fields of the record in the source](sources.md#names-of-columns), where they differ: a column, a key, or a path of keys such as `payload.order.amount`. They win over the names that the record gives."""

    json: JsonOptions = JsonOptions()
    """Format json: [where in the files the rows are](sources.md#json)."""

    envelope: Literal["debezium", "maxwell"] | None = None
    """Formats json and kafka: each object is an event of this [change feed](change-feeds.md), which holds a row and what happened to it. The pipeline takes the kinds of the rows with `row_kind=DEBEZIUM` or `MAXWELL`. null: each object is a row."""

    envelope_table: str | None = None
    """With `envelope`: the table whose events are taken in, as `customers`, or with its schema or database before it, as `public.customers`; events of others are passed over. null: those of all tables, which a feed of Maxwell does not allow."""

    change_feed: bool = False
    """Format delta: read what each commit of the table inserted, updated and deleted, from its [change data feed](delta-tables.md#changes). false: read rows that are appended, and stop where others are changed."""

    on_change: Literal["fail", "skip_deletes", "skip", "as_changes"] = "fail"
    """Format delta: what a run does at a [commit that removes or rewrites rows](delta-tables.md#commits-that-change-rows). fail: it ends before the commit. skip_deletes: it passes over commits that only delete rows. skip: it passes over each such commit as a whole. as_changes: it takes in the rows that the commit removed and added on balance, as `-D` and `+I`."""

    start: Scalar | None = None
    """Formats delta and kafka: [where a job begins](delta-tables.md#where-to-begin) that has read nothing of the table or topic: `earliest`, `latest`, or a day or a timestamp; of a table also `snapshot` (all rows that are in it at the first run, then what comes) or a version such as `version 12`; null: earliest."""

    skip_versions: Scalar | None = None
    """Format delta: versions of the table that are [passed over](delta-tables.md#when-a-run-stops), whatever they changed, such as `17` or `3, 13-17`."""

    interval: str | IntervalOptions | None = None
    """[Pattern of the file's name](sources.md#intervals-in-file-names), with or without its ending, in directives of strptime, that gives the file's interval: `%Y-%m-%d` a day, `%Y-%m-%dT%H` an hour, `%G-W%V` a week, `%Y-%m` a month. With a `/` it is one of the path, and may have wildcards: `day=%Y-%m-%d/*`. Of a [Delta table](delta-tables.md#intervals) or a [topic](kafka.md#intervals), and in general, a mapping such as `{by: committed}` or `{by: column, column: ordered_at, lateness: 2d}`; null: none."""

    timezone: str | None = None
    """The time zone of the times in file names, or in the values of a column, as in Europe/Berlin; null: UTC. Needed where the schedule has another zone than UTC. Part of the job's meaning: keep it."""

    complete_intervals: bool = False
    """Whether a file, once it is there, [holds all rows of its interval](several-sources.md#complete-intervals): the watermark then moves to the interval's end behind its last row. Needs `interval`. Part of the job's meaning: keep it."""

    idle_after: Span | None = None
    """[After this time without new files](several-sources.md#a-source-that-falls-silent), sources that meet this one wait for it no longer; null: they wait for ever."""

    max_ahead: SpanOrNone | None = timedelta(days=1)
    """How far a row's event time may lie ahead of the processing time of its micro-batch: a row further ahead is [a bad row](sources.md#folders). `none`: any time, for sources of bookings and the like."""

    tables: dict[Name, Location] = msgspec.field(default_factory=dict)
    """Delta tables that [Spark's transform](spark-transforms.md#tables) over the source joins, by the names that the pipeline gives them: folders or URIs."""

    max_files_per_batch: Count = 16
    """Files that one micro-batch takes at most."""

    max_rows_per_batch: Count | None = None
    """Rows that one micro-batch takes at most, in whole files; null: no limit. Of a topic: offsets that one micro-batch reads at most, shared among its partitions; null: 100,000 of each."""

    ignore: tuple[str, ...] = ()
    """Names of files and folders, or their paths from the source's folder, that are neither read nor reported, as patterns such as `*.md`, `archive` or `2025/*`."""

    on_changed_file: Literal["warn", "fail"] = "warn"
    """What a run does if a file has changed, or is gone, since it was taken in, or if rows came to a table's interval that was taken in already. warn: it goes on, and its report names the file. fail: it ends before it takes anything in. A backfill takes the file in again."""

    on_bad_file: Literal["fail", "quarantine"] = "fail"
    """What happens to a file that cannot be read."""

    on_bad_row: Literal["quarantine", "fail"] = "quarantine"
    """What happens to a row that does not fit the record type."""

    max_quarantined: Scalar | None = None
    """Rows of one micro-batch that [may go to the quarantine](sources.md#folders): a number such as `100`, a share such as `5%`, or `none`: any. With more, the run fails. null: any, but no file as a whole, unless `on_bad_file` is `quarantine`."""

    @property
    def kind(self) -> SourceFormat:
        """Return the facts of the format."""
        return SOURCE_FORMATS[self.format]

    @property
    def file_options(self) -> FileOptions:
        """Return the format of the files of a folder."""
        return FileOptions(format=self.format, csv=self.csv, json=self.json, events=self.events)

    @property
    def intervals(self) -> IntervalOptions | None:
        """Return how the source tells the interval of its rows; None if it does not."""
        return IntervalOptions(pattern=self.interval) if isinstance(self.interval, str) else self.interval

    @property
    def pattern(self) -> IntervalPattern | None:
        """Return the pattern of file names, or of values of a column, in its time zone; None without one."""
        text = self.pattern_text
        return None if text is None else interval_pattern(text, self.timezone or "UTC")

    @property
    def pattern_text(self) -> str | None:
        """Return the text of the pattern; None without one."""
        return None if self.intervals is None else self.intervals.text

    @property
    def timed(self) -> str:
        """Return what the pattern reads times from, for messages."""
        own = self.intervals
        if own is None or own.column is None:
            return "file names"
        return f"the partitions by {own.column}" if own.by == "partition" else f"column {own.column}"

    @property
    def path_pattern(self) -> re.Pattern[str] | None:
        """Return the expression of the paths of files to read; None: endings decide."""
        return None if self.files is None else file_pattern(self.files)

    @property
    def gives_changes(self) -> bool:
        """Return whether the rows of a table have kinds, in the column `_change_type`."""
        return self.change_feed or self.on_change == "as_changes"

    @property
    def begins_at(self) -> Start:
        """Return the place where reading of a table begins."""
        return parse_start(self.start or "earliest")

    @property
    def quarantine_limit(self) -> QuarantineLimit | None:
        """Return the limit of the rows that may go to the quarantine; None: no file as a whole."""
        return None if self.max_quarantined is None else parse_quarantine_limit(self.max_quarantined)

    @property
    def skipped(self) -> tuple[range, ...]:
        """Return the versions of a table to skip."""
        return parse_versions(self.skip_versions) if self.skip_versions else ()

    def skips(self, version: int) -> bool:
        """Return whether a version of a table is skipped."""
        return any(version in skipped for skipped in self.skipped)

    @property
    def events(self) -> EventOptions | None:
        """Return the change feed that the source reads, if it reads one."""
        return None if self.envelope is None else EventOptions(feed=self.envelope, table=self.envelope_table)

    @property
    def message_keys(self) -> str:
        """Return how the keys of a topic's messages are written."""
        of_events = self.values if self.values != "json" and self.registry is not None else "text"
        return self.keys or ("text" if self.envelope is None else of_events)

    @property
    def skipped_offsets(self) -> dict[int, tuple[range, ...]]:
        """Return the offsets of a topic to skip, by partition."""
        return parse_offsets(self.skip_offsets) if self.skip_offsets else {}

    @property
    def place(self) -> str:
        """Return the place of the source, for messages."""
        return self.kind.place(self)

    def corrected_by(self, given: CorrectedInput) -> SourceConfig:
        """Return the settings with which corrected input is read in place of this source."""
        kind, plain = SOURCE_FORMATS[given.format or self.format], SourceConfig()
        lacks = {key: getattr(plain, key) for key in foreign_keys(kind, SOURCE_FORMATS.values())}
        fits = self.intervals is not None and self.kind.intervals_by == kind.intervals_by
        own = {
            "format": kind.name,
            "start": None,
            "skip_versions": None,
            "skip_offsets": None,
            "interval": given.interval or (self.interval if fits else "%Y-%m-%d" if kind.is_folder else None),
            "timezone": given.timezone or (self.timezone if fits or kind.is_folder else None),
        }
        place = (
            {"topic": given.topic, "servers": given.servers or self.servers}
            if kind.has_partitions
            else {"path": given.path}
        )
        return msgspec.structs.replace(self, **{**lacks, **own, **place})

    def shown(self) -> dict[str, Any]:
        """Return the settings for printing: values of a client's settings are hidden, since they may be secrets."""
        return without_settings(self)

    def __repr__(self) -> str:
        """Return a struct's text without the values of settings: configurations end up in tracebacks and logs."""
        return shown_repr(self, self.shown())


class SourceFormat:
    """Format of a source."""

    noun: ClassVar[str]
    """Such a source, for messages."""
    parts: ClassVar[str]
    """Its parts that are taken in one after the other, for messages."""
    row: ClassVar[str] = "row"
    """One row of it, for messages."""
    keys: ClassVar[tuple[str, ...]]
    """Keys that it has, and some other format lacks."""
    required: ClassVar[tuple[str, ...]] = ("path",)
    why_not: ClassVar[str]
    """Why it lacks keys of other formats."""
    places: ClassVar[tuple[str, ...]]
    """Parts of a row's place in arrival order, as people name them."""

    intervals_by: ClassVar[tuple[str, ...]]
    """What may tell the interval of its parts, so that jobs can run by interval, and have backfills."""
    is_folder: ClassVar[bool] = False
    """True: other people put its files there, and know them by name."""
    lands_files: ClassVar[bool] = False
    """True: its rows have no files of their own, and the job lands them. Where such files begin and end means nothing."""
    is_versioned: ClassVar[bool] = False
    """True: its rows have the times of the commits that added them."""
    has_partitions: ClassVar[bool] = False
    """True: it consists of parts whose rows have no order among each other."""
    own_order: ClassVar[str | None] = None
    """Why its rows cannot be sorted before they are taken in; None: they can."""
    only_on_spark: ClassVar[str | None] = None
    """What only Spark can do with it, and what to do instead; None: it is read without Spark."""

    def __init__(self, name: str) -> None:
        """Keep the name that the job's file has."""
        self.name = name

    def how_written(self, source: str) -> str:
        """Return a sentence on the keys that say how the files of a source are written; empty if there are none."""
        del source
        return ""

    def place(self, config: SourceConfig) -> str:
        """Return the place of the source, for messages."""
        return config.path

    def address(self, config: SourceConfig) -> str:
        """Return the path or URI of the source, as OpenLineage names data."""
        return config.path

    def reads(self, config: SourceConfig) -> str:
        """Return what a job reads of the source, as text."""
        raise NotImplementedError

    def problems(self, config: SourceConfig) -> Iterator[Problem]:  # noqa: ARG002 - for subclasses
        """Yield the problems with values of its keys."""
        yield from ()


class FolderFormat(SourceFormat):
    """Folder of files of one format."""

    noun = "folder of files"
    parts = "files"
    keys: ClassVar[tuple[str, ...]] = (
        "path",
        "files",
        "order",
        "interval",
        "timezone",
        "complete_intervals",
        "ignore",
        "on_changed_file",
    )
    why_not = "a folder has no versions"
    places = ("file", "row")
    intervals_by = ("name",)
    is_folder = True

    def reads(self, config: SourceConfig) -> str:
        """Return what a job reads of the source, as text."""
        order = "" if config.order == "name" else f", order: {config.order}"
        return f"{config.format} files in {config.path}{f' ({config.files})' if config.files else ''}{order}"

    def problems(self, config: SourceConfig) -> Iterator[Problem]:
        """Yield a pattern of paths that no file can have."""
        if config.files is not None:
            try:
                file_pattern(config.files)
            except ValueError as error:
                yield "files", f"'{config.files}' names no files: {error}"


class CsvFormat(FolderFormat):
    """Folder of CSV files."""

    keys = (*FolderFormat.keys, "csv")

    def how_written(self, source: str) -> str:
        """Return a sentence on the keys that say how the files of a source are written."""
        return f" 'sources.{source}.csv' says how files are written: delimiter, day_pattern, time_pattern, decimal and thousands."

    def problems(self, config: SourceConfig) -> Iterator[Problem]:
        """Yield options with which no file can be read."""
        yield from super().problems(config)
        yield from csv_problems(config.csv)


class JsonFormat(FolderFormat):
    """Folder of JSON files."""

    keys = (*FolderFormat.keys, "json", "envelope", "envelope_table")

    def problems(self, config: SourceConfig) -> Iterator[Problem]:
        """Yield a path of which no object can have members."""
        yield from super().problems(config)
        yield from _event_problems(config)
        path = config.json.rows
        if path is not None and not all(path.split(".")):
            yield (
                "json.rows",
                f"'{path}' is no path: expected a name such as features, or names with points between them",
            )


class TableFormat(SourceFormat):
    """Delta table: its appended rows, or its change data feed."""

    noun = "Delta table"
    parts = "versions"
    keys = (
        *("path", "start", "change_feed", "on_change", "skip_versions"),
        *("interval", "timezone", "on_changed_file"),
    )
    why_not = "a Delta table's log names its files, in the order of its versions"
    places = ("version", "file", "row")
    is_versioned = True
    intervals_by = ("committed", "partition", "column")

    def reads(self, config: SourceConfig) -> str:
        """Return what a job reads of the source, as text."""
        what = "changes of" if config.gives_changes else "rows appended to"
        skipped = f"; skip_versions: {config.skip_versions}" if config.skip_versions else ""
        policy = f"; on_change: {config.on_change}" if config.on_change != "fail" else ""
        by = "" if config.intervals is None else f"; interval by: {config.intervals.by}"
        return f"{what} the Delta table {config.path} (start: {config.start or 'earliest'}{by}{policy}{skipped})"

    def problems(self, config: SourceConfig) -> Iterator[Problem]:
        """Yield a policy for changes beside a change data feed, and intervals that its rows do not have."""
        yield from _table_interval_problems(config)
        if config.change_feed and config.on_change != "fail":
            yield "on_change", "change_feed: true takes in all changes: leave one of both out"


class TopicFormat(SourceFormat):
    """Topic of Apache Kafka."""

    noun = "topic"
    parts = "messages"
    row = "message"
    keys = (
        *("start", "servers", "topic", "options", "values", "keys", "registry", "schema"),
        *("on_tombstone", "skip_offsets", "envelope", "envelope_table", "interval"),
    )
    required = ("servers", "topic")
    why_not = "a topic is named by 'servers' and 'topic', and its messages have offsets"
    places = ("partition", "offset")
    intervals_by = ("committed",)
    lands_files = has_partitions = True
    own_order = "messages of a topic arrive in the order of their offsets"
    only_on_spark = "reads a topic of Kafka, which needs Spark: land it as files first, and read those"

    def place(self, config: SourceConfig) -> str:
        """Return the place of the source, for messages."""
        return topic_place(config.topic, config.servers)

    def address(self, config: SourceConfig) -> str:
        """Return the URI of the topic at its first broker."""
        return f"kafka://{(config.servers or '').partition(',')[0].strip()}/{config.topic}"

    def reads(self, config: SourceConfig) -> str:
        """Return what a job reads of the source, as text."""
        skipped = f"; skip_offsets: {config.skip_offsets}" if config.skip_offsets else ""
        values = "" if config.values == "json" else f"; values: {config.values}"
        by = "" if config.intervals is None else f"; interval by: {config.intervals.by}"
        return f"messages of {self.place(config)} (start: {config.start or 'earliest'}{by}{values}{skipped})"

    def problems(self, config: SourceConfig) -> Iterator[Problem]:
        """Yield a place to begin at that no topic has, and what is wrong with its name and the client's settings."""
        start = config.start or ""
        if start == StartKind.SNAPSHOT.value or start.startswith(f"{StartKind.VERSION.value} "):
            yield "start", "a topic has no versions: write earliest, latest, or a day or a timestamp"
        elif config.intervals is not None and start == StartKind.LATEST.value:
            yield "start", _NOT_LATEST
        yield from client_problems(config.topic, config.options, _CONSUMER_OPTIONS)
        yield from _event_problems(config)
        yield from _schema_problems(config)
        if config.registry is not None:
            yield from _registry_problems(config.registry)


_NOT_LATEST: Final = "'latest' leaves out rows of later intervals: the first interval says where a job begins, so write earliest, a time or a version"


def _table_interval_problems(config: SourceConfig) -> Iterator[Problem]:
    """Yield what keeps the rows of a table from having the intervals that the file asks for."""
    own = config.intervals
    if own is None or own.by == "name":
        return
    if config.begins_at.kind is StartKind.LATEST:
        yield "start", _NOT_LATEST
    if own.by in {"committed", "column"} and config.begins_at.kind is StartKind.SNAPSHOT:
        yield (
            "start",
            "a snapshot has the rows of many commits at once, without their times: write earliest, a time or a version",
        )
    if own.has_column and config.gives_changes:
        key = "change_feed" if config.change_feed else "on_change"
        yield (
            key,
            f"changes come in the order of versions, and 'by: {own.by}' takes appended rows: write interval: {{by: committed}}",
        )
    if own.by == "column":
        yield from _column_period_problems(config, own)
    if own.by == "committed" and config.timezone is not None:
        yield "timezone", "commit times are timestamps, in no zone: leave it out"


_MOST_PERIODS: Final = 1_000
"""Most periods for which rows of one commit can count: each may be a part of each of its files."""


def _column_period_problems(config: SourceConfig, own: IntervalOptions) -> Iterator[Problem]:
    """Yield periods that are too short to be told apart by the values of a column."""
    try:
        pattern = config.pattern
    except (ValueError, KeyError, OSError):
        return  # named elsewhere
    if pattern is not None and pattern.unit in {Unit.SECOND, Unit.MILLISECOND}:
        yield (
            "interval.pattern",
            f"a {pattern.unit.value} is too short: write periods of a minute or longer, such as %Y-%m-%dT%H",
        )
    elif pattern is not None and own.lateness is not None and own.lateness > pattern.unit.longest * _MOST_PERIODS:
        yield (
            "interval.lateness",
            f"it has more than {_MOST_PERIODS:,} periods of a {pattern.unit.value}: write longer ones (interval.pattern), or a shorter lateness",
        )
    if config.on_bad_file == "quarantine":
        yield (
            "on_bad_file",
            "the rows of a file that cannot be read have no interval by column: write fail, the default",
        )
    if pattern is not None and pattern.is_of_paths:
        yield "interval.pattern", "a pattern of a column's periods has no '/': write one such as %Y-%m-%d"


def _event_problems(config: SourceConfig) -> Iterator[Problem]:
    """Yield a table of no feed, and a feed of all tables without one: their rows would replace each other."""
    if config.envelope == "maxwell" and config.envelope_table is None:
        yield "envelope_table", "a feed of Maxwell has the events of all tables: name the one that this source reads"
    if config.envelope is None and config.envelope_table is not None:
        yield "envelope_table", "it names a table of a change feed, and 'envelope' says of which: give both, or neither"


_WITH_SCHEMA: Final = frozenset({"avro", "protobuf"})
"""Forms of values and keys that say nothing without their schema."""


def _schema_problems(config: SourceConfig) -> Iterator[Problem]:
    """Yield values and keys of messages that have no schema or two, or are none of a change feed."""
    registry = config.registry
    if config.values == "protobuf" and (registry is None or config.schema is not None):
        yield "values", "protobuf needs the 'registry' that has its schemas, and no 'schema'"
    elif config.values in _WITH_SCHEMA and (registry is None) == (config.schema is None):
        yield "values", f"{config.values} needs either the 'registry' that has its schemas, or a 'schema'"
    if config.values not in _WITH_SCHEMA and config.schema is not None:
        yield "schema", "JSON says itself what it holds: leave it out, or write values: avro"
    if config.message_keys in _WITH_SCHEMA and registry is None:
        yield (
            "keys",
            f"{config.message_keys} needs the 'registry' that has the schemas of keys; without one, write text or json",
        )
    if config.envelope is not None:
        yield from _event_payload_problems(config)


def _event_payload_problems(config: SourceConfig) -> Iterator[Problem]:
    """Yield values, keys and tombstones of messages that are none of a change feed."""
    if config.values == "protobuf":
        yield "values", "events of a change feed are read in JSON and in Avro: write one of them"
    if config.message_keys not in {"text", config.values}:
        yield (
            "keys",
            f"keys of the events of a change feed are written as their values: write {config.values}, or leave it out",
        )
    if config.on_tombstone == "delete":
        yield (
            "on_tombstone",
            "a change feed has a tombstone behind each deletion, which says nothing more: leave it out",
        )


def _is_address(url: str) -> bool:
    """Return whether a URL names a host, and a port if any, that may be asked."""
    try:
        parts = urlsplit(url)
        has_place = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        return False
    return has_place and parts.scheme in {"http", "https"} and url.isprintable() and " " not in url


def _registry_problems(registry: RegistryOptions) -> Iterator[Problem]:
    """Yield an address of no registry, and half of a login."""
    if not _is_address(registry.url):  # it may hold a password by mistake, so it is not repeated
        yield "registry.url", "this is no address: write it as https://HOST:PORT"
    elif urlsplit(registry.url).username is not None:
        yield "registry.url", "give user and password as 'user' and 'password', not in the address"
    if (registry.user is None) != (registry.password is None):
        yield "registry", "give both 'user' and 'password', or neither"


SOURCE_FORMATS: Final[Mapping[str, SourceFormat]] = {
    kind.name: kind
    for kind in (
        *map(FolderFormat, ("parquet", "avro")),
        JsonFormat("json"),
        CsvFormat("csv"),
        TableFormat("delta"),
        TopicFormat("kafka"),
    )
}


_CONSUMER_OPTIONS: Final = (
    *("kafka.bootstrap.servers", "kafka.group.id", "kafka.isolation.level", "kafka.auto.offset.reset"),
    *("kafka.enable.auto.commit", "kafka.key.deserializer", "kafka.value.deserializer"),
)
