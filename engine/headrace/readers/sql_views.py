"""`headrace sql`: a query over views of the state tables, the checkpoints and the sinks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from headrace.commit.checkpoint import Kind
from headrace.errors import ConfigError
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import Rows, ask, connect, copy, reading, unreadable
from headrace.readers.reserved_words import with_quoted_names
from headrace.readers.sink_versions import sink_version
from headrace.tables.predicate import Conditions, NoneOf
from headrace.tables.schemas import CHECKPOINTS, STATE_TABLES, tables_in
from headrace.tables.stored_rows import MARK

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
        with reading(uri, None):
            stream = job.snapshot(uri, None).stream(conditions=[NoneOf("kind", (Kind.LEASE.value,))])
        copy(connection, CHECKPOINTS, stream)
    for name in job.config.sinks.keys() & words - {*tables}:
        uri = job.config.sinks[name].table_path
        version = sink_version(job, uri)
        with reading(uri, version):
            stream = job.snapshot(uri, version).stream()
        copy(connection, name, stream)
