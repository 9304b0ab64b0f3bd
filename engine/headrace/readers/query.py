"""Queries of the readers: DuckDB over Arrow streams, without access to anything else.

Quoting of column names that DuckDB reserves, such as `at` and `end`, in queries that it cannot parse without.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import StorageError
from headrace.storage.damage import blames_content, named_damage, plain, way_on
from headrace.storage.refusals import reason_of
from headrace.storage.table import ADVICE, TableMissingError, damaged
from headrace.tables.live_rows import MARK, null_refused

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Rows(msgspec.Struct, frozen=True):
    """Result of a query: column names, and rows in order."""

    columns: list[str]
    rows: list[tuple[Any, ...]]

    def dicts(self) -> list[dict[str, Any]]:
        """Return each row as a mapping by column name."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]


def connect() -> duckdb.DuckDBPyConnection:
    """Open a database in memory that can never access a file, the network or a Python variable."""
    import duckdb

    connection = duckdb.connect()
    for setting in (
        "autoinstall_known_extensions = false",
        "autoload_known_extensions = false",
        "python_enable_replacements = false",
        "TimeZone = 'UTC'",
        "enable_progress_bar = false",  # it would be printed to stdout, between the results
        "enable_external_access = false",
        "lock_configuration = true",
    ):
        connection.execute(f"SET {setting}")
    return connection


@contextmanager
def reading(uri: str, version: int | None, job: str) -> Iterator[None]:
    """Convert errors of reading a table to a `StorageError` that tells which checkpoints can be read."""
    try:
        yield
    except TableMissingError as error:
        msg = f"there is no table {uri} (yet)"
        raise StorageError(msg) from error
    except StorageError as error:
        if not error.doing:
            raise
        place = error.doing[-1].removeprefix("to read ")
        if place != uri and error.doing[-1] != place:  # the table of a branch builds on another one
            raise unreadable(f"{place}, on which {uri} builds,", None, reason_of(error), job) from error
        raise unreadable(uri, version, reason_of(error), job) from error


def copy(
    connection: duckdb.DuckDBPyConnection, target: str, stream: Any, *, table: str | None = None, only: str = ""
) -> None:
    """Fill a new table from an Arrow stream: a stream can be read only once, but a query may read a table several times.

    `only` is SQL after the stream's name, such as a join that leaves out rows. `table` is its name in errors. Raises
    `StorageError` when the stream breaks.
    """
    import duckdb

    connection.register("incoming", stream)
    try:
        connection.execute(f'CREATE TABLE "{target}" AS SELECT * FROM incoming {only}')  # noqa: S608 - our own names
    except duckdb.Error as error:
        raise unreadable(table or target, None, error) from error
    finally:
        connection.unregister("incoming")


def ask_once(stream: Any, query: str, parameters: Sequence[Any] = (), *, table: str = "of the job") -> Rows:
    """Run a query that names the stream once, as `raw`. Nothing is copied. `table` is the stream's name in errors.

    Raises `StorageError` when the stream breaks.
    """
    import duckdb

    connection = connect()
    connection.register("raw", stream)
    try:
        return ask(connection, query, parameters)
    except duckdb.Error as error:
        raise unreadable(table, None, error) from error


def ask(connection: duckdb.DuckDBPyConnection, query: str, parameters: Sequence[Any] = ()) -> Rows:
    """Run a query over the tables and views of a connection. Raises `duckdb.Error` when it fails."""
    relation = connection.sql(query, params=list(parameters))
    table = relation.to_arrow_table()
    return Rows(table.column_names, list(zip(*map(_values, table.columns), strict=True)))


def _values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column; a timestamp has the zone UTC if the column has one.

    Timestamps are converted via integers: pyarrow needs a microsecond for each, and pandas.
    """
    import pyarrow as pa

    from headrace.records.foreign_values import readable

    if pa.types.is_nested(column.type):
        return list(map(readable, column))
    if not pa.types.is_timestamp(column.type):
        return list(column.to_pylist())
    numbers = column.cast(pa.timestamp("us", column.type.tz), safe=False).cast(pa.int64()).to_pylist()
    epoch = _EPOCH.replace(tzinfo=None if column.type.tz is None else UTC)
    try:
        return [None if number is None else epoch + timedelta(microseconds=number) for number in numbers]
    except OverflowError:
        return [None if number is None else _nearest(number).replace(tzinfo=epoch.tzinfo) for number in numbers]


def _nearest(microseconds: int) -> datetime:
    """Return a timestamp, limited to the first and the last one of Python's `datetime`."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if microseconds > 0 else datetime.min.replace(tzinfo=UTC)


def timestamp(time: int) -> datetime | None:
    """Return milliseconds as a timestamp; None outside the years of Python's `datetime`."""
    try:
        return _EPOCH + timedelta(milliseconds=time)
    except OverflowError:
        return None


def milliseconds(timestamp: datetime) -> int:
    """Return a timestamp as milliseconds."""
    return (timestamp - _EPOCH) // timedelta(milliseconds=1)


def unreadable(table: str, version: int | None, error: BaseException, job: str | None = None) -> StorageError:
    """Return the error for a table that cannot be read; of a `job`, if the caller knows it."""
    fault = str(error).partition(MARK)[2].partition("\n")[0]
    if fault:
        return StorageError(f"table {fault}. {ADVICE}")
    if refused := null_refused(error):
        return damaged(table, refused)
    which = f"version {version} of {table}" if version is not None else table
    file = named_damage(error)
    if file is not None and file.expected is not None:
        kept = ", though the table's last version has it, so that no vacuum removes it" if file.size is None else ""
        return StorageError(f"{which} cannot be read: {file}{kept}. {way_on(file.uri)}")
    listed = "" if job is None else f": see 'headrace checkpoints {job}'"
    if file is None and blames_content(error):
        of_job = "" if job is None else f" {job}"
        return StorageError(
            f"{which} cannot be read: {plain(str(error))}.\nA file of the table is damaged: 'headrace verify{of_job} --full' names it. "
            f"Checkpoints without it, and savepoints, stay readable{listed}."
        )
    return StorageError(
        f"{which} cannot be read: {file or plain(str(error))}.\nIts files may have been vacuumed, or the storage is out of reach. "
        f"Checkpoints within the retention, and savepoints, stay readable{listed}."
    )


_TOKEN = re.compile(
    r"""'(?:[^']|'')*' | "(?:[^"]|"")*" | --[^\n]* | /\*.*?\*/ | \$(\w*)\$.*?\$\1\$ | (?P<word>[A-Za-z_]\w*)""",
    re.VERBOSE | re.DOTALL,
)
_MOST_PLACES = 10
"""Reserved names in a query that are tried in all combinations: about a thousand parses, within 0.1 s."""


def with_quoted_names(connection: duckdb.DuckDBPyConnection, query: str) -> str:
    """Return the query with double quotes around as few column names as necessary, only names that are reserved words.

    A query that DuckDB can parse is not changed, and neither is one that quotes do not help. The columns are those of the
    connection's tables and views.
    """
    if _is_readable(connection, query):
        return query
    places = _places(query, _reserved_columns(connection))
    return next((quoted for quoted in _quoted(query, places) if _is_readable(connection, quoted)), query)


def _is_readable(connection: duckdb.DuckDBPyConnection, query: str) -> bool:
    import duckdb

    try:
        connection.extract_statements(query)
    except duckdb.ParserException:
        return False
    return True


def _reserved_columns(connection: duckdb.DuckDBPyConnection) -> set[str]:
    query = """SELECT DISTINCT keyword_name FROM duckdb_keywords() JOIN duckdb_columns() ON keyword_name = lower(column_name)
               WHERE keyword_category <> 'unreserved'"""
    return {name for (name,) in connection.sql(query).fetchall()}


def _places(query: str, names: set[str]) -> list[tuple[int, int]]:
    """Return the places of the names in a query, except in quotes and comments."""
    words = (match for match in _TOKEN.finditer(query) if match["word"])
    return [match.span() for match in words if match["word"].lower() in names][:_MOST_PLACES]


def _quoted(query: str, places: list[tuple[int, int]]) -> Iterator[str]:
    """Yield the query with quotes at some of the places, fewest first."""
    for count in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, count):
            text = query
            for start, end in reversed(chosen):
                text = f'{text[:start]}"{text[start:end]}"{text[end:]}'
            yield text
