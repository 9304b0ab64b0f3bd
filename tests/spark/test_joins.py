"""Joins on Spark equal a plain loop, over several runs, tasks and backends."""

from __future__ import annotations

import random

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace import JoinType, RowKind
from headrace.records.columns import sink_schema, to_columns
from tests.jobs.home import Home
from tests.unit.operators.join_jobs import Change, Offer, Order, Row, sql_join, table_of, text
from tests.unit.operators.test_interval_join import by_hand

INPUTS = {"orders": Order, "offers": Offer, "near_orders": Order, "near_offers": Offer}
JOB = {
    "job": "joins",
    "pipeline": "tests.unit.operators.join_jobs:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 7},
    "sources": {name: {"path": f"input/{name}"} for name in INPUTS},
    "sinks": {name: {"path": f"lake/{name}", "mode": "append"} for name in ("log", "pairs")},
}


def drawn(record, count, chance):
    return [record(chance.choice(["", "a", "b", "é"]), at * 1000) for at in sorted(chance.choices(range(60), k=count))]


def feed(home, name, number, records, kinds):
    table = to_columns(records, sink_schema(INPUTS[name]))
    if not name.startswith("near"):
        table = table.append_column("kind", pa.array([kind.symbol for kind in kinds], pa.string()))
    folder = home.input / name
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / f"{number:03d}.parquet")


def rows_of(config, sink, record):
    rows = DeltaTable(config.sinks[sink].path).to_pyarrow_table().to_pylist()
    return [msgspec.convert(_with_times(row), record) for row in rows]


def _with_times(row):
    """Turn times into milliseconds."""
    if isinstance(row, dict):
        return {
            name: round(value.timestamp() * 1000) if name == "at" else _with_times(value) for name, value in row.items()
        }
    return row


@pytest.mark.slow
def test_spark_joins_equal_a_plain_loop(tmp_path, run):
    home, chance = Home(tmp_path, JOB), random.Random(3)
    records = {name: drawn(record, 90, chance) for name, record in INPUTS.items()}
    here = {name: [] for name in INPUTS}
    for number, backend in enumerate(["rocksdb", "delta", "hashmap"]):
        for name, rows in records.items():
            part = rows[number * 30 : number * 30 + 30]
            here[name] += part
            removed = [] if name.startswith("near") else chance.sample(here[name], 10)
            for gone_row in removed:
                here[name].remove(gone_row)
            kinds = [*[RowKind.INSERT] * len(part), *[RowKind.DELETE] * len(removed)]
            feed(home, name, number, [*part, *removed], kinds)
        run(home, parallelism=number + 1, backend=backend, end_of_input=number == 2)
    config = home.config()
    assert table_of(rows_of(config, "log", Change)) == sql_join(JoinType.FULL, here["orders"], here["offers"])
    pairs = sorted(text(row) for row in rows_of(config, "pairs", Row))
    assert pairs == by_hand((-2000, 5000), [*here["near_orders"], *here["near_offers"]])
