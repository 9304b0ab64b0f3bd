"""Compares a table that a job has written with the table that SQL expects, row by row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import duckdb

EXAMPLES: Final = 10


@dataclass(frozen=True)
class Difference:
    """One wrong row; `columns` has the expected and the actual value if both tables have the row."""

    key: str
    columns: dict[str, tuple[object, object]]

    def __str__(self) -> str:
        values = (f"{name} must be {must!r}, is {actual!r}" for name, (must, actual) in self.columns.items())
        return "; ".join((self.key, *values))


@dataclass(frozen=True)
class TableDifferences:
    """How a table compares with the expected one: counts, and up to ten examples of each kind."""

    expected: int
    actual: int
    missing: int
    unexpected: int
    different: int
    by_column: dict[str, int]
    missing_examples: tuple[Difference, ...]
    unexpected_examples: tuple[Difference, ...]
    different_examples: tuple[Difference, ...]

    @property
    def total(self) -> int:
        """The number of wrong rows; 0 means equal."""
        return self.missing + self.unexpected + self.different

    def lines(self, name: str) -> Iterator[str]:
        """Yield a report of a few lines."""
        verdict = "as expected" if self.total == 0 else f"{self.total:,} differences"
        yield f"{name}: {self.actual:,} rows of {self.expected:,} expected, {verdict}"
        for kind, count, examples in (
            ("missing", self.missing, self.missing_examples),
            ("unexpected", self.unexpected, self.unexpected_examples),
            ("different", self.different, self.different_examples),
        ):
            if count:
                yield f"  {kind}: {count:,}"
                yield from (f"    {example}" for example in examples)
        if self.by_column:
            yield "  by column: " + ", ".join(f"{column} {count:,}" for column, count in self.by_column.items())


def compare_tables(
    database: duckdb.DuckDBPyConnection, expected: str, key: Sequence[str], actual: pa.Table
) -> TableDifferences:
    """Compare `actual` with the table `expected` of `database`; the columns `key` identify the rows.

    Timestamps may be of any unit, or integers (ms). Columns that are not expected are ignored; a row there twice counts as
    unexpected once.

    Raises:
        ValueError: `actual` lacks a column.
    """
    columns = [row[0] for row in database.execute(f"DESCRIBE {expected}").fetchall()]
    database.register("given", plain_columns(actual, columns))
    # Equal keys are numbered, so a duplicated row has no expected partner.
    numbered = f"*, row_number() OVER (PARTITION BY {', '.join(key)}) AS number"
    others = [name for name in columns if name not in key]
    same = " AND ".join(f"must.{name} = found.{name}" for name in key)
    shown = " || ' ' || ".join(f"coalesce(must.{name}, found.{name})" for name in key)
    changed = " OR ".join(f"must.{name} IS DISTINCT FROM found.{name}" for name in others)
    database.execute(
        # The names are those of our SQL files, not a caller's.
        f"CREATE OR REPLACE TEMP TABLE pairs AS SELECT must, found, {shown} AS key, "  # noqa: S608
        f"CASE WHEN found.{key[0]} IS NULL THEN 'missing' WHEN must.{key[0]} IS NULL THEN 'unexpected' "
        f"WHEN {changed} THEN 'different' ELSE 'equal' END AS outcome "
        f"FROM (SELECT {numbered} FROM {expected}) AS must FULL JOIN (SELECT {numbered} FROM given) AS found "
        f"ON {same} AND must.number = found.number"
    )
    database.unregister("given")
    return _summary(database, others)


def _summary(database: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> TableDifferences:
    outcomes: dict[str, int] = dict(database.execute("SELECT outcome, count(*) FROM pairs GROUP BY outcome").fetchall())
    equal, missing, unexpected, different = (
        outcomes.get(name, 0) for name in ("equal", "missing", "unexpected", "different")
    )
    return TableDifferences(
        expected=equal + missing + different,
        actual=equal + unexpected + different,
        missing=missing,
        unexpected=unexpected,
        different=different,
        by_column=_by_column(database, columns),
        missing_examples=_examples(database, "missing"),
        unexpected_examples=_examples(database, "unexpected"),
        different_examples=_examples(database, "different"),
    )


def _by_column(database: duckdb.DuckDBPyConnection, columns: Sequence[str]) -> dict[str, int]:
    counts = ", ".join(f"count(*) FILTER (must.{name} IS DISTINCT FROM found.{name})" for name in columns)
    row = database.execute(f"SELECT {counts} FROM pairs WHERE outcome = 'different'").fetchall()[0]  # noqa: S608
    return {name: count for name, count in zip(columns, row, strict=True) if count}


def _examples(database: duckdb.DuckDBPyConnection, outcome: str) -> tuple[Difference, ...]:
    rows: list[tuple[str, dict[str, Any] | None, dict[str, Any] | None]] = database.execute(
        f"SELECT key, must, found FROM pairs WHERE outcome = $1 ORDER BY key LIMIT {EXAMPLES}",  # noqa: S608
        [outcome],
    ).fetchall()
    if outcome != "different":
        return tuple(Difference(key, {}) for key, _, _ in rows)
    return tuple(Difference(key, _changed(must or {}, actual or {})) for key, must, actual in rows)


def _changed(must: dict[str, Any], actual: dict[str, Any]) -> dict[str, tuple[object, object]]:
    return {name: (value, actual[name]) for name, value in must.items() if name in actual and value != actual[name]}


def plain_columns(actual: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return these columns of a table, in this order, with instants as milliseconds since the epoch.

    Raises:
        ValueError: the table lacks a column.
    """
    lacking = [name for name in columns if name not in actual.column_names]
    if lacking:
        raise ValueError(f"the table has no column {', '.join(lacking)}; it has {', '.join(actual.column_names)}")
    table = actual.select(columns)
    for index, field in enumerate(table.schema):
        # As numbers, instants need neither a session time zone nor DuckDB's extension for zones.
        if pa.types.is_timestamp(field.type):
            in_ms = table.column(index).cast(pa.timestamp("ms", tz=field.type.tz)).cast(pa.int64())
            table = table.set_column(index, field.name, in_ms)
    return table


def read_table(path: str) -> pa.Table:
    """All rows of a Delta table, as of its last commit."""
    # Delta is needed only for the command line; tables in memory are compared without it.
    from deltalake import DeltaTable

    return pa.RecordBatchReader.from_stream(DeltaTable(path).scan()).read_all()
