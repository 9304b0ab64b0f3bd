"""Bids later than the disorder: a window includes them within its allowed lateness, and later bids are set aside."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, Max, Tumbling
from headrace.testing import PipelineHarness
from pipelines.nexmark.check import compare_sql
from pipelines.nexmark.generator import Shape, generate, write_events
from pipelines.nexmark.records import DISORDER, Bid

KEY = ("auction", "window_start")
SQL = """
SELECT auction, time_bucket(INTERVAL 10 SECOND, date_time) AS window_start, count(*) AS bids, max(price) AS highest
FROM bids GROUP BY ALL
"""


class Period(Struct, frozen=True):
    auction: int
    window_start: Timestamp
    bids: Annotated[int, Count()]
    highest: Annotated[int, Max("price")]


def harness_of(lateness, inputs):
    bids = Pipeline("late_bids").source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    periods = bids.key_by("auction").window(Tumbling(timedelta(seconds=10)))
    results = periods.aggregate("periods", Period, allowed_lateness=lateness).side_output("late", Bid, sink="late")
    pipeline = results.upsert_materialize("latest", primary_key=KEY, upsert_key=KEY).sink("result")
    harness = PipelineHarness(pipeline, bucket=20, files_per_batch=2)
    for file in sorted((inputs / "bids").iterdir()):
        harness.feed_table("bids", pq.read_table(file))
    harness.run(end_of_input=True)
    return harness


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("late")
    write_events(folder, Shape(1500, gap_ms=100, late=0.1), files=5)
    return folder


@pytest.mark.slow
def test_late_bids_correct_windows_that_wait(inputs):
    harness = harness_of(timedelta(minutes=2), inputs)
    differences = compare_sql(SQL, harness.sink_table("result"), inputs)
    assert not differences, str(differences)
    assert harness.sink("late") == []


def test_bids_too_late_are_set_aside_whole(inputs, tmp_path):
    harness = harness_of(timedelta(0), inputs)
    late = {bid.date_time for bid in harness.sink("late")}
    assert 20 < len(late) < 300
    bids = [event for event in generate(Shape(1500, gap_ms=100, late=0.1)) if type(event) is Bid]
    assert late <= {bid.date_time for bid in bids}
    (tmp_path / "bids").mkdir()
    rows = pa.concat_tables(pq.read_table(file) for file in (inputs / "bids").iterdir())
    is_kept = [int(at.timestamp() * 1000) not in late for at in rows["date_time"].to_pylist()]
    pq.write_table(rows.filter(pa.array(is_kept)), tmp_path / "bids" / "kept.parquet")
    differences = compare_sql(SQL, harness.sink_table("result"), tmp_path)
    assert not differences, str(differences)
