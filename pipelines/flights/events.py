"""The flights of 2013 as the changelog that an airline's systems would emit, one Parquet file a UTC day.

    python -m pipelines.flights.events --out DIR [--from 2013-01-01] [--to 2013-01-31] [--through DAY] [--seed 13]

Every flight is scheduled six hours ahead (+I), departs and arrives (-U and +U each), or is cancelled at its
scheduled departure (-D). A row has the whole state of the flight after its event; for -U and -D, before it.

Disorder: the rows of a file are in the order of delivery, each less than five minutes after its emission, and
about one in a hundred is delivered a second time, after midnight in the next day's file.

In the data no flight arrives before it departs (a computed arrival not after the departure would be put one
minute after it; this happens to none of 328,063), and none departs more than 43 minutes early.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipelines.flights.flight_times import UNKNOWN, load_flights
from pipelines.flights.raw_data import data_folder

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

Integers = npt.NDArray[np.int64]
Column: TypeAlias = "pa.Array[Any] | pa.ChunkedArray[Any]"

MINUTE: Final = 60_000
DAY: Final = 24 * 60 * MINUTE
SCHEDULED_AHEAD: Final = 6 * 60 * MINUTE
MEAN_DELAY: Final = 40_000
LONGEST_DELAY: Final = 299_000
REDELIVERED: Final = 0.01

KINDS: Final = ("+I", "-U", "+U", "-D")
EVENTS: Final = ("scheduled", "departed", "arrived", "cancelled")
NOTHING_KNOWN, DEPARTURE_KNOWN, ARRIVAL_KNOWN = 0, 1, 2

TIMESTAMP: Final = pa.timestamp("ms", tz="UTC")
FIELDS: Final[list[tuple[str, pa.DataType, bool]]] = [
    ("seq", pa.int64(), False),
    ("kind", pa.string(), False),
    ("event", pa.string(), False),
    ("emitted_at", TIMESTAMP, False),
    ("flight_id", pa.string(), False),
    ("carrier", pa.string(), False),
    ("airline", pa.string(), False),
    ("flight", pa.int32(), False),
    ("tailnum", pa.string(), True),
    ("origin", pa.string(), False),
    ("dest", pa.string(), False),
    ("scheduled_departure", TIMESTAMP, False),
    ("scheduled_arrival", TIMESTAMP, False),
    ("departure", TIMESTAMP, True),
    ("arrival", TIMESTAMP, True),
    ("distance", pa.int32(), False),
    ("seats", pa.int32(), True),
]
SCHEMA: Final = pa.schema([pa.field(name, kind, nullable=nullable) for name, kind, nullable in FIELDS])


@dataclass(frozen=True)
class Changelog:
    """Events as columns of equal length, sorted by `seq`; `flight` is a row number of the table of flights."""

    seq: Integers
    kind: Integers
    event: Integers
    emitted_at: Integers
    flight: Integers
    known: Integers
    """How much of the flight the row shows: nothing but the schedule, the departure, or the arrival too."""

    def take(self, rows: Integers | npt.NDArray[np.bool_]) -> Changelog:
        """Return the rows with these numbers, or those of a mask."""
        return Changelog(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True)
class Deliveries:
    """Which row of a changelog is delivered when, and in the file of which day; sorted by (`day`, `at`)."""

    row: Integers
    at: Integers
    day: Integers
    """Days since the epoch."""


@dataclass(frozen=True)
class Written:
    """What `write_events` found to do."""

    files: int
    left_alone: int
    rows: int
    redelivered: int

    def __str__(self) -> str:
        return (
            f"wrote {self.rows:,} rows ({self.redelivered:,} of them second deliveries) to {self.files} files, "
            f"left {self.left_alone} files alone"
        )


def write_events(
    folder: Path, *, first: date, last: date, seed: int, through: date | None = None, raw: Path | None = None
) -> Written:
    """Write the events of all flights whose local date is from `first` to `last`, and return their numbers.

    With `through`, only files up to that day: a later call continues from there. An existing file is not changed,
    whatever it contains. `seq` and the disorder of a row depend on `seed` alone, not on the dates.
    """
    flights = load_flights(raw or data_folder())
    changelog = build_changelog(flights)
    deliveries = deliver(changelog, seed)
    chosen = flights["date"].between(first.isoformat(), last.isoformat()).to_numpy()
    kept = chosen[changelog.flight[deliveries.row]]
    deliveries = Deliveries(deliveries.row[kept], deliveries.at[kept], deliveries.day[kept])
    folder.mkdir(parents=True, exist_ok=True)
    return _write_files(folder, flights_table(flights), changelog, deliveries, through)


def build_changelog(flights: pd.DataFrame) -> Changelog:
    """Return every event of `flights`, numbered from 1 in the order (emission, flight id, -U before +U)."""
    scheduled, departure, arrival = (
        flights[name].to_numpy(dtype=np.int64) for name in ("scheduled_departure", "departure", "arrival")
    )
    departed, arrived, cancelled = departure != UNKNOWN, arrival != UNKNOWN, departure == UNKNOWN
    everyone = np.ones(len(flights), dtype=np.bool_)
    parts = [
        _part(everyone, scheduled * MINUTE - SCHEDULED_AHEAD, "+I", "scheduled", NOTHING_KNOWN),
        _part(departed, departure * MINUTE, "-U", "departed", NOTHING_KNOWN),
        _part(departed, departure * MINUTE, "+U", "departed", DEPARTURE_KNOWN),
        _part(arrived, arrival * MINUTE, "-U", "arrived", DEPARTURE_KNOWN),
        _part(arrived, arrival * MINUTE, "+U", "arrived", ARRIVAL_KNOWN),
        _part(cancelled, scheduled * MINUTE, "-D", "cancelled", NOTHING_KNOWN),
    ]
    kind, event, emitted_at, flight, known = (np.concatenate(column) for column in zip(*parts, strict=True))
    rank = flights["flight_id"].rank().to_numpy().astype(np.int64)
    order = np.lexsort((kind, rank[flight], emitted_at))
    unnumbered = Changelog(np.empty_like(order), kind, event, emitted_at, flight, known).take(order)
    unnumbered.seq[:] = np.arange(1, len(order) + 1)
    return unnumbered


def _part(chosen: npt.NDArray[np.bool_], at: Integers, kind: str, event: str, known: int) -> tuple[Integers, ...]:
    rows = np.flatnonzero(chosen)
    constants = (KINDS.index(kind), EVENTS.index(event), known)
    kinds, events, knowns = (np.full(len(rows), value, dtype=np.int64) for value in constants)
    return kinds, events, at[rows], rows, knowns


def deliver(changelog: Changelog, seed: int) -> Deliveries:
    """Return the deliveries of `changelog`: each row once, about 1 % twice, all less than 300 s after emission.

    A first delivery counts for the day of its emission even if it arrives after midnight; a second delivery for the
    day of its arrival.
    """
    chance = np.random.default_rng(seed)  # noqa: TID251 - seeded by the caller
    count = len(changelog.seq)
    delay = np.minimum(chance.exponential(MEAN_DELAY, count), LONGEST_DELAY).astype(np.int64)
    again = np.flatnonzero(chance.random(count) < REDELIVERED)
    delay_again = chance.integers(0, 300_000, len(again))
    row = np.concatenate([np.arange(count), again])
    at = changelog.emitted_at[row] + np.concatenate([delay, delay_again])
    day = np.concatenate([changelog.emitted_at, at[count:]]) // DAY
    order = np.lexsort((np.arange(len(row)), changelog.seq[row], at, day))
    return Deliveries(row[order], at[order], day[order])


def flights_table(flights: pd.DataFrame) -> pa.Table:
    """Return the columns of the flights themselves, in the types of `SCHEMA`, one row a flight."""
    columns: dict[str, pa.Array[Any]] = {
        name: pa.array(flights[name], type=SCHEMA.field(name).type, from_pandas=True)
        for name in ("flight_id", "carrier", "airline", "flight", "tailnum", "origin", "dest", "distance", "seats")
    }
    for name in ("scheduled_departure", "scheduled_arrival", "departure", "arrival"):
        minutes = flights[name].to_numpy(dtype=np.int64)
        unknown = minutes == UNKNOWN
        columns[name] = pa.array(np.where(unknown, 0, minutes) * MINUTE, mask=unknown).cast(TIMESTAMP)
    return pa.table(columns)


def event_rows(flights: pa.Table, changelog: Changelog) -> pa.Table:
    """Return `changelog` as rows of `SCHEMA`; `flights` is the result of `flights_table`."""
    rows = flights.take(_integers(changelog.flight))
    columns: dict[str, Column] = {name: rows.column(name) for name in rows.column_names}
    columns["seq"] = _integers(changelog.seq)
    columns["kind"] = pa.array(KINDS, type=pa.string()).take(_integers(changelog.kind))
    columns["event"] = pa.array(EVENTS, type=pa.string()).take(_integers(changelog.event))
    columns["emitted_at"] = _integers(changelog.emitted_at).cast(TIMESTAMP)
    columns["departure"] = _shown(columns["departure"], changelog.known >= DEPARTURE_KNOWN)
    columns["arrival"] = _shown(columns["arrival"], changelog.known >= ARRIVAL_KNOWN)
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _integers(values: Integers) -> pa.Int64Array:
    return pa.array(values, type=pa.int64())


def _shown(column: Column, known: npt.NDArray[np.bool_]) -> Column:
    shown: Column = pc.if_else(pa.array(known), column, pa.scalar(None, type=TIMESTAMP))
    return shown


def _write_files(
    folder: Path, flights: pa.Table, changelog: Changelog, deliveries: Deliveries, through: date | None
) -> Written:
    days, starts, counts = np.unique(deliveries.day, return_index=True, return_counts=True)
    files = left_alone = rows = redelivered = 0
    for number, start, count in zip(days.tolist(), starts.tolist(), counts.tolist(), strict=True):
        day = date(1970, 1, 1) + timedelta(days=number)
        path = folder / f"{day}.parquet"
        if through is not None and day > through:
            break
        if path.exists():
            left_alone += 1
            continue
        part = changelog.take(deliveries.row[start : start + count])
        _write_file(path, event_rows(flights, part))
        files, rows = files + 1, rows + count
        # A row delivered again after midnight is alone in its file: its day of emission identifies it.
        redelivered += count - len(np.unique(part.seq[part.emitted_at // DAY == number]))
    return Written(files, left_alone, rows, redelivered)


def _write_file(path: Path, rows: pa.Table) -> None:
    # Readers list the folder while it is written to, and Spark takes no file whose name starts with "_".
    unfinished = path.with_name(f"_{path.name}.unfinished")
    pq.write_table(rows, unfinished, compression="zstd")
    unfinished.rename(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files that the command line requests, and print one line about them."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.flights.events", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files, made when missing")
    parser.add_argument("--from", dest="first", type=date.fromisoformat, default=date(2013, 1, 1))
    parser.add_argument("--to", dest="last", type=date.fromisoformat, default=date(2013, 1, 31))
    parser.add_argument("--year", action="store_true", help="all of 2013, whatever --from and --to say")
    parser.add_argument("--through", type=date.fromisoformat, help="write no file of a later day than this")
    parser.add_argument("--seed", type=int, default=13)
    chosen = parser.parse_args(arguments)
    first, last = (date(2013, 1, 1), date(2013, 12, 31)) if chosen.year else (chosen.first, chosen.last)
    written = write_events(chosen.out, first=first, last=last, seed=chosen.seed, through=chosen.through)
    print(f"flights of {first} to {last}: {written}")  # noqa: T201 - a command line prints


if __name__ == "__main__":
    main()
