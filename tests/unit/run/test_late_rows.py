"""Late rows: counted by operator in the report of a run, in its warnings, and in checkpoints."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import pytest

from headrace import JoinType, Late, Lifetime, Pipeline, Struct, Timestamp
from headrace.log.facts import RowTimes
from headrace.log.log import CheckpointLog
from headrace.log.warnings import WatermarkWait, row_times_of
from headrace.operators import Count, Session, Tumbling
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness

TEN = timedelta(milliseconds=10)
WINDOWS = Tumbling(TEN)


class Sale(Struct, frozen=True):
    shop: str
    at: Timestamp


class Hourly(Struct, frozen=True):
    shop: str
    n: Annotated[int, Count()]


def windowed(windows=WINDOWS, *, side=False):
    sales = Pipeline("late").source("sales", Sale, event_time="at").key_by("shop").window(windows)
    counts = sales.aggregate("counts", Hourly)
    return (counts.side_output("late", Sale, sink="too_late") if side else counts).sink("out")


def joined(kind):
    pipeline = Pipeline("late")
    left = pipeline.source("sales", Sale, event_time="at").key_by("shop")
    right = pipeline.source("others", Sale, event_time="at").key_by("shop")
    if kind == "as of":
        stream = left.join_as_of("join", right, emit=either, state_ttl=Lifetime.FOREVER)
    elif kind == "window":
        stream = left.window(Tumbling(TEN)).join("join", right.window(Tumbling(TEN)), emit=either)
    else:
        stream = left.join("join", right, emit=either, how=kind, within=(-TEN, TEN))
    return stream.sink("out")


def either(sale, other) -> Sale:
    return sale or other


def run(pipeline, times, **feeds):
    harness = PipelineHarness(pipeline, bucket=1)
    for name, fed in {"sales": times, **feeds}.items():
        harness.feed(name, [Sale("a", time) for time in fed])
    return harness, harness.run(end_of_input=True)


@pytest.mark.parametrize("windows", [WINDOWS, Session(gap=TEN)])
def test_windows_count_dropped_rows(windows):
    _, report = run(windowed(windows), [0, 95, 5, 94])
    # Both 5 and 94 lie behind the watermark 94, but the window of 94 is still open.
    assert report.row_times["counts"] == RowTimes(behind=2, dropped=1)
    (warning,) = report.warnings
    assert (warning.kind, warning.fields["operator"], warning.fields["dropped"]) == ("late", "counts", 1)
    assert warning.message.startswith("1 row came too late for 'counts' and was dropped (2 arrived behind")


def test_side_output_takes_late_rows():
    harness, report = run(windowed(side=True), [0, 95, 5, 94])
    assert report.row_times["counts"] == RowTimes(behind=2, to_side_output=1)
    assert (report.warnings, harness.sink("too_late")) == ((), [Sale("a", 5)])


def over(**options):
    sales = Pipeline("late").source("sales", Sale, event_time="at").key_by("shop")
    return sales.over("counts", Hourly, within=TEN, **options).sink("out")


def test_over_counts_dropped_rows():
    _, report = run(over(), [0, 95, 5, 90])
    assert report.row_times["counts"] == RowTimes(behind=2, dropped=2)
    _, corrected = run(over(late=Late.CORRECT, keep=TEN), [0, 95, 5, 90])
    assert corrected.row_times["counts"] == RowTimes(behind=2, dropped=1)


@pytest.mark.parametrize("kind", [JoinType.INNER, JoinType.LEFT, JoinType.FULL, "window", "as of"])
def test_joins_count_dropped_rows(kind):
    # in arrival order: 0, 50, 5 of the left side behind them, and 100 of both sides
    _, report = run(joined(kind), [0, 50, 5, 100], others=[100])
    assert report.row_times["join"] == RowTimes(behind=1, dropped=1)


def test_status_and_report_add_up_the_run():
    harness = PipelineHarness(windowed(), bucket=1, files_per_batch=1)
    for times in ([0, 100], [5], [6, 200], [7]):
        harness.feed("sales", [Sale("a", time) for time in times])
    report = harness.run()
    assert (len(report.checkpoints), report.row_times["counts"]) == (4, RowTimes(behind=3, dropped=3))
    log = CheckpointLog(JobFolder.of(harness.config))
    assert row_times_of(log.checkpoints) == report.row_times


@pytest.mark.parametrize("place", ["commit.after", "publish.after", "commit.before:2"])
def test_counts_of_a_dead_run_are_reported(place):
    harness = PipelineHarness(windowed(), bucket=1, files_per_batch=1)
    for times in ([0, 100, 5], [200]):
        harness.feed("sales", [Sale("a", time) for time in times])
    assert harness.run(crash_at=place) is None
    report = harness.run()
    assert report.row_times["counts"] == RowTimes(behind=1, dropped=1)
    assert "came too late for 'counts'" in report.warnings[0].message
    assert (harness.run().row_times, harness.run().warnings) == ({}, ())


DAY = 86_400_000


def waiting(sizes, *, bucket=1000, pipeline=None):
    """Feed a file of rows a day apart for each number, run after each, and return the waits of each report."""
    harness = PipelineHarness(pipeline or windowed(), bucket=bucket)
    waits, days = [], 0
    for size in sizes:
        harness.feed("sales", [Sale("a", (days + number) * DAY) for number in range(size)])
        days += size
        waits.append(harness.run().watermark_waits)
    return harness, waits


def test_report_says_how_many_rows_are_missing():
    # The second row, a day later, ends the window of the first; the default bucket has 1,000 rows.
    harness, [waits] = waiting([2])
    assert (harness.sink("out"), waits) == ([], (WatermarkWait(("sales",), 998, 1000, 1),))
    (event,) = (event for event in harness.events if event.kind == "watermark")
    assert event.message.startswith(
        "1 timer of event time, such as those of windows, waits for the watermark of 'sales'"
    )
    assert (
        "it moves after each 1,000 rows, and 998 more rows are missing. A job that begins with a smaller"
        in event.message
    )


def test_nothing_is_missing_at_a_full_bucket():
    _, waits = waiting([2, 1, 1, 3], bucket=2)
    missing = [[(wait.rows_missing, wait.timers) for wait in of_run] for of_run in waits]
    assert missing == [[], [(1, 1)], [], [(1, 1)]]


def test_rows_without_timers_wait_for_nothing():
    _, waits = waiting([2], pipeline=Pipeline("plain").source("sales", Sale, event_time="at").sink("out"))
    assert waits == [()]
