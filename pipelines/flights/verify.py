"""Recomputes the board and the alerts from the raw tables with DuckDB, and compares them with what the job wrote.

    python -m pipelines.flights.verify --board PATH --alerts PATH --departures PATH --watermark MS [--from DAY] [--to DAY] [--through DAY]

Nothing is shared with the code that emits the events or runs the job: `verify.sql` states the rules again, as sets.
"""

from __future__ import annotations

import argparse
import zipfile
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import duckdb
import pyarrow as pa

from pipelines.flights.raw_data import data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES: Final = 10
KEYS: Final = {
    "expected_board": ("flight_id",),
    "expected_alerts": ("flight_id",),
    "expected_departures": ("origin", "hour"),
}
"""What must be there, and what tells its rows apart."""


@dataclass(frozen=True)
class Difference:
    """One row that isn't as it must be; `columns` has the expected and the actual value where both have the row."""

    key: str
    columns: dict[str, tuple[object, object]]

    def __str__(self) -> str:
        values = (f"{name} must be {must!r}, is {found!r}" for name, (must, found) in self.columns.items())
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
        """The number of rows that aren't as they must be; 0 means equal."""
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


@dataclass(frozen=True)
class Differences:
    """What `verify` found."""

    board: TableDifferences
    alerts: TableDifferences
    departures: TableDifferences

    @property
    def total(self) -> int:
        """The number of rows that aren't as they must be; 0 means that the job is right."""
        return self.board.total + self.alerts.total + self.departures.total

    def __str__(self) -> str:
        return "\n".join(
            (*self.board.lines("board"), *self.alerts.lines("alerts"), *self.departures.lines("departures"))
        )


def verify(
    board: pa.Table,
    alerts: pa.Table,
    departures: pa.Table,
    days: tuple[date, date],
    watermark: int | None,
    *,
    through: date | None = None,
    raw: Path | None = None,
) -> Differences:
    """Compare what the job wrote with what it must have written for the flights of `days`, first and last.

    `watermark` is the job's last one (ms), None if it has none. `through` is the last day whose file the job has
    read; without it the job has read them all. Timestamps may be of any unit, or integers (ms). Columns that
    are not expected are ignored; a row there twice counts as unexpected once.

    Raises:
        ValueError: a table lacks a column.
    """
    with closing(duckdb.connect()) as database:
        before = None if through is None else through + timedelta(days=1)
        _expect(database, raw or data_folder(), (*days, before, watermark))
        given = (board, alerts, departures)
        return Differences(*(_compare(database, name, table) for name, table in zip(KEYS, given, strict=True)))


def _expect(
    database: duckdb.DuckDBPyConnection, raw: Path, parameters: tuple[date, date, date | None, int | None]
) -> None:
    database.execute(
        "CREATE TEMP TABLE parameters AS SELECT $1::DATE AS first_date, $2::DATE AS last_date, "
        "$3::TIMESTAMP AS before, $4::BIGINT AS watermark",
        parameters,
    )
    with TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(raw / "flights.csv.zip") as archive:
            flights = archive.extract("flights.csv", unpacked)
        _load(database, "raw_flights", flights)
    for name in ("airports", "airlines", "weather"):
        _load(database, f"raw_{name}", str(raw / f"{name}.csv"))
    database.execute(Path(__file__).with_name("verify.sql").read_text(encoding="utf-8"))


def _load(database: duckdb.DuckDBPyConnection, table: str, path: str) -> None:
    database.read_csv(path, header=True, na_values=["NA", ""], sample_size=-1).create(table)


def _compare(database: duckdb.DuckDBPyConnection, expected: str, actual: pa.Table) -> TableDifferences:
    columns = [row[0] for row in database.execute(f"DESCRIBE {expected}").fetchall()]
    key = KEYS[expected]
    database.register("given", _plain(actual, columns))
    # Numbering equal keys makes a row that is there twice one that has no expected partner.
    numbered = f"*, row_number() OVER (PARTITION BY {', '.join(key)}) AS number"
    others = [name for name in columns if name not in key]
    same = " AND ".join(f"must.{name} = found.{name}" for name in key)
    shown = " || ' ' || ".join(f"coalesce(must.{name}, found.{name})" for name in key)
    changed = " OR ".join(f"must.{name} IS DISTINCT FROM found.{name}" for name in others)
    database.execute(
        # The names are those of verify.sql, not a caller's.
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
    return tuple(Difference(key, _changed(must or {}, found or {})) for key, must, found in rows)


def _changed(must: dict[str, Any], found: dict[str, Any]) -> dict[str, tuple[object, object]]:
    return {name: (value, found[name]) for name, value in must.items() if name in found and value != found[name]}


def _plain(actual: pa.Table, columns: Sequence[str]) -> pa.Table:
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
    # Delta is needed for the command line only; tables in memory are compared without it.
    from deltalake import DeltaTable

    return pa.RecordBatchReader.from_stream(DeltaTable(path).scan()).read_all()


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a report on two Delta tables; return 1 if anything differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.flights.verify", description=__doc__.splitlines()[0])
    parser.add_argument("--board", required=True, help="Delta table with the flight board")
    parser.add_argument("--alerts", required=True, help="Delta table with the overdue alerts")
    parser.add_argument("--departures", required=True, help="Delta table with the departures by airport and hour")
    parser.add_argument("--watermark", type=int, required=True, help="the job's last watermark, in milliseconds")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, default=date(2013, 1, 1))
    parser.add_argument("--to", dest="last", type=date.fromisoformat, default=date(2013, 1, 31))
    parser.add_argument("--through", type=date.fromisoformat, help="last day whose file was read; all unless given")
    chosen = parser.parse_args(arguments)
    differences = verify(
        read_table(chosen.board),
        read_table(chosen.alerts),
        read_table(chosen.departures),
        (chosen.first, chosen.last),
        chosen.watermark,
        through=chosen.through,
    )
    print(differences)  # noqa: T201 - a command line prints
    return 1 if differences.total else 0


if __name__ == "__main__":
    raise SystemExit(main())
