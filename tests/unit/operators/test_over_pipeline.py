"""Aggregates over a frame in whole pipelines, through crashes and restarts, and the same query in DuckDB."""

from __future__ import annotations

import random

import duckdb
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.testing import PipelineHarness
from tests.unit.operators.over_jobs import Ahead, Counted, Model, Payment, Placed, Whole, over, payments
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples

PAYMENTS = st.lists(
    st.builds(
        Payment,
        st.sampled_from("abc"),
        st.integers(0, 40),
        st.integers(1, 9),
        st.sampled_from([0.1, 1e9]),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=14,
).map(lambda rows: [msgspec.structs.replace(row, id=number) for number, row in enumerate(rows)])


@pytest.mark.slow
@examples(5)
@given(
    rows=PAYMENTS,
    frame=st.sampled_from([{}, {"rows": 3}, {"within": 9}]),
    result=st.sampled_from([Whole, Counted, Placed, Ahead]),
    seed=st.integers(0, 1 << 30),
)
def test_crashes_and_splits_change_nothing(rows, frame, result, seed):
    chance = random.Random(seed)
    model = Model(result, **frame)
    for row in rows:
        model.take(row)
    pipeline = over(payments(lag=60), result, **frame).sink("recent")
    harness = PipelineHarness(pipeline, bucket=chance.choice([1, 3]), parallelism=chance.choice([1, 2]))
    harness.feed("payments", rows[:5])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("payments", rows[5:])
    harness.run(end_of_input=True, crash_at=chance.choice([None, "task.half:1"]))
    harness.run(end_of_input=True)
    assert by_fields(harness.sink("recent")) == by_fields(model.results())


@pytest.mark.slow
@examples(5)
@given(
    rows=PAYMENTS,
    frame=st.sampled_from([{}, {"rows": 3}, {"within": 9}]),
    result=st.sampled_from([Placed, Ahead]),
    bucket=st.integers(1, 4),
)
def test_corrections_reach_the_merged_table(rows, frame, result, bucket):
    """Without an `out_of_orderness`, most rows come late; the table ends as if none had."""
    model = Model(result, **frame)
    for row in rows:
        model.take(row)
    results = over(payments(), result, keep=1000, **frame)
    pipeline = results.upsert_materialize("latest", primary_key=("id",), upsert_key=("id",)).sink("recent")
    harness = PipelineHarness(pipeline, bucket=bucket)
    for start in range(0, len(rows), 4):
        harness.feed("payments", rows[start : start + 4])
        harness.run()
    harness.run(end_of_input=True)
    assert by_fields(harness.sink("recent")) == by_fields(model.results())


IN_SQL = {
    "rows": ({"rows": 3}, 'order by "at", seq, id rows between 2 preceding and current row'),
    "range": ({"within": 9}, 'order by "at" range between 9 preceding and current row'),
    "unbounded": ({}, 'order by "at", seq'),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", IN_SQL)
@examples(30)
@given(rows=PAYMENTS)
def test_duckdb_reads_the_same(case, rows):
    frame, over_clause = IN_SQL[case]
    model = Model(Whole, order_by=("seq",), **frame)
    for row in rows:
        model.take(row)
    names = ("id", "payments", "total", "mean", "lowest", "highest", "large", "prices")
    ours = [tuple(getattr(result, name) for name in names) for result in model.results()]
    aggregates = ["count(*)", "sum(cents)", "avg(cents)", "min(cents)", "max(cents)", "count(*) filter (cents > 4)"]
    aggregates += ["count(distinct cents)"]
    window = f"over (partition by card {over_clause})"
    values = ", ".join(str(msgspec.structs.astuple(row)) for row in rows)
    query = f"select id, {', '.join(f'{aggregate} {window}' for aggregate in aggregates)} from given"
    with duckdb.connect() as database:
        database.execute(
            'create table given (card text, "at" bigint, cents bigint, weight double, seq bigint, id bigint)'
        )
        database.execute(f"insert into given values {values}")
        assert sorted(ours) == sorted(database.execute(query).fetchall())
