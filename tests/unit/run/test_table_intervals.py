"""Interval runs over Delta tables: which rows each takes, when it is done, and what comes late (no JVM)."""

from __future__ import annotations

import pytest

from headrace.errors import IntervalError
from tests.unit.support.dated_table import DatedTable, IntervalJob


def committed():
    """Return a table with rows of three days, the second with two commits."""
    written = DatedTable()
    written.append_at(0.5, "a", "b")
    written.append_at(1.1, "c")
    written.append_at(1.9, "d")
    written.append_at(2.5, "e")
    return written


def test_each_day_takes_its_commits():
    job = IntervalJob(committed())
    assert [job.took_days(number) for number in range(4)] == [["a", "b"], ["c", "d"], ["e"], []]


def test_week_gives_the_same_as_days():
    written = committed()
    daily, weekly = IntervalJob(written), IntervalJob(written)
    for number in range(4):
        daily.days(number)
    weekly.days(0, 4)
    assert daily.arrived() == weekly.arrived() == ["a", "b", "c", "d", "e"]


def test_done_interval_does_nothing():
    job = IntervalJob(committed())
    job.days(0)
    job.days(1)
    before = job.last.checkpoint_id
    assert [job.days(0).stopped_because, job.days(1).stopped_because] == ["done", "done"]
    assert job.last.checkpoint_id == before


def test_gap_is_refused():
    job = IntervalJob(committed())
    job.days(0)
    with pytest.raises(IntervalError, match=r"interval 2024-03-03 to 2024-03-04 would leave a gap"):
        job.days(2)


def test_rows_of_partitions_come_by_day():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", "d", of=[0, 1])
    written.append_at(0.6, "b", of=[0])
    job = IntervalJob(written)
    assert job.took_days(0) == ["a", "b"]
    written.append_at(1.5, "e", "f", of=[1, 2])
    assert job.took_days(1) == ["d", "e"]
    assert job.took_days(2) == ["f"]


def test_late_rows_of_a_partition_change_its_day():
    written = DatedTable(by_day=True)
    written.append_at(0.5, "a", of=[0])
    job = IntervalJob(written)
    job.days(0)
    assert job.days(0).stopped_because == "done"
    written.append_at(1.5, "late", "b", of=[0, 1])
    with pytest.raises(IntervalError, match=r"Its input has changed since: file .*day=2024-03-01.* is new") as caught:
        job.days(0)
    assert caught.value.is_taken_in
    report = job.days(1)
    assert job.arrived() == ["a", "b"]
    assert [warning.kind for warning in report.warnings] == ["added_file"]
    with pytest.raises(IntervalError, match=r"Its input has changed since: file .*day=2024-03-01.* is new"):
        job.days(0)
    assert job.days(1).stopped_because == "done"
