"""Runs that take in missing intervals before their own: the tables are those of runs of each interval."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from headrace import Pipeline, Struct, Timestamp
from headrace.errors import IntervalError, UserFunctionError
from headrace.log.checkpoint import Kind
from headrace.run.job_run import _published
from headrace.sources.interval import Interval
from headrace.testing import PipelineHarness
from tests.unit.run.dated_table import DatedTable, IntervalJob, days

BERLIN = ZoneInfo("Europe/Berlin")
DAYS = [datetime(2024, 3, day, tzinfo=BERLIN) for day in (28, 29, 30, 31)] + [
    datetime(2024, 4, day, tzinfo=BERLIN) for day in (1, 2)
]
"""The fourth one has 23 hours."""
EDGES = [round(day.timestamp() * 1000) for day in DAYS]


class Row(Struct, frozen=True):
    """A row of a day."""

    name: str
    at: Timestamp


def copied(row: Row) -> Row:
    """Return the row."""
    return row


def refused(row: Row) -> Row:
    """Return the row; fail for that of the third day."""
    if row.name == "row 2":
        msg = "bad row"
        raise ValueError(msg)
    return row


def pipeline_of(step):
    return Pipeline("job").source("rows", Row, event_time="at").map(step).sink("taken")


def harness_of_days(step=copied, **run):
    """Return a job over one file a day in Berlin."""
    source = {"interval": "%Y-%m-%d", "timezone": "Europe/Berlin"}
    return PipelineHarness(pipeline_of(step), job={"sources": {"rows": source}, "run": run}, now=EDGES[-1])


def feed_days(harness, numbers):
    for number in numbers:
        harness.feed("rows", [Row(f"row {number}", EDGES[number])], file=f"{DAYS[number]:%Y-%m-%d}.parquet")


def run_day(harness, number, **options):
    return harness.run(mode="interval", interval_start=EDGES[number], interval_end=EDGES[number + 1], **options)


def names_of(harness):
    return sorted(row.name for row in harness.sink("taken"))


def test_gap_is_refused_with_both_ways_on():
    harness = harness_of_days()
    feed_days(harness, range(5))
    run_day(harness, 0)
    with pytest.raises(IntervalError, match=r"would leave a gap: (?s:.*)--fill, or run.gaps: fill"):
        run_day(harness, 2)
    assert names_of(harness) == ["row 0"]


@pytest.mark.parametrize("by_file", [True, False])
def test_missing_intervals_come_first_in_one_run(by_file):
    harness = harness_of_days(**({"gaps": "fill"} if by_file else {}))
    feed_days(harness, range(3))
    run_day(harness, 0)
    report = run_day(harness, 2, **({} if by_file else {"fill": True}))
    assert names_of(harness) == ["row 0", "row 1", "row 2"]
    assert (len(report.checkpoints), report.stopped_because) == (2, "interval")
    assert (report.interval_start, report.interval_end) == (EDGES[2], EDGES[3])
    assert report.intervals == tuple(pairwise(EDGES[1:4]))


def test_day_of_23_hours_is_not_cut():
    harness = harness_of_days(gaps="fill")
    feed_days(harness, range(5))
    run_day(harness, 0)
    report = run_day(harness, 4)
    assert names_of(harness) == [f"row {number}" for number in range(5)]
    assert report.stopped_because == "interval"


def test_filled_days_are_done_one_by_one():
    harness = harness_of_days(gaps="fill")
    feed_days(harness, range(5))
    run_day(harness, 0)
    run_day(harness, 4)
    again = [run_day(harness, number) for number in range(5)]
    assert [report.stopped_because for report in again] == ["done"] * 5
    assert [report.intervals for report in again] == [(day,) for day in pairwise(EDGES)]
    assert names_of(harness) == [f"row {number}" for number in range(5)]


def test_failed_fill_goes_on_where_it_stopped():
    harness = harness_of_days(refused, gaps="fill")
    feed_days(harness, range(3))
    run_day(harness, 0)
    with pytest.raises(UserFunctionError, match="bad row"):
        run_day(harness, 2)
    assert names_of(harness) == ["row 0", "row 1"]
    harness.change(pipeline=pipeline_of(copied))
    run_day(harness, 2)
    assert names_of(harness) == ["row 0", "row 1", "row 2"]


@pytest.mark.parametrize("held", [None, 0, 1])
@pytest.mark.parametrize("reason", ["interval", "budget"])
def test_day_of_held_records_is_not_published(held, reason):
    """The run that has finished a day names it, also if its records were taken in by an earlier one."""
    first, second = (Interval(*edges) for edges in pairwise(EDGES[:3]))
    last = SimpleNamespace(interval=second, holds_records=reason == "budget")
    committed = [SimpleNamespace(kind=Kind.BATCH, interval=second)]
    batches = SimpleNamespace(committed=committed, job=SimpleNamespace(last=last))
    owed = None if held is None else (first, second)[held]
    published = {first} if held == 0 else set()
    if reason == "interval":
        published |= {second}
    assert _published(second, owed, batches, reason) == tuple(sorted((day.start, day.end) for day in published))


def test_caught_up_run_names_no_days():
    harness = harness_of_days()
    feed_days(harness, range(3))
    assert harness.run(mode="caught_up").intervals == ()


def test_limit_of_micro_batches_ends_the_fill():
    harness = harness_of_days(gaps="fill")
    feed_days(harness, range(4))
    run_day(harness, 0)
    reports = [run_day(harness, 3, max_batches=1)]
    while reports[-1].interval_end != EDGES[4] or len(names_of(harness)) < 4:
        assert len(reports) < 5
        reports.append(run_day(harness, 3, max_batches=1))
    assert names_of(harness) == [f"row {number}" for number in range(4)]


@pytest.mark.parametrize("place", ["commit.before", "ingest.after", "commit.after"])
def test_crash_while_filling_loses_and_repeats_nothing(place):
    harness = harness_of_days(gaps="fill")
    feed_days(harness, range(3))
    run_day(harness, 0)
    with harness.crashing_at(place):
        run_day(harness, 2)
    run_day(harness, 2)
    assert names_of(harness) == ["row 0", "row 1", "row 2"]


@pytest.mark.slow
@pytest.mark.parametrize("by_day", [False, True])
def test_gaps_of_tables_are_filled(by_day):
    def written():
        table = DatedTable(by_day=by_day)
        for number, name in enumerate("abcd"):
            table.append_at(number + 0.5, name, **({"of": [number]} if by_day else {}))
        return table

    daily, filled = IntervalJob(written()), IntervalJob(written())
    for number in range(4):
        daily.days(number)
    filled.days(0)
    filled.days(3, fill=True)
    assert filled.arrived() == daily.arrived() == ["a", "b", "c", "d"]


def test_parts_cover_an_interval():
    parts = days(0, 7).parts(days(0, 2).end - days(0).start)
    assert (parts[0].start, parts[-1].end) == (days(0).start, days(6).end)
    assert all(before.end == after.start for before, after in pairwise(parts))
