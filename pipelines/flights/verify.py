"""Recomputes the board and the alerts from the raw tables with DuckDB, and compares them with the job's tables.

    python -m pipelines.flights.verify --board PATH --alerts PATH --departures PATH --watermark MS [--from DAY] [--to DAY] [--through DAY]

It shares no code with the generator of the events and with the job: `verify.sql` states the rules again, as sets.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb

from pipelines.comparison import TableDifferences, compare_tables, read_table
from pipelines.flights.raw_data import create_raw_tables, data_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

KEYS: Final = {
    "expected_board": ("flight_id",),
    "expected_alerts": ("flight_id",),
    "expected_departures": ("origin", "hour"),
}
"""What must be there, and what tells its rows apart."""


@dataclass(frozen=True)
class Differences:
    """What `verify` found."""

    board: TableDifferences
    alerts: TableDifferences
    departures: TableDifferences

    @property
    def total(self) -> int:
        """The number of wrong rows; 0 means that the job is right."""
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
    """Compare the job's tables with the expected tables for the flights of `days`, first and last.

    `watermark` is the job's last watermark (ms), None if it has none. `through` is the last day whose file the job
    has read; without it the job has read them all. Timestamps may be of any unit, or integers (ms). Columns that are
    not expected are ignored; a row there twice counts as unexpected once.

    Raises:
        ValueError: a table lacks a column.
    """
    with closing(duckdb.connect()) as database:
        before = None if through is None else through + timedelta(days=1)
        _expect(database, raw or data_folder(), (*days, before, watermark))
        given = (board, alerts, departures)
        return Differences(
            *(
                compare_tables(database, name, key, table)
                for (name, key), table in zip(KEYS.items(), given, strict=True)
            )
        )


def _expect(
    database: duckdb.DuckDBPyConnection, raw: Path, parameters: tuple[date, date, date | None, int | None]
) -> None:
    database.execute(
        "CREATE TEMP TABLE parameters AS SELECT $1::DATE AS first_date, $2::DATE AS last_date, "
        "$3::TIMESTAMP AS before, $4::BIGINT AS watermark",
        parameters,
    )
    create_raw_tables(database, raw, ("flights", "airports", "airlines", "weather"))
    database.execute(Path(__file__).with_name("verify.sql").read_text(encoding="utf-8"))


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
