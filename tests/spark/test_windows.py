"""Windows on Spark equal a plain loop, over several runs and tasks, and leave no state."""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder

from headrace.operators import Tumbling
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.state import list_states
from headrace.records.columns import sink_schema, to_columns
from tests.jobs.home import Home
from tests.unit.operators.window_jobs import Bid, Summary
from tests.unit.support.windows_by_hand import summaries

JOB = {
    "job": "bids",
    "pipeline": "tests.unit.operators.window_jobs:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 7},
    "sources": {"bids": {"path": "input"}},
    "sinks": {"summaries": {"path": "lake/summaries", "mode": "append"}},
}


def drawn(count):
    """Bids around 1970, at most 4 seconds out of order."""
    chance = random.Random(7)
    bids = [
        Bid(
            chance.choice(["", "a", "b", "é"]),
            chance.randint(-60_000, 60_000),
            chance.choice([None, 1, 7, -3]),
            "xyz"[n % 3],
        )
        for n in range(count)
    ]
    return sorted(bids, key=lambda bid: bid.at + chance.uniform(0, 4000))


def rows_of(config):
    fields = Summary.__struct_fields__
    times = {"window_start", "window_end", "latest"}
    columns = ", ".join(f"cast({field} as bigint) / 1000 as {field}" if field in times else field for field in fields)
    query = QueryBuilder().register("rows", DeltaTable(config.sinks["summaries"].path))
    table = query.execute(f"select {columns} from rows").read_all()
    return sorted(zip(*(table.column(number).to_pylist() for number in range(len(fields))), strict=True))


def test_spark_windows_equal_a_plain_loop(tmp_path, run):
    home, bids = Home(tmp_path, JOB), drawn(300)
    home.input.mkdir(parents=True, exist_ok=True)
    for number, backend in enumerate(["rocksdb", "delta", "hashmap"]):
        part = bids[number * 100 : number * 100 + 100]
        pq.write_table(to_columns(part, sink_schema(Bid)), home.input / f"{number:03d}.parquet")
        run(home, parallelism=number + 1, backend=backend, end_of_input=number == 2)
    assert rows_of(home.config()) == summaries(Tumbling(timedelta(seconds=10)), bids)
    assert list_states(JobAtCheckpoint(home.config())).rows == []
