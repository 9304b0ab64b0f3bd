"""Records that hold lists, maps and structs, from Parquet files to both kinds of sinks."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.waiting import list_quarantine
from headrace.records.columns import RecordReader, sink_schema, to_columns
from tests.jobs.home import Home
from tests.jobs.orders import ORDERS, Basket, Line, Order, Parcel

NOON = 1_357_034_400_000
PEN, INK, PAD = Line("pen", 1.5, NOON), Line("ink", 3.0, NOON + 1), Line("pad", 0.5, NOON - 5)
DAYS = [
    [Order(1, NOON, "ann", [PEN], {"gift": None}), Order(2, NOON + 5, "bob", [])],
    [Order(3, NOON + 9, "ann", [INK, PEN], {"to": "é"}), Order(4, NOON + 10, "cid", [PAD])],
]


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path, ORDERS)


def write(home, day):
    table = to_columns(DAYS[day], sink_schema(Order))
    bad = table.slice(0, 1).to_pylist(maps_as_pydicts="strict")
    bad[0]["lines"][0]["price"] = None
    table = pa.concat_tables([table, pa.Table.from_pylist(bad, table.schema)])
    pq.write_table(table, home.input / f"{day}.parquet")


def rows_of(home, sink, record):
    table = pa.RecordBatchReader.from_stream(DeltaTable(home.config().sinks[sink].path).scan()).read_all()
    return sorted(RecordReader(record, None).read(table)[0], key=repr)


@pytest.mark.parametrize("through", [{}, {"publish": {"spark_above_rows": 0}}], ids=["deltalake", "spark"])
def test_nested_columns_reach_the_sinks(home, run, through):
    home.configure(through)
    for day in range(2):
        write(home, day)
        run(home, parallelism=1, backend="hashmap")
    assert rows_of(home, "baskets", Basket) == [
        Basket("ann", (PEN, INK, PEN), PEN, {"pen": 3.0, "ink": 3.0}, [NOON, NOON + 9]),
        Basket("bob", (), None, {}, [NOON + 5]),
        Basket("cid", (PAD,), PAD, {"pad": 0.5}, [NOON + 10]),
    ]
    assert rows_of(home, "parcels", Parcel) == [
        Parcel(order.number, order.lines, order.labels) for day in DAYS for order in day
    ]
    errors = [row["error"] for row in list_quarantine(JobAtCheckpoint(home.config()), 10).dicts()]
    assert errors == ["lines[0].price is null"] * 2
