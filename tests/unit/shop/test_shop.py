"""The shop of a newcomer: the tables equal those of SQL over the files, whatever the runs, the buckets and the rows that are wrong."""

from __future__ import annotations

from datetime import UTC, date, datetime

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import given

from headrace.testing import PipelineHarness
from tests.jobs.shop import JOB, Book, expected, pipeline
from tests.unit.support.fuzzing import examples

NOW = round(datetime(2026, 4, 1, tzinfo=UTC).timestamp() * 1000)
SOURCE = {"sources": {"events": JOB["sources"]["events"]}}


def shop(**options):
    return PipelineHarness(pipeline, now=NOW, job=SOURCE, **options)


def deliver(harness, files):
    for name, content in files:
        harness.feed_bytes("events", content, file=name)


def tables(harness):
    return {sink: rows_of(harness.sink_table(sink)) for sink in ("alerts", "alerts_by_day", "sales_by_day")}


def rows_of(table: pa.Table):
    """Return the rows sorted, with naive times, as DuckDB gives them."""
    rows = ([naive(value) for value in row.values()] for row in table.to_pylist())
    return sorted(map(tuple, rows))


def naive(value):
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


@pytest.mark.slow
@examples(5)
@given(
    seed=st.integers(0, 9999),
    cuts=st.sets(st.integers(1, 11), max_size=5),
    bucket=st.sampled_from([1, 7, 1000]),
    parallelism=st.sampled_from([1, 3]),
)
def test_alerts_and_sales_equal_sql_over_the_files(seed, cuts, bucket, parallelism):
    harness = shop(bucket=bucket, parallelism=parallelism)
    files = [*Book(seed).files()]
    for first, last in zip([0, *sorted(cuts)], [*sorted(cuts), len(files)], strict=True):
        deliver(harness, files[first:last])
        harness.run()
    harness.run(end_of_input=True)
    assert tables(harness) == expected(harness.folder / "input" / "events")


WRONG = {
    "a clock that runs ahead": b'{"order_id": "o9", "customer": "c0", "what": "placed", "at": "2099-01-01T00:00:00Z", "cents": 100}\n',
    "a cell that is no number": b'{"order_id": "o9", "customer": "c0", "what": "placed", "at": "2026-03-05T12:00:00Z", "cents": "oops"}\n',
    "both": b'{"order_id": "o9", "customer": "c0", "what": "placed", "at": "2099-01-01T00:00:00Z", "cents": "oops"}\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("row", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("bucket", [1, 1000])
def test_wrong_row_costs_no_other_row(row, bucket):
    harness = shop(bucket=bucket)
    quarantined = 0
    for name, content in Book(seed=3).files():
        deliver(harness, [(name, row + content if name == "2026-03-05.json" else content)])
        quarantined += harness.run().quarantined
    harness.run(end_of_input=True)
    assert tables(harness) == expected(harness.folder / "input" / "events", horizon=date(2027, 1, 1))
    assert quarantined == 1


def test_corrected_day_is_named():
    harness = shop()
    (name, content), *others = Book(4).files()
    deliver(harness, [(name, content), *others])
    harness.run()
    (harness.folder / "input" / "events" / name).write_bytes(content + WRONG["a cell that is no number"])
    report = harness.run()
    assert report.rows_in == 0
    assert any(name in warning.message for warning in report.warnings)


def test_run_says_why_windows_wait():
    harness = shop()
    deliver(harness, Book(5).files())
    report = harness.run()
    assert tables(harness)["sales_by_day"] == []
    assert [wait.sources for wait in report.watermark_waits] == [("events",)]
