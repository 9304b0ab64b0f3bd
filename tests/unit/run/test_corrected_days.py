"""Histories of daily files and of their runs: each correction is in the tables, or the run, `status` and a refusal name it."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline
from headrace.commit.input_report import input_remarks
from headrace.errors import HeadraceError, IntervalError
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from tests.unit.support.backfilled_job import BackfilledJob, days, file_of
from tests.unit.support.branched_job import Order
from tests.unit.support.fuzzing import examples

DAYS = st.integers(0, 3)
ACTS = st.one_of(
    st.tuples(st.just("write"), DAYS, st.integers(1, 2)),
    st.tuples(st.sampled_from(["run", "run", "run again", "backfill", "touch"]), DAYS, st.just(0)),
)


class Days:
    """A job that copies daily files, and a plain model of it: the content that each day has in the tables."""

    def __init__(self):
        self.job = BackfilledJob(Pipeline("shop").source("orders", Order, event_time="at").sink("out"))
        self.present, self.computed, self.position = {}, {}, 0

    @property
    def changed(self):
        return {day for day in range(self.position) if self.present.get(day) != self.computed.get(day)}

    @property
    def rows(self):
        table = self.job.harness.sink_table("out")
        return sorted(table["amount"].to_pylist()) if table.num_rows else []

    def write(self, day, content):
        self.present[day] = 10 * day + content
        self.job.write(day, ("ann", self.present[day]))
        self.touch(day)

    def touch(self, day):
        if day in self.present:
            self.job.harness.clock.advance(1000)
            os.utime(self.job.path(day), (self.job.harness.clock.now() / 1000,) * 2)

    def run(self, day, *, again=False):
        """Run a day as a scheduler does; with `again` somebody asked for it just now."""
        self.job.harness.clock.advance(1000)
        interval = {"interval_start": days(day).start, "interval_end": days(day).end}
        asked = self.job.harness.clock.now() if again else None
        try:
            report = self.job.harness.run(mode="interval", recompute=asked, **interval)
        except HeadraceError as error:
            self.assert_right_to_refuse(day, error, again=again)
            return
        if day == self.position:
            self.position += 1
            if day in self.present:
                self.computed[day] = self.present[day]
        else:
            assert (report.stopped_because, report.rows_in) == ("done", 0)
            assert day not in self.changed
            assert not again

    def assert_right_to_refuse(self, day, error, *, again):
        if day > self.position:
            assert "gap" in str(error)
        elif day < self.position and isinstance(error, IntervalError):
            assert error.is_taken_in
            assert again or day in self.changed
            assert bool(error.changes) == (day in self.changed)
        else:
            late = [other for other in self.changed if other not in self.computed]
            assert any(file_of(other) in str(error) for other in late)

    def backfill(self, day):
        if day >= self.position:
            return
        self.job.harness.clock.advance(1000)
        self.job.backfill(days(day), promote="automatic")
        self.computed = {other: content for other, content in self.present.items() if other < self.position}

    def assert_nothing_is_silent(self):
        assert self.rows == sorted(self.computed.values())
        line = CheckpointLog(JobFolder(self.job.config.job_folder)).lineage.checkpoints
        named = {remark.file for remark in input_remarks(self.job.config, line)}
        assert named == {file_of(day) for day in self.changed}


@pytest.mark.slow
@examples(12)
@given(acts=st.lists(ACTS, min_size=4, max_size=9))
def test_no_correction_of_a_day_is_silent(acts):
    history = Days()
    history.write(0, 1)
    history.run(0)
    for verb, day, content in acts:
        if verb == "write":
            history.write(day, content)
        elif verb == "touch":
            history.touch(day)
        elif verb == "backfill":
            history.backfill(day)
        else:
            history.run(day, again=verb == "run again")
        history.assert_nothing_is_silent()


def test_day_corrected_twice_is_named_until_backfilled():
    history = Days()
    for day in range(3):
        history.write(day, 1)
        history.run(day)
    for content in (2, 3):
        history.write(1, content)
        history.run(1)
        history.assert_nothing_is_silent()
    history.backfill(1)
    assert history.changed == set()
    history.assert_nothing_is_silent()
    history.run(1)
