"""Input for the job `purchases`: one Parquet file a day, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from tests.jobs.purchases import HOUR, LOOK_BACK, Item

FIRST_DAY: Final = datetime(2024, 3, 1, tzinfo=UTC)
SCHEMA: Final = pa.schema(
    [
        pa.field("seq", pa.int64()),
        pa.field("kind", pa.string()),
        pa.field("at", pa.timestamp("ms", tz="UTC")),
        pa.field("customer", pa.string()),
        pa.field("item", pa.string()),
        pa.field("cents", pa.int32()),
        pa.field("note", pa.string()),
    ]
)
CUSTOMERS: Final = tuple(f"customer {number}" for number in range(14))

Row = dict[str, Any]


def day_name(day: int) -> str:
    """The name of the file of a day, counted from 0."""
    return f"{FIRST_DAY + timedelta(days=day):%Y-%m-%d}.parquet"


def day_start(day: int) -> int:
    """The first timestamp of a day (ms)."""
    return round((FIRST_DAY + timedelta(days=day)).timestamp() * 1000)


def purchases_of(day: int, *, rows: int = 90, seed: int = 7) -> list[Row]:
    """The rows of a day in the order of delivery: some late, some retracting, one without a customer."""
    chance = random.Random(f"{seed}/{day}")
    created = []
    for number in range(rows):
        at = day_start(day) + number * 24 * HOUR // rows
        if chance.random() < 0.1:
            at -= chance.randrange(5 * HOUR)
        created.append(
            {
                "seq": day * 1_000_000 + number,
                "kind": chance.choices(("+I", "+U", "-U", "-D"), (20, 5, 1, 2))[0],
                "at": at,
                "customer": chance.choice(CUSTOMERS),
                "item": chance.choice(get_args(Item)),
                "cents": chance.choice((LOOK_BACK, 199, 250, 250, 399)),
                "note": None,
            }
        )
    created[rows // 2]["customer"] = None
    return created


def write_rows(folder: Path, name: str, rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> Path:
    """Write one file of rows, completely or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    pq.write_table(pa.Table.from_pylist(list(rows), schema=schema), path)
    return path


def write_days(folder: Path, days: Sequence[int], *, rows: int = 90, seed: int = 7) -> None:
    """Write the files of some days."""
    for day in days:
        # The rows of a file need not be in their order: `seq` says which one it is.
        shuffled = purchases_of(day, rows=rows, seed=seed)
        random.Random(day).shuffle(shuffled)
        write_rows(folder, day_name(day), shuffled)
