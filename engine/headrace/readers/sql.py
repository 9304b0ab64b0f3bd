"""SQL over a job's tables: views for `headrace sql`, and views as text for other engines.

Each view has what `JobAtCheckpoint` shows: the last row of each entry, without deleted entries and without entries that have
expired at the checkpoint. The text names versions and times of that checkpoint, so it stays true when the job goes on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.readers.difference import sink_version
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import Rows, ask, connect, copy, reading, unreadable, with_quoted_names
from headrace.sources.interval import timestamp_text
from headrace.storage.overlay import OverlaySnapshot, resolved
from headrace.storage.predicate import Conditions, NoneOf, literal
from headrace.storage.table import Snapshot
from headrace.tables.expiry import NEVER_DEAD
from headrace.tables.live_rows import MARK
from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS, KEYED_STATE, STATE_TABLES, StateTable, tables_in

if TYPE_CHECKING:
    import duckdb


CHANGELOG = "_changelog"
"""Suffix of the views with all changes, such as `keyed_state_changelog`."""

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def ask_sql(job: JobAtCheckpoint, query: str, conditions: Conditions = ()) -> Rows:
    """Run one query over the views that it names.

    There is a view of each state table with its live entries, one with all its changes (suffix `_changelog`), `checkpoints`,
    and a view of each sink. State tables have only the rows that meet the conditions. The query can access nothing else: no
    files, no network. Column names that DuckDB reserves (`at`, `end`) need no quotes. Raises `ConfigError` with DuckDB's message
    when the query fails, and for more than one query.
    """
    import duckdb

    connection = connect()
    _register(connection, job, {word.lower() for word in _WORD.findall(query)}, conditions)
    query = with_quoted_names(connection, query)
    try:
        if len(connection.extract_statements(query)) != 1:
            msg = "give one query at a time, without a second one after ';'"
            raise ConfigError(msg)
        return ask(connection, query)
    except duckdb.Error as error:
        if MARK in str(error):
            raise unreadable("the table", None, error) from error
        msg = f"the query failed: {error}\nViews: {', '.join(views(job))}"
        raise ConfigError(msg) from error


def views(job: JobAtCheckpoint) -> list[str]:
    """Return the names of the views that a query can use."""
    tables = _tables(job)
    changelogs = [f"{name}{CHANGELOG}" for name in tables]
    return [*tables, *changelogs, CHECKPOINTS, *job.config.sinks]


def _tables(job: JobAtCheckpoint) -> list[str]:
    """Return the state tables of the job. A table that an old checkpoint does not record is empty."""
    return tables_in(STATE_TABLES.keys() | job.checkpoint.versions.keys())


def _register(
    connection: duckdb.DuckDBPyConnection, job: JobAtCheckpoint, words: set[str], conditions: Conditions
) -> None:
    tables = _tables(job)
    for name in tables:
        raw = f"{name}{CHANGELOG}"
        if words & {name, raw}:
            copy(connection, raw, job.changes(name, conditions))
        if name in words:
            connection.execute(f"CREATE VIEW {name} AS {job.live_sql(name, raw)}")
    if CHECKPOINTS in words:
        uri = f"{job.config.job_folder}/{CHECKPOINTS}"
        with reading(uri, None, job.config.job):
            stream = job.snapshot(uri, None).stream(conditions=[NoneOf("kind", (Kind.LEASE.value,))])
        copy(connection, CHECKPOINTS, stream)
    for name in job.config.sinks.keys() & words - {*tables}:
        uri = job.config.sinks[name].table_path
        version = sink_version(job, uri)
        with reading(uri, version, job.config.job):
            stream = job.snapshot(uri, version).stream()
        copy(connection, name, stream)


_TIMES: Final = ("last_access", "expires_at")
"""Columns of keyed_state that the condition for expired entries reads, as milliseconds."""


class LiveView(NamedTuple):
    """View of a state table: the table, the snapshots that have its changes, and SQL for expired rows.

    A branch's table has two snapshots: its own rows and its base's. `dead` expects a function of the dialect that converts a
    column of times to milliseconds.
    """

    table: StateTable
    snapshots: tuple[Snapshot, ...]
    dead: Callable[[Callable[[str], str]], str]


class Dialect(Protocol):
    """Writer of views for one engine."""

    comment: str
    """Beginning of a line that the engine passes over."""
    preamble: str
    """Text before the first view."""

    def view(self, view: LiveView) -> str:
        """Return the text that defines a view, named as its table."""
        ...


def live_views(job: JobAtCheckpoint, dialect: Dialect, names: Sequence[str] = ()) -> str:
    """Return the text that defines a view of each state table, or of those in `names`.

    Raises `StorageError` when the log of a table cannot be read.
    """
    checkpoint = job.checkpoint
    clock = (
        "its watermark is null"
        if checkpoint.watermark is None
        else f"its watermark is {timestamp_text(checkpoint.watermark)}"
    )
    head = (
        f"{dialect.comment} Live entries of job {job.config.job} at checkpoint {checkpoint.checkpoint_id}; {clock}. Print it again "
        "for later checkpoints."
    )
    return "\n".join([head, dialect.preamble, *map(dialect.view, _views(job, names))])


def table_names(job: JobAtCheckpoint) -> list[str]:
    """Return the state tables of the job, each of which may have a view."""
    return tables_in(STATE_TABLES.keys() | job.checkpoint.versions.keys())


def _views(job: JobAtCheckpoint, names: Sequence[str]) -> Iterator[LiveView]:
    for name in names or table_names(job):
        uri, version = f"{job.config.job_folder}/{name}", job.checkpoint.versions.get(name)
        if version is None:
            snapshots: tuple[Snapshot, ...] = ()
        else:
            with reading(uri, version, job.config.job):
                snapshots = tuple(_parts(job.snapshot(uri, version)))
        hides = name == KEYED_STATE and not job.with_expired
        yield LiveView(ALL_TABLES[name], snapshots, job.ttl.dead_sql if hides else _never)


def _never(_milliseconds: Callable[[str], str]) -> str:
    return NEVER_DEAD


def _parts(snapshot: Snapshot) -> Iterator[Snapshot]:
    """Yield the snapshots whose rows together are those of a table, without overlays."""
    if isinstance(snapshot, OverlaySnapshot):
        yield from _parts(snapshot.base)
        yield from _parts(snapshot.own)
    else:
        yield snapshot


class DuckDb:
    """SQL for DuckDB, which names the Parquet files of the version: it needs no extension for Delta."""

    comment = "--"
    preamble = ""

    def view(self, view: LiveView) -> str:
        """Return a statement that makes a view; see `Dialect.view`."""
        typed = ", ".join(
            f'CAST(NULL AS {_DUCKDB_TYPES[column.type]}) AS "{column.name}"' for column in view.table.schema
        )
        # The typed row without values gives columns to a version without files, and to files of older formats.
        parts = [f"SELECT {typed} WHERE false", *map(self._part, filter(_has_files, view.snapshots))]
        return _sql_view("CREATE OR REPLACE VIEW", view, "\n      UNION ALL BY NAME ".join(parts), '"', "epoch_ms({})")

    def _part(self, snapshot: Snapshot) -> str:
        files = sorted(resolved(f"{snapshot.uri}/{file}") for file in snapshot.files())
        listed = ",\n        ".join(map(literal, files))
        return f"SELECT * FROM read_parquet([\n        {listed}], union_by_name = true)"  # noqa: S608 - our own files


class Spark:
    """SQL for Spark with Delta Lake: temporary views over versions of tables."""

    comment = "--"
    preamble = ""

    def view(self, view: LiveView) -> str:
        """Return a statement that makes a view; see `Dialect.view`."""
        names = [column.name for column in view.table.schema]
        typed = ", ".join(
            f"CAST(NULL AS {_SPARK_TYPES[column.type]}) AS `{column.name}`" for column in view.table.schema
        )
        parts = [f"SELECT {typed} WHERE false"]
        for snapshot in view.snapshots:
            columns = ", ".join(f"`{name}`" if name in snapshot.schema.names else "NULL" for name in names)
            parts.append(f"SELECT {columns} FROM delta.`{snapshot.uri}` VERSION AS OF {snapshot.version}")  # noqa: S608 - our own names
        return _sql_view(
            "CREATE OR REPLACE TEMPORARY VIEW", view, "\n      UNION ALL ".join(parts), "`", "unix_millis({})"
        )


class Polars:
    """Python for Polars: a lazy frame for each view, and a `SQLContext` that knows all of them."""

    comment = "#"
    preamble = '''
import polars as pl


def live(entry, dead, *changes):
    """Return the last row of each entry, unless it is deleted or expired."""
    rows = pl.concat(changes, how="diagonal_relaxed").sort("checkpoint_id").unique(entry, keep="last", maintain_order=True)
    return rows.filter(~pl.col("deleted"), ~pl.sql_expr(dead).fill_null(False)).drop("deleted", "^_.*_ms$")


views = pl.SQLContext()
'''

    def view(self, view: LiveView) -> str:
        """Return an assignment; see `Dialect.view`."""
        name = view.table.name
        schema = ", ".join(f'"{column.name}": {_POLARS_TYPES[column.type]}' for column in view.table.schema)
        changes = [f"pl.LazyFrame(schema={{{schema}}})"]
        changes += [f"pl.scan_delta({snapshot.uri!r}, version={snapshot.version})" for snapshot in view.snapshots]
        dead = view.dead("_{}_ms".format)
        if dead != NEVER_DEAD:
            times = ", ".join(f'pl.col("{time}").dt.epoch("ms").alias("_{time}_ms")' for time in _TIMES)
            changes = [f"{change}.with_columns({times})" for change in changes]
        listed = "".join(f"\n    {change}," for change in changes)
        return (
            f"{name} = live(\n    {[*view.table.entry]},\n    {dead!r},{listed}\n)\nviews.register({name!r}, {name})\n"
        )


DIALECTS: Final[dict[str, Dialect]] = {"duckdb": DuckDb(), "polars": Polars(), "spark": Spark()}
"""Dialects by the names of their engines."""

_DUCKDB_TYPES: Final = {
    pa.string(): "VARCHAR",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.bool_(): "BOOLEAN",
    pa.timestamp("us", tz="UTC"): "TIMESTAMPTZ",
}
_SPARK_TYPES: Final = _DUCKDB_TYPES | {pa.string(): "STRING", pa.timestamp("us", tz="UTC"): "TIMESTAMP"}
_POLARS_TYPES: Final = {
    pa.string(): "pl.String",
    pa.int32(): "pl.Int32",
    pa.int64(): "pl.Int64",
    pa.bool_(): "pl.Boolean",
    pa.timestamp("us", tz="UTC"): 'pl.Datetime("us", "UTC")',
}


def _has_files(snapshot: Snapshot) -> bool:
    return bool(snapshot.files())


def _sql_view(create: str, view: LiveView, changes: str, quote: str, milliseconds: str) -> str:
    """Return a statement that makes a view over a query for changes; `quote` and `milliseconds` are the dialect's."""

    def quoted(name: str) -> str:
        return f"{quote}{name}{quote}"

    entry = ", ".join(map(quoted, view.table.entry))
    columns = ", ".join(quoted(column.name) for column in view.table.schema if column.name != "deleted")
    dead = view.dead(milliseconds.format)
    return (
        f"{create} {view.table.name} AS\n"  # noqa: S608 - our own names
        f"  SELECT {columns}\n"
        f"  FROM (\n    SELECT *, row_number() OVER (PARTITION BY {entry} ORDER BY checkpoint_id DESC) AS _place\n"
        f"    FROM (\n      {changes}\n    ) AS changes\n  ) AS last_changes\n"
        f"  WHERE _place = 1 AND NOT deleted AND NOT coalesce({dead}, false);\n"
    )
