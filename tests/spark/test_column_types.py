"""Records with a field of each type, from Parquet files through Spark to both kinds of sinks."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.records.columns import RecordReader, sink_schema, to_columns
from tests.jobs.home import Home
from tests.jobs.typed_rows import TYPED_ROWS, Level, Typed

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
EARLY, LATE = datetime(1, 1, 1, 0, 0, 0, 1, UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, UTC)


def typed(at, number, **changes):
    values = {
        "local": at.replace(tzinfo=None),
        "micros": -1,
        "day": date(1, 1, 1),
        "clock": time(23, 59, 59, 999_999),
        "took": timedelta(days=-1, microseconds=1),
        "price": Decimal("-9999999999.99"),
        "tiny": -128,
        "small": 32_767,
        "plain": -(2**31),
        "share": 0.10000000149011612,
        "level": Level.HIGH,
        "free": {"a": [1, 2.5, None, "é"]},
        "by_day": {date(2026, 1, 31): 1},
        "times": [EARLY, LATE],
    }
    return Typed(at, UUID(int=number), **(values | changes))


RUNS = [
    [typed(EARLY, 1), typed(NOON, 2, free=None, level=Level.LOW), typed(NOON + timedelta(microseconds=1), 1)],
    [typed(NOON + timedelta(milliseconds=1), 2), typed(NOON, 1, took=timedelta(0))],
]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, TYPED_ROWS)


def rows_of(home, sink):
    table = pa.RecordBatchReader.from_stream(DeltaTable(home.config().sinks[sink].path).scan()).read_all()
    return sorted(RecordReader(Typed, None).read(table)[0], key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("through", [{}, {"publish": {"spark_above_rows": 0}}], ids=["deltalake", "spark"])
def test_fields_of_each_type_reach_the_sinks(home, run, through):
    home.configure(through)
    for number, rows in enumerate(RUNS):
        pq.write_table(to_columns(rows, sink_schema(Typed)), home.input / f"{number}.parquet")
        run(home, parallelism=2, backend="rocksdb")
    assert rows_of(home, "every") == sorted([row for rows in RUNS for row in rows], key=repr)
    last = sorted([RUNS[0][2], RUNS[1][0]], key=repr)
    for row, expected in zip(rows_of(home, "last"), last, strict=True):
        for name in Typed.__struct_fields__:
            assert (name, getattr(row, name)) == (name, getattr(expected, name))
