"""A sample of the random graphs on Spark: results equal a plain loop and tasks in one process."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder

from headrace.records.columns import sink_schema, to_columns
from tests.jobs.graphs import Event, Program, job_of
from tests.jobs.home import Home

SAMPLE = (1, 3, 5, 10, 15, 19, 35, 37, 49, 55, 56, 61)
OFTEN = (1, 10, 35, 37, 56)
"""Graphs of each run of the slow tests; all of the sample are in the long ones."""


def rows_of(config, sink):
    query = QueryBuilder().register("rows", DeltaTable(config.sinks[sink].path))
    rows = query.execute("select id, key, cast(at as bigint) / 1000 as at, value from rows").read_all()
    lists = (rows.column(number).to_pylist() for number in range(4))
    return Counter((identity, key, int(at), value) for identity, key, at, value in zip(*lists, strict=True))


def feed(home, program, number):
    """Write the `number`-th file of each source."""
    for source in program.inputs:
        folder = home.input / source.name
        folder.mkdir(parents=True, exist_ok=True)
        if number < len(source.files) and source.files[number]:
            pq.write_table(to_columns(source.files[number], sink_schema(Event)), folder / f"{number:03d}.parquet")


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [seed if seed in OFTEN else pytest.param(seed, marks=pytest.mark.long) for seed in SAMPLE]
)
def test_graph_on_spark_equals_a_loop(seed, tmp_path, run):
    program, chance = Program(seed), random.Random(seed)
    home = Home(tmp_path, job_of(program))
    most = max(len(source.files) for source in program.inputs)
    for number in range(most):
        feed(home, program, number)
        if number == most // 2:
            run(home, parallelism=chance.choice([1, 2, 3]), backend=chance.choice(["hashmap", "rocksdb"]))
    run(home, parallelism=chance.choice([1, 2, 3]), end_of_input=True)
    assert {sink: rows_of(home.config(), sink) for sink in program.sinks.values()} == program.expected(end=True)


def test_sampled_graphs_cover_the_hard_cases():
    programs = [Program(seed) for seed in SAMPLE]
    kinds = Counter(op.kind for program in programs for op in program.ops)
    assert min(kinds[kind] for kind in ("union", "connect", "process", "flat_map")) >= 3
    assert sum(any(len(group) > 1 for group in program.groups) for program in programs) >= 4
    assert any(
        op.kind == "union" and len(set(op.inputs)) < len(op.inputs) for program in programs for op in program.ops
    )
