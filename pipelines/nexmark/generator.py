"""Writes the input of the Nexmark queries as Parquet files: the same files for the same arguments, on every machine.

    python -m pipelines.nexmark.generator --events 100000 --seed 7 --out var/nexmark

Of 50 events 1 is a person, 3 are auctions and 46 are bids. Event times are unique and grow by `gap_ms` on average. The
files of a folder are in the order of arrival: an event arrives up to `disorder_ms` after its time, and with `late` a part of
the events arrives up to `late_ms` after that. File number n of each folder covers the same stretch of arrivals.
"""

from __future__ import annotations

import argparse
import random  # noqa: TID251 - seeded by the caller
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import Struct
from pipelines.nexmark.project import make_project
from pipelines.nexmark.records import DISORDER, LONGEST_AUCTION, Auction, Bid, Person, SideInput

SHARES: Final = (Person, *[Auction] * 3, *[Bid] * 46)
"""The kinds of 50 events in a row."""

TABLES: Final[dict[type[Struct], str]] = {Person: "persons", Auction: "auctions", Bid: "bids", SideInput: "side_input"}
"""The folder, and the source, of each kind of record."""

START: Final = int(datetime(2026, 1, 1, 23, 59, 30, tzinfo=UTC).timestamp() * 1000)
"""The time of the first event: midnight is near, so that queries by day have two days."""

FIRST_ID: Final = 1100
SIDE_ROWS: Final = 10_000
STATES: Final = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES: Final = ("Phoenix", "Los Angeles", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne")
FIRST_NAMES: Final = ("Ana", "Bob", "Chen", "Dara", "Edo", "Fay", "Gus", "Hana", "Ivo", "Jo")
LAST_NAMES: Final = ("Adams", "Baker", "Cruz", "Dube", "Evans", "Fox", "Garcia", "Hill")
ITEMS: Final = ("lamp", "chair", "clock", "violin", "map", "vase", "kettle", "bicycle")
KNOWN_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")
LETTERS: Final = "abcdefghijklmnopqrstuvwxyz"
_KINDS: Final = {int: pa.int64(), str: pa.string()}


@dataclass(frozen=True)
class Shape:
    """What is generated. Times are in ms; `late` is the share of events that arrive later than `disorder_ms` allows."""

    events: int
    seed: int = 7
    gap_ms: int = 10
    disorder_ms: int = int(DISORDER.total_seconds() * 1000) - 1
    late: float = 0.0
    late_ms: int = 60_000


def generate(shape: Shape) -> list[Struct]:
    """Return persons, auctions and bids in the order of arrival.

    Raises `ValueError` for a shape without a time between events, or with a negative number.
    """
    if shape.gap_ms < 1 or min(shape.events, shape.disorder_ms, shape.late_ms) < 0 or not 0 <= shape.late <= 1:
        msg = f"gap_ms must be at least 1, late a share from 0 to 1, and nothing negative, not {shape}"
        raise ValueError(msg)
    chance = random.Random(shape.seed)  # noqa: S311 - nothing is secret here
    arrivals: list[tuple[int, int, Struct]] = []
    for number, (time, event) in enumerate(_House(chance, shape.gap_ms).events(shape.events)):
        delay = chance.randint(0, shape.disorder_ms)
        if chance.random() < shape.late:
            delay = shape.disorder_ms + 1 + chance.randint(0, shape.late_ms)
        arrivals.append((time + delay, number, event))
    return [event for _, _, event in sorted(arrivals, key=lambda arrival: arrival[:2])]


def side_rows() -> list[SideInput]:
    """Return the rows of query 13's bounded table. All are older than the first event."""
    return [SideInput(key, f"value {key}", START - 1) for key in range(SIDE_ROWS)]


def write_events(folder: Path, shape: Shape, *, files: int = 10) -> dict[str, int]:
    """Write what `generate` returns into `folder/persons`, `auctions` and `bids`, each split into `files`; return the numbers of rows.

    `folder/side_input` gets one file. A file that has no rows of a table is written all the same. Raises `FileExistsError` where
    there are files already: the files of a source never change.
    """
    for table in TABLES.values():
        if any((folder / table).glob("*.parquet")):
            msg = f"{folder / table} has files already: give another folder, or remove it with the tables made of it"
            raise FileExistsError(msg)
        (folder / table).mkdir(parents=True, exist_ok=True)
    events = generate(shape)
    size = max(1, -(-len(events) // files))
    for number in range(files):
        part = events[number * size : (number + 1) * size]
        for kind, table in TABLES.items():
            if kind is not SideInput:
                rows = [event for event in part if type(event) is kind]
                _write_file(folder / table / f"{number:05d}.parquet", kind, rows)
    _write_file(folder / TABLES[SideInput] / "00000.parquet", SideInput, side_rows())
    return {
        table: sum(type(event) is kind for event in events) for kind, table in TABLES.items() if kind is not SideInput
    }


class _House:
    """Makes events one after the other; its auctions and persons determine the possible next events."""

    def __init__(self, chance: random.Random, gap_ms: int) -> None:
        self._chance = chance
        self._gap = gap_ms
        self._persons = 0
        self._auctions = 0

    def events(self, count: int) -> Iterator[tuple[int, Struct]]:
        """Yield `count` events with distinct times."""
        make = {Person: self._person, Auction: self._auction, Bid: self._bid}
        for number in range(count):
            time = START + number * self._gap + self._chance.randrange(self._gap)
            yield time, make[SHARES[number % len(SHARES)]](time)

    def _person(self, time: int) -> Person:
        chance = self._chance
        first, last = chance.choice(FIRST_NAMES), chance.choice(LAST_NAMES)
        card = " ".join(f"{chance.randrange(10_000):04d}" for _ in range(4))
        number = FIRST_ID + self._persons
        self._persons += 1
        email = f"{first}.{last}{number}@example.org".lower()
        city, state = chance.choice(CITIES), chance.choice(STATES)
        return Person(number, f"{first} {last}", email, card, city, state, time, self._letters())

    def _auction(self, time: int) -> Auction:
        chance = self._chance
        number = FIRST_ID + self._auctions
        self._auctions += 1
        item, price = chance.choice(ITEMS), self._price()
        lasts = chance.randint(1000, int(LONGEST_AUCTION.total_seconds() * 1000))
        seller, category = self._somebody(), 10 + chance.randrange(5)
        reserve = price + self._price()
        return Auction(
            number, item, f"a fine {item}", price, reserve, time, time + lasts, seller, category, self._letters()
        )

    def _bid(self, time: int) -> Bid:
        chance = self._chance
        # Half of the bids go to a few hot auctions, the rest to one of the last hundred.
        newest = self._auctions - 1
        auction = newest - newest % 20 if chance.random() < 0.5 else max(0, newest - chance.randrange(100))
        channel, url = self._channel()
        return Bid(FIRST_ID + auction, self._somebody(), self._price(), channel, url, time, self._letters())

    def _somebody(self) -> int:
        """Return a person: in four of ten cases one of the newest three, else any of the last thousand."""
        known = self._persons
        back = 3 if self._chance.random() < 0.4 else 1000
        return FIRST_ID + known - 1 - self._chance.randrange(min(known, back))

    def _price(self) -> int:
        """Return 1 to 999,999 dollars in cents: each number of digits as likely as the others."""
        least: int = 10 ** self._chance.randint(2, 7)
        return self._chance.randrange(least, 10 * least)

    def _channel(self) -> tuple[str, str]:
        chance = self._chance
        path = "/".join(self._word() for _ in range(3))
        url = f"https://www.example.org/{path}/item.htm?query=1"
        if chance.random() < 0.5:
            return chance.choice(KNOWN_CHANNELS), url
        number = chance.randrange(10_000)
        # Some bids of other channels lack the channel: query 21 leaves them out.
        return f"channel-{number}", url if number % 10 == 0 else f"{url}&channel_id={number}"

    def _word(self) -> str:
        return "".join(self._chance.choices(LETTERS, k=3))

    def _letters(self) -> str:
        return "".join(self._chance.choices(LETTERS, k=self._chance.randint(0, 20)))


def _write_file(path: Path, kind: type[Struct], rows: Sequence[Struct]) -> None:
    columns: dict[str, pa.Array[Any]] = {}
    for field in msgspec.structs.fields(kind):
        is_time = field.name in {"date_time", "expires"}
        arrow = pa.timestamp("ms", tz="UTC") if is_time else _KINDS[field.type]
        columns[field.name] = pa.array([getattr(row, field.name) for row in rows], arrow)
    # Readers list the folder while it is written to, and take no file whose name starts with "_".
    unfinished = path.with_name(f"_{path.name}.unfinished")
    pq.write_table(pa.table(columns), unfinished, compression="zstd")
    unfinished.rename(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Make a project with jobs and input for the command line's options, and print one line about it."""
    shape = Shape(events=100_000)
    parser = argparse.ArgumentParser(prog="python -m pipelines.nexmark.generator", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of a new project with a job for each query")
    parser.add_argument("--events", type=int, default=shape.events)
    parser.add_argument("--seed", type=int, default=shape.seed)
    parser.add_argument("--files", type=int, default=10, help="files of each table")
    parser.add_argument("--gap-ms", type=int, default=shape.gap_ms, help="mean time between two events")
    parser.add_argument("--disorder-ms", type=int, default=shape.disorder_ms, help="longest delay of an event")
    parser.add_argument("--late", type=float, default=shape.late, help="share of events that come later than that")
    parser.add_argument("--late-ms", type=int, default=shape.late_ms, help="how much later at most")
    chosen = vars(parser.parse_args(arguments))
    folder, files = chosen.pop("out"), chosen.pop("files")
    make_project(folder)
    rows = write_events(folder / "input", Shape(**chosen), files=files)
    print(f"{folder}: " + ", ".join(f"{count:,} {table}" for table, count in rows.items()))  # noqa: T201 - a command line prints


if __name__ == "__main__":
    main()
