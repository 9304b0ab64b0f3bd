"""Sections of a job file that have files of their own: execution, operators, file formats.

The keys of `async-state` are exactly those of FLIP-425, so that Flink's documentation applies to them. Their defaults
are only in `AsyncStateOptions`.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import msgspec

from headrace.config._cluster import HIDDEN
from headrace.config._types import Count, Location, Section, Span, Whole, shown_repr
from headrace.config._values import shown_url
from headrace.options import AsyncStateOptions, EventOrder, KeyOrder, MaterializerOptions, Strategy


class AsyncStateConfig(Section, frozen=True, kw_only=True, rename="kebab"):
    """How the tasks of keyed processes overlap the state accesses of different keys. No key changes results.

    Keys and defaults are those of [FLIP-425](https://cwiki.apache.org/confluence/display/FLINK/FLIP-425%3A+Asynchronous+Execution+Model);
    `event-order.watermark` is one key with a dot in it. Null or left out: the job's value; without one, the default.
    `headrace explain --json` shows what each operator gets; `headrace run --sync` or `--async` overrules `enabled` for one run.
    """

    enabled: bool | None = None
    """Whether accesses may overlap; if not, each is answered before the next one. Default: true."""

    in_flight_records_limit: Count | None = None
    """Records (and timers) of a task that may be started or waiting at once. Default: 6000."""

    buffer_size: Count | None = None
    """Requests that make a batch. More than `in-flight-records-limit` are seldom waiting, so more is no use. Default: 1000."""

    buffer_timeout: Span | None = None
    """How long a request waits for its batch to fill. 0 starts each batch at once (in Flink, 0 switches the timeout off). Default: 1s."""

    order_with_same_key: KeyOrder | None = None
    """record-ordered: a record starts when the one before it, of the same key, has finished. state-ordered, for internal use: it starts at once, and waits at its first access. Default: record-ordered."""

    event_order_watermark: EventOrder | None = msgspec.field(default=None, name="event-order.watermark")
    """out-of-order: records after a watermark may start before it is done. strictly-ordered: they wait. Default: out-of-order."""

    io_parallelism: Count | None = None
    """Batches in execution at once, each in a thread of its own. Default: 2."""

    cache_entries: Count | None = None
    """Decoded values that a task holds at most, beside those that it has changed. Default: 1000000."""

    def over(self, options: AsyncStateOptions) -> AsyncStateOptions:
        """Return `options`, overridden by the values that are set here."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(options, **{name: value for name, value in given.items() if value is not None})


class UpsertMaterializeConfig(Section, frozen=True, kw_only=True, rename="kebab"):
    """Layout of the histories of [upsert materializers](materializer.md#strategies) (FLIP-544). No key changes results, and every change keeps the history.

    Null or left out: the job's value; without one, the pipeline's strategy and the default thresholds.
    """

    strategy: Strategy | None = None
    """In place of what the pipeline says. Default: the pipeline's."""

    threshold_high: Count | None = msgspec.field(default=None, name="adaptive.threshold.high")
    """adaptive: rows of a key from which on its list becomes a map. Default: 50 on rocksdb, else 400."""

    threshold_low: Whole | None = msgspec.field(default=None, name="adaptive.threshold.low")
    """adaptive: rows of a key down to which its map becomes a list again; below high. Default: 40 on rocksdb, else 300."""

    def over(self, options: MaterializerOptions) -> MaterializerOptions:
        """Return `options`, overridden by the values that are set here."""
        given = {name: getattr(self, name) for name in self.__struct_fields__}
        return replace(options, **{name: value for name, value in given.items() if value is not None})


class ExecutionConfig(Section, frozen=True, kw_only=True, rename="kebab"):
    """Execution of keyed operators, for all of them or, under `operators`, for one."""

    async_state: AsyncStateConfig = AsyncStateConfig()
    """How tasks of keyed processes overlap state access."""

    upsert_materialize: UpsertMaterializeConfig = UpsertMaterializeConfig()
    """How histories of upsert materializers are laid out."""


class OperatorConfig(Section, frozen=True, kw_only=True):
    """Overrides for one keyed process (`.process("name", ...)`) or one materializer, key by key.

    Materializers are `.upsert_materialize("name", ...)`, `first_value`, `last_value`, `deduplicate` and `lag`. A name that is neither in the pipeline is an error.
    """

    execution: ExecutionConfig = ExecutionConfig()
    """Of a keyed process, `async-state`; of a materializer, `upsert-materialize`. What is null or left out, the job's `execution` decides, and then the default."""


class IntervalOptions(Section, frozen=True, kw_only=True):
    """Way in which a source tells the interval of its rows."""

    by: Literal["name", "committed", "partition", "column"] = "name"
    """name: the names of files in a folder. committed: the commit times of a Delta table's versions, or the times of a topic's messages. partition: the values of a partition column of a Delta table. column: the values of a DATE or TIMESTAMP column of a Delta table. Part of the job's meaning: keep it."""

    pattern: str | None = None
    """by name: the pattern of the names. by partition: the pattern of the values, in the same directives; null: `%Y-%m-%d`, a day. by column: its finest directive is the length of the periods, down to the minute; null: a day."""

    column: str | None = None
    """by partition: the partition column. by column: the column."""

    lateness: Span | None = None
    """by column: how long after the end of its period a row may be committed and still count for that period, such as `2d`; a later one counts for the period that ended this long before its commit. Part of the job's meaning: keep it."""

    idle_after: Span = timedelta(minutes=1)
    """by committed, of a topic: a partition without a message of the interval's end or later keeps the interval open, until this time after the end; then it is idle, and [all of its messages](kafka.md#intervals) belong to the interval."""

    @property
    def text(self) -> str | None:
        """Return the pattern of names or of values; None where nothing but commit times gives an interval."""
        return "%Y-%m-%d" if self.has_column and self.pattern is None else self.pattern

    @property
    def has_column(self) -> bool:
        """Return whether a column gives the intervals."""
        return self.by in {"partition", "column"}


class CorrectedInput(Section, frozen=True, kw_only=True):
    """Input that a backfill reads in the requested intervals in place of a source. Other keys are those of the source, as far as the format has them."""

    format: Literal["parquet", "json", "csv", "avro", "delta", "kafka"] | None = None
    """Its format; null: that of the source."""

    path: Location = ""
    """Folder of the files, or folder or URI of the Delta table."""

    topic: str | None = None
    """Format kafka: the topic's name."""

    servers: str | None = None
    """Format kafka: brokers to ask first; null: those of the source."""

    interval: str | IntervalOptions | None = None
    """By what its rows have intervals; null: by what those of the source have, where the format has such intervals, and else `%Y-%m-%d` for files."""

    timezone: str | None = None
    """The time zone of the times in file names or in a column; null: that of the source."""


class CsvOptions(Section, frozen=True, kw_only=True):
    """Format of CSV files."""

    delimiter: str = ","
    """The character between two fields; `"\\t"` is a tab."""

    quote: str | None = '"'
    """The character around fields that hold the delimiter or line breaks. null: none, each character belongs to its field."""

    header: bool = True
    """true: the first row names the columns. false: `columns` names them, or they are the fields of the record in their order, then the column of the row kind if the source has one."""

    columns: tuple[str, ...] = ()
    """The names of all columns of files without a header, in their order. Needs `header: false`."""

    skip_lines: Whole = 0
    """Lines at the beginning of each file, before the header or the first row, that are passed over."""

    comment: str | None = None
    """The character that begins lines that are passed over, such as `"#"`. null: there are none."""

    null_values: tuple[str, ...] = ("",)
    """Texts that mean null, where they are not in quotes."""

    true_values: tuple[str, ...] = ("true",)
    """Texts that mean true, in any case."""

    false_values: tuple[str, ...] = ("false",)
    """Texts that mean false, in any case."""

    decimal: Literal[".", ","] = "."
    """The character before the decimals of a number."""

    thousands: str | None = None
    """The character between groups of three digits, such as `"."` in 1.028,20. A number without any is read as well; a number with other groups is a bad value. null: nothing stands between digits."""

    day_pattern: str | None = None
    """How days are written, in [directives of strptime](sources.md#csv), such as `"%d.%m.%Y"`. null: 2026-01-31."""

    time_pattern: str | None = None
    """How timestamps are written, in directives of strptime, such as `"%d.%m.%Y %H:%M"`; without `%z` they are in UTC. null: ISO 8601, or a number of milliseconds."""

    escape: str | None = None
    """The character that, in a field in quotes, takes whatever follows it as it is: `"\\\\"` for files that write a quote as `\\"`. null: none."""

    encoding: Literal["utf-8", "utf-16", "utf-16-le", "utf-16-be", "iso-8859-1", "iso-8859-15", "windows-1252"] = (
        "utf-8"
    )
    """How the text is encoded. utf-16: each file begins with a byte order mark."""

    @property
    def writes_truth(self) -> bool:
        """Return whether truth values are written in another way than as true and false."""
        return (self.true_values, self.false_values) != (("true",), ("false",))


class JsonOptions(Section, frozen=True, kw_only=True):
    """Format of JSON files."""

    rows: str | None = None
    """The array within each object of a file whose elements are the rows: a name such as `features`, or a path such as `data.items`. null: each object is a row."""


class EventOptions(Section, frozen=True, kw_only=True):
    """Change feed whose events the rows are, and the table that is read of it."""

    feed: Literal["debezium", "maxwell"]
    table: str | None = None


class RegistryOptions(Section, frozen=True, kw_only=True):
    """Schema registry of a topic, as of Confluent."""

    url: str
    """The address, such as `https://registry:8081`."""

    user: str | None = None
    """The user, or the key of an API. null: the registry asks for none."""

    password: str | None = None
    """Their password, or secret: `"${NAME}"`."""

    ca: Location | None = None
    """File with the certificates (PEM) of the authorities that the registry's certificate may come from. null: those that the machine trusts."""

    def shown(self) -> dict[str, Any]:
        """Return the settings for printing, without user and password."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        hidden = {name: HIDDEN for name in ("user", "password") if plain[name] is not None}
        return plain | hidden | {"url": shown_url(self.url)}

    def __repr__(self) -> str:
        """Return a struct's text without user and password: configurations end up in tracebacks and logs."""
        return shown_repr(self, self.shown())


class FileOptions(Section, frozen=True, kw_only=True):
    """Format of a source's files."""

    format: str = "parquet"
    csv: CsvOptions = CsvOptions()
    json: JsonOptions = JsonOptions()
    events: EventOptions | None = None
