"""Rankings and joins by time on Spark equal the harness, over several runs, tasks and backends."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.records.columns import sink_schema, to_columns
from headrace.testing import PipelineHarness
from tests.jobs.home import Home
from tests.unit.operators.priced_jobs import Order, Rate, pipeline

SINKS = dict.fromkeys(("priced", "both", "near", "known", "seconds", "recent", "days"), "append") | dict.fromkeys(
    ("visits", "largest", "current_rates", "unrated_orders"), "merge"
)
JOB = {
    "job": "priced_orders",
    "pipeline": "tests.unit.operators.priced_jobs:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 7},
    "sources": {"orders": {"path": "input/orders"}, "rates": {"path": "input/rates"}},
    "sinks": {name: {"path": f"lake/{name}", "mode": mode} for name, mode in SINKS.items()},
}


def drawn(record, count, chance):
    """Records of six seconds, at most two seconds out of order."""
    rows = [
        record(chance.choice(["a", "b", "b", None]), chance.randint(0, 6000), chance.randint(1, 90))
        for _ in range(count)
    ]
    return sorted(rows, key=lambda row: row.at + chance.uniform(0, 2000))


def rows_of(table):
    """Return the rows without their times, which tables store in another type."""
    query = QueryBuilder().register("rows", table)
    names = [field.name for field in table.schema().fields if field.name in {"currency", "rank", "cents", "rate"}]
    result = query.execute(f"select {', '.join(names)} from rows").read_all()
    return sorted(zip(*(result.column(n).to_pylist() for n in range(len(names))), strict=True), key=repr)


@pytest.mark.slow
def test_spark_results_equal_the_harness(tmp_path, run):
    chance = random.Random(7)
    records = {"orders": drawn(Order, 60, chance), "rates": drawn(Rate, 30, chance)}
    home, harness = Home(tmp_path, JOB), PipelineHarness(pipeline)
    for source, rows in records.items():
        harness.feed(source, rows)
    harness.run(end_of_input=True)
    for number, backend in enumerate(["rocksdb", "delta"]):
        for source, rows in records.items():
            part = rows[: len(rows) // 2] if number == 0 else rows[len(rows) // 2 :]
            folder = tmp_path / "input" / source
            folder.mkdir(parents=True, exist_ok=True)
            pq.write_table(to_columns(part, sink_schema(type(part[0]))), folder / f"{number:03d}.parquet")
        run(home, parallelism=number + 1, backend=backend, end_of_input=number == 1)
    for name in SINKS:
        expected = rows_of(DeltaTable(harness.config.sinks[name].path))
        assert expected
        assert rows_of(DeltaTable(home.config().sinks[name].path)) == expected
