"""Recomputes the logbook with DuckDB, and compares it with the job's table.

    python -m pipelines.logbook.verify [--to 2013-01-31] [--midway] [--changes DIR] [--logbook PATH] [--state PATH]

After all corrections, the logbook equals that of the raw tables: `verify.sql` joins them, and ignores changes. Before
that (`--midway`), `in_force.sql` selects the rows that the files have added and not retracted. Neither shares
anything with the code that makes the changes or runs the job.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import duckdb
import pyarrow as pa

from pipelines.comparison import TableDifferences, compare_tables, plain_columns, read_table
from pipelines.flights.raw_data import create_raw_tables, data_folder
from pipelines.logbook.records import Line

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES: Final = ("entries", "planes", "weather")
KEY: Final = ("flight_id",)
_SQL: Final = Path(__file__).parent


def verify(logbook: pa.Table, last: date, *, raw: Path | None = None) -> TableDifferences:
    """Compare the job's table with the raw tables of the flights up to the local date `last`; all corrections must have come."""
    with closing(duckdb.connect()) as database:
        database.execute("CREATE TEMP TABLE parameters AS SELECT $1::DATE AS last_date", [last])
        create_raw_tables(database, raw or data_folder(), ("flights", "planes", "weather"))
        database.execute((_SQL / "verify.sql").read_text(encoding="utf-8"))
        return compare_tables(database, "expected_logbook", KEY, logbook)


def verify_midway(logbook: pa.Table, changes: Path) -> TableDifferences:
    """Compare the job's table with the rows in force in the files of `changes`, all of which the job must have read.

    Of several lines of a flight the one added last must be shown. If one change has added several of them, any of them is accepted.
    """
    with closing(duckdb.connect()) as database:
        _take_changes(database, changes, plain_columns(logbook, Line.__struct_fields__))
        return compare_tables(database, "expected_logbook", KEY, logbook)


@dataclass(frozen=True)
class Disorder:
    """The number of retractions in the files, and of those that come after the row that replaces theirs."""

    retractions: int
    late: int

    @classmethod
    def of(cls, changes: Path) -> Disorder:
        """Count the retractions in the files of `changes`."""
        with closing(duckdb.connect()) as database:
            _take_changes(database, changes, pa.table({"flight_id": pa.array([], pa.string())}))
            counts = (
                "(SELECT count(*) FROM changes WHERE kind IN ('-U', '-D')), (SELECT count(*) FROM late_retractions)"
            )
            return cls(*database.execute(f"SELECT {counts}").fetchall()[0])

    def __str__(self) -> str:
        return f"retractions: {self.retractions:,}, and {self.late:,} of them after the row that replaces theirs"


@dataclass(frozen=True)
class Histories:
    """The number of keys by the longest history at the end of a micro-batch; and the number of keys with several rows now."""

    keys_by_length: dict[int, int]
    several_now: int

    @classmethod
    def of(cls, table: pa.Table) -> Histories:
        """Measure the histories in the rows of the state table `materializer_history`."""
        with closing(duckdb.connect()) as database:
            database.register("materializer_history", table)
            database.execute((_SQL / "histories.sql").read_text(encoding="utf-8"))
            by_length = database.execute("SELECT longest, count(*) FROM lengths GROUP BY ALL ORDER BY ALL").fetchall()
            several_now = database.execute("SELECT count(*) FROM lengths WHERE length_now > 1").fetchall()[0][0]
            return cls(dict(by_length), several_now)

    def __str__(self) -> str:
        if not self.keys_by_length:
            return "histories: none"
        longest = ", ".join(f"{count:,} with {rows}" for rows, count in self.keys_by_length.items())
        return f"histories, by their most rows after a micro-batch: {longest}; {self.several_now:,} have several now"


def _take_changes(database: duckdb.DuckDBPyConnection, changes: Path, given: pa.Table) -> None:
    for name in SOURCES:
        database.execute(
            f"CREATE TEMP TABLE {name} AS SELECT * EXCLUDE (filename, file_row_number), "  # noqa: S608 - ours
            "parse_filename(filename, true)::DATE AS day, file_row_number AS number "
            "FROM read_parquet($1, filename = true, file_row_number = true)",
            [str(changes / name / "*.parquet")],
        )
    database.register("given", given)
    database.execute((_SQL / "in_force.sql").read_text(encoding="utf-8"))
    database.unregister("given")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a report; return 1 if anything differs, else 0."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.logbook.verify", description=__doc__.splitlines()[0])
    parser.add_argument("--to", dest="last", type=date.fromisoformat, default=date(2013, 1, 31), help="last flights")
    parser.add_argument("--midway", action="store_true", help="corrections are on their way: compare with the files")
    parser.add_argument("--changes", type=Path, default=Path("var/data/logbook"), help="folder of the sources")
    parser.add_argument("--logbook", default="var/lake/logbook", help="Delta table that the job has written")
    parser.add_argument("--state", default="var/state/logbook", help="folder of the job's state tables")
    chosen = parser.parse_args(arguments)
    logbook = read_table(chosen.logbook)
    differences = verify_midway(logbook, chosen.changes) if chosen.midway else verify(logbook, chosen.last)
    print(*differences.lines("logbook"), sep="\n")  # noqa: T201 - a command line prints
    print(Disorder.of(chosen.changes))  # noqa: T201 - as above
    print(Histories.of(read_table(f"{chosen.state}/materializer_history")))  # noqa: T201 - as above
    return 1 if differences.total else 0


if __name__ == "__main__":
    raise SystemExit(main())
