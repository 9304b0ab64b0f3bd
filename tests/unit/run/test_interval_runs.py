"""Interval runs on real checkpoints, with a micro-batch that records its files instead of processing them (no JVM)."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from headrace import clock
from headrace.edits.compact import compact
from headrace.edits.restore import restore
from headrace.errors import IntervalError, SourceError
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import day_name, day_start
from tests.unit.run.noted_job import noted_job


def rows_of_days(*numbers):
    return [[day_name(number)] for number in numbers]


@pytest.fixture
def job(tmp_path, monkeypatch):
    return noted_job(tmp_path, monkeypatch)


@contextmanager
def broken_off(place, visit):
    """Interrupt the run when it reaches a place for the n-th time."""
    visits = []

    def reached(name):
        visits.append(name)
        if name == place and visits.count(place) == visit:
            raise ZeroDivisionError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("headrace.crash_points.reached", reached)
        with pytest.raises(ZeroDivisionError):
            yield


def test_taken_in_interval_is_done(job):
    job.straight()
    before = checkpoints(job.home.config())
    for first, end in ((1, None), (0, None), (1, 3), (2, None)):
        assert job.days(first, end).stopped_because == "done"
    assert checkpoints(job.home.config()) == before
    assert job.contents == rows_of_days(0, 1, 2)


def test_done_run_reports_its_own_interval(job):
    job.straight()
    report = job.days(0)
    assert (report.interval_start, report.interval_end) == (day_start(0), day_start(1))


def test_interval_taken_in_by_half_is_refused(job):
    job.straight()
    before = checkpoints(job.home.config())
    with pytest.raises(
        IntervalError, match=r"in part: .* up to 2024-03-04\. Nothing was changed\. Run the rest"
    ) as caught:
        job.days(2, 4)
    assert (caught.value.exit_code, caught.value.is_taken_in) == (9, False)
    assert checkpoints(job.home.config()) == before


@pytest.mark.parametrize("run_id", ["the same", "another"])
@pytest.mark.parametrize("changed_day", [0, 1, 2])
def test_interval_with_changed_input_is_refused(job, run_id, changed_day):
    for number in range(3):
        job.days(number, run_id="the same")
    before = checkpoints(job.home.config())
    job.rewrite(changed_day)
    with pytest.raises(IntervalError, match=r"Its input has changed since: .*Nothing was changed.*backfill") as caught:
        job.days(changed_day, run_id=run_id)
    assert caught.value.is_taken_in
    assert caught.value.changes == (
        f"file {day_name(changed_day)} of source 'purchases' has changed since checkpoint {changed_day + 1} took it in",
    )
    other = job.days((changed_day + 1) % 3, run_id=run_id)
    assert other.stopped_because == "done"
    assert checkpoints(job.home.config()) == before


@pytest.mark.parametrize("run_id", ["the same", "another"])
def test_interval_asked_for_again_is_refused(job, run_id):
    before_all = clock.now()
    job.days(0, run_id="the same")
    job.days(1, run_id="the same", recompute=before_all)
    assert job.days(1, run_id=run_id, recompute=before_all).stopped_because == "done"
    with pytest.raises(
        IntervalError, match=r"taken in already: .* Nothing was changed\. To compute it again"
    ) as caught:
        job.days(1, run_id=run_id, recompute=clock.now() + 1)
    assert (caught.value.is_taken_in, caught.value.changes) == (True, ())


@pytest.mark.slow
def test_interval_runs_again_after_a_restore_by_hand(job):
    job.straight()
    restore(job.home.config(), 1, "back to the first day", "somebody")
    with pytest.raises(IntervalError, match=r"gap: .* up to 2024-03-02 \(checkpoint 4 restored it to checkpoint 1\)"):
        job.days(2)
    job.days(1)
    assert job.contents == rows_of_days(0, 1)


def test_touched_files_leave_the_interval_done(job):
    job.straight()
    for number in range(3):
        os.utime(job.home.input / day_name(number), (5, 5))
    assert job.days(1).stopped_because == "done"


def test_late_file_names_the_backfill(job):
    (job.home.input / day_name(1)).unlink()
    job.straight()
    job.write(1)
    with pytest.raises(
        SourceError,
        match="'headrace backfill purchases --from 2024-03-02 --to 2024-03-03' computes its interval again, on a branch",
    ) as caught:
        job.days(3)
    assert caught.value.exit_code == 7


@pytest.mark.slow
def test_retry_after_its_commit_is_done(job):
    job.straight(2)
    with broken_off("commit.after", 1):
        job.days(2, run_id="scheduled")
    report = job.days(2, run_id="scheduled")
    assert (report.stopped_because, report.checkpoints, job.contents) == ("done", [], rows_of_days(0, 1, 2))
    assert job.messages("done")


@pytest.mark.slow
def test_late_files_are_found_over_compactions_and_restores(job):
    (job.home.input / day_name(1)).unlink()
    job.straight()
    compact(job.home.config(), "nightly")
    restore(job.home.config(), 2, "by hand", "somebody")
    job.days(2)
    (job.home.input / day_name(0)).unlink()
    job.write(1)
    for run in (job.run, lambda: job.days(3)):
        with pytest.raises(SourceError, match=day_name(1)):
            run()
