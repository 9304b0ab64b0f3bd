"""Compares the output of a query, row by row, with the same query in SQL: DuckDB over the same input files.

The SQL of a query is in `sql`. SQL ignores order, watermarks and micro-batches, so no event may be so late that a window drops it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

TABLES: Final = ("persons", "auctions", "bids", "side_input")
EXAMPLES: Final = 5
SQL: Final = Path(__file__).with_name("sql")


@dataclass(frozen=True)
class Differences:
    """The comparison of a query's rows with those of SQL, as multisets, with examples of different rows."""

    expected: int
    actual: int
    missing: list[Any]
    unexpected: list[Any]

    def __bool__(self) -> bool:
        """Tell whether there are any."""
        return bool(self.missing or self.unexpected)

    def __str__(self) -> str:
        """Describe the differences."""
        return (
            f"{self.actual} rows, {self.expected} expected; missing, for instance: {self.missing}; "
            f"unexpected, for instance: {self.unexpected}"
        )


def compare(query: str, rows: pa.Table, inputs: Path, taken_in: Mapping[str, int] | None = None) -> Differences:
    """Compare the `rows` of the sink of `query` with the result of SQL on the Parquet files in `inputs`.

    `inputs` has a folder for each source. `taken_in` maps the names of the files of bids to the processing time (ms) of the
    micro-batch that took them in; query 12 alone needs it.
    """
    return compare_sql((SQL / f"{query}.sql").read_text(encoding="utf-8"), rows, inputs, taken_in)


def compare_sql(sql: str, rows: pa.Table, inputs: Path, taken_in: Mapping[str, int] | None = None) -> Differences:
    """Compare `rows` with the result of `sql`, which finds the input in `persons`, `auctions`, `bids` and `side_input`; see `compare`.

    Raises `ValueError` if the columns have other names than those of the result.
    """
    with closing(duckdb.connect()) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        _make_inputs(connection, inputs, taken_in or {})
        connection.execute(f"CREATE TABLE expected AS {sql}")
        connection.register("sink", rows)
        columns = [name for name, *_ in connection.execute("DESCRIBE expected").fetchall()]
        if {*columns} != {*rows.column_names}:
            msg = f"the sink has the columns {sorted(rows.column_names)}, not {sorted(columns)}"
            raise ValueError(msg)
        shown = ", ".join(_without_zone(rows.schema.field(name)) for name in columns)
        connection.execute(f"CREATE TABLE actual AS SELECT {shown} FROM sink")  # noqa: S608 - names of columns, all ours
        return Differences(
            _count(connection, "expected"),
            _count(connection, "actual"),
            _examples(connection, "expected", "actual"),
            _examples(connection, "actual", "expected"),
        )


def _make_inputs(connection: duckdb.DuckDBPyConnection, inputs: Path, taken_in: Mapping[str, int]) -> None:
    for table in TABLES:
        files = sorted((inputs / table).glob("*.parquet"))
        if files:
            columns = (_without_zone(field) for field in pq.read_schema(files[0]))
            connection.execute(
                f"CREATE TABLE {table}_of_files AS SELECT {', '.join(columns)}, parse_filename(filename) AS file "  # noqa: S608
                "FROM read_parquet(?, filename = true)",
                [[str(file) for file in files]],
            )
            connection.execute(f"CREATE VIEW {table} AS SELECT * EXCLUDE file FROM {table}_of_files")  # noqa: S608
    connection.execute("CREATE TABLE taken_in (file VARCHAR, taken_at TIMESTAMP)")
    for file, time in taken_in.items():
        connection.execute("INSERT INTO taken_in VALUES (?, make_timestamp_ms(?))", [file, time])


def _without_zone(field: pa.Field[Any]) -> str:
    """Return SQL for a column; a timestamp becomes a timestamp without zone, in UTC."""
    return f'"{field.name}"::TIMESTAMP AS "{field.name}"' if pa.types.is_timestamp(field.type) else f'"{field.name}"'


def _count(connection: duckdb.DuckDBPyConnection, table: str) -> int:
    result = connection.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608 - as above
    return int(result[0]) if result else 0


def _examples(connection: duckdb.DuckDBPyConnection, table: str, other: str) -> list[Any]:
    """Return rows of `table` that `other` lacks; a duplicated row must be duplicated in both."""
    return connection.execute(
        f"FROM {table} EXCEPT ALL SELECT {_names(connection, table)} FROM {other} LIMIT {EXAMPLES}"  # noqa: S608 - as above
    ).fetchall()


def _names(connection: duckdb.DuckDBPyConnection, table: str) -> str:
    return ", ".join(f'"{name}"' for name, *_ in connection.execute(f"DESCRIBE {table}").fetchall())
