"""Interval runs on real checkpoints, with a micro-batch that records its files instead of processing them (no JVM)."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from headrace import clock
from headrace.commit.checkpoint import Kind
from headrace.commit.compaction import compact
from headrace.commit.restore import restore
from headrace.errors import ConfigError, IntervalError, ReplayUnfinishedError, SourceError
from headrace.spark.batch_sequence import BatchSequence
from tests.jobs.outcome import assert_well_formed, checkpoints
from tests.jobs.purchase_files import day_name, day_start
from tests.unit.support.noted_job import noted_job


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
        patched.setattr("headrace.faults.reached", reached)
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


def test_replay_takes_all_later_intervals_in_again(job):
    job.straight()
    report = job.days(0, replay=True)
    assert report.stopped_because == "interval"
    assert job.contents == rows_of_days(0, 1, 2)
    assert [c.kind for c in checkpoints(job.home.config())[4:]] == [Kind.RESTORE, Kind.BATCH, Kind.BATCH, Kind.BATCH]
    assert "checkpoints 1 to 3 (2024-03-01 to 2024-03-04, 0 rows in) leave" in job.messages()
    assert job.messages("replayed")
    assert_well_formed(job.home.config())


def test_last_interval_is_replayed_alone(job):
    job.straight()
    assert len(job.days(2, replay=True).checkpoints) == 2
    assert job.contents == rows_of_days(0, 1, 2)


def test_replay_of_a_new_interval_continues_the_job(job):
    job.straight(2)
    job.days(2, replay=True)
    assert (job.contents, job.messages()) == (rows_of_days(0, 1, 2), "")


def test_replay_repeats_slices_of_caught_up_runs(job):
    job.home.configure({"sources": {"purchases": {"max_files_per_batch": 2}}})
    job.run()
    job.days(1, replay=True)
    assert job.contents == [*rows_of_days(0, 1), [day_name(2), day_name(3)]]


def test_slices_without_intervals_are_repeated_by_files(job):
    limits = {"max_files_per_batch": 1, "interval": None}
    job.days(0)
    job.home.configure({"sources": {"purchases": limits}})
    job.run(max_batches=2)
    job.home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    job.days(0, replay=True)
    assert job.contents == rows_of_days(0, 1, 2)
    job.run()
    assert job.contents == rows_of_days(0, 1, 2, 3)


@pytest.mark.parametrize(
    ("place", "visit", "mode"),
    [
        ("commit.after", 1, "interval"),
        ("run.after", 1, "caught_up"),
        ("commit.before", 2, "interval"),
        ("commit.after", 2, "caught_up"),
        ("run.after", 3, "interval"),
        ("commit.after", 4, "caught_up"),
    ],
)
def test_any_run_continues_an_interrupted_replay(job, place, visit, mode):
    job.straight()
    with broken_off(place, visit):
        job.days(0, replay=True)
    assert len(job.contents) < 4
    (job.days(3) if mode == "interval" else job.run())
    assert job.contents == rows_of_days(0, 1, 2, 3)


def test_restore_that_never_committed_changes_nothing(job):
    job.straight()
    with broken_off("commit.before", 1):
        job.days(0, replay=True)
    job.days(3)
    assert (job.contents, job.messages()) == (rows_of_days(0, 1, 2, 3), "")


@pytest.mark.parametrize(("limit", "missing"), [("max_batches", "2024-03-02"), ("budget", "2024-03-01")])
def test_replay_out_of_budget_is_reported(job, monkeypatch, limit, missing):
    job.straight()
    if limit == "budget":
        monkeypatch.setattr(BatchSequence, "seconds_left", lambda run: 1.0 - len(run.committed))
    report = job.days(0, replay=True, max_batches=1)
    assert report.stopped_because == limit
    assert f"state and sinks lack {missing} to 2024-03-04. The next run goes on with it" in job.messages()


def test_stopped_replay_leaves_the_rest(job, monkeypatch):
    job.straight()
    batch = BatchSequence.make

    def stopped_after(self, *arguments, **options):
        batch(self, *arguments, **options)
        self.stop()

    with monkeypatch.context() as patched:
        patched.setattr(BatchSequence, "make", stopped_after)
        assert job.days(0, replay=True).stopped_because == "terminated"
    assert job.contents == rows_of_days(0)
    job.run()
    assert "lack 2024-03-02 to 2024-03-04: going on" in job.messages()
    assert job.contents == rows_of_days(0, 1, 2, 3)


def test_replay_without_budget_is_not_begun(job):
    job.straight()
    before = checkpoints(job.home.config())
    assert job.days(0, replay=True, budget=0.0).stopped_because == "budget"
    assert "nothing was changed" in job.messages()
    assert checkpoints(job.home.config()) == before


def test_interval_behind_an_unfinished_replay_fails(job):
    job.straight()
    job.days(0, replay=True, max_batches=1)
    with pytest.raises(
        ReplayUnfinishedError,
        match=r"03-04 to 2024-03-05 was not taken in: .*replay of interval 2024-03-01 to 2024-03-02",
    ):
        job.days(3, max_batches=1)
    job.days(3)
    assert job.contents == rows_of_days(0, 1, 2, 3)


def test_retry_continues_its_replay(job):
    job.straight()
    job.days(0, replay=True, max_batches=2, run_id="asked")
    report = job.days(0, replay=True, run_id="asked")
    assert (len(report.checkpoints), job.contents) == (1, rows_of_days(0, 1, 2))


def test_second_replay_takes_new_input(job):
    """The run id is the same: it decides nothing."""
    job.straight()
    job.days(0, replay=True, run_id="asked")
    begun_at = clock.now()
    job.rewrite(0)
    report = job.days(0, replay=True, run_id="asked")
    assert (len(report.checkpoints), job.contents) == (4, rows_of_days(0, 1, 2))
    retry = job.days(0, replay=True, run_id="asked", recompute=begun_at)
    assert (retry.checkpoints, retry.stopped_because) == ([], "done")


def test_replay_takes_touched_files_in_again(job):
    job.straight()
    for number in range(3):
        os.utime(job.home.input / day_name(number), (5, 5))
    job.days(1, replay=True)
    assert job.contents == rows_of_days(0, 1, 2)
    assert job.days(1).stopped_because == "done"


def test_open_replay_of_changed_input_begins_anew(job):
    job.straight()
    job.days(0, replay=True, max_batches=2, run_id="asked")
    job.rewrite(0)
    report = job.days(0, replay=True, run_id="asked")
    assert (len(report.checkpoints), job.contents) == (4, rows_of_days(0, 1, 2))


def test_new_replay_may_replace_an_open_one(job):
    job.straight()
    job.days(1, replay=True, max_batches=1)
    job.days(0, replay=True)
    assert job.contents == rows_of_days(0, 1, 2)


def test_open_replay_of_the_interval_is_reused(job):
    job.straight()
    job.days(1, replay=True, max_batches=1)
    report = job.days(2, replay=True)
    assert (len(report.checkpoints), job.contents) == (1, rows_of_days(0, 1, 2))


def test_done_interval_still_finishes_a_replay(job):
    job.straight()
    job.days(0, replay=True, max_batches=1)
    assert job.days(0).stopped_because == "done"
    assert job.contents == rows_of_days(0, 1, 2)


def test_refused_interval_still_finishes_a_replay(job):
    job.straight()
    job.days(1, replay=True, max_batches=1)
    job.rewrite(0)
    with pytest.raises(IntervalError, match="Nothing but the open replay, which was finished, was changed"):
        job.days(0)
    assert job.contents == rows_of_days(0, 1, 2)


def test_restore_by_hand_ends_a_replay(job):
    job.straight()
    job.days(0, replay=True, max_batches=1)
    restore(job.home.config(), 1, "back to the first day", "somebody")
    with pytest.raises(IntervalError, match=r"gap: .* up to 2024-03-02 \(checkpoint 6 restored it to checkpoint 1\)"):
        job.days(2)
    job.days(1)
    assert (job.contents, job.messages()) == (rows_of_days(0, 1), "")


def test_retry_after_its_commit_is_done(job):
    job.straight(2)
    with broken_off("commit.after", 1):
        job.days(2, run_id="scheduled")
    report = job.days(2, run_id="scheduled")
    assert (report.stopped_because, report.checkpoints, job.contents) == ("done", [], rows_of_days(0, 1, 2))
    assert job.messages("done")


def test_replay_needs_an_interval(job):
    with pytest.raises(ConfigError, match="--replay runs an interval again: it needs --mode interval"):
        job.run(replay=True)


def test_replay_without_pattern_restores_nothing(job):
    job.straight()
    job.home.configure({"sources": {"purchases": {"interval": None}}})
    with pytest.raises(ConfigError, match="no 'interval' pattern"):
        job.days(0, replay=True)
    assert len(checkpoints(job.home.config())) == 4


def test_replay_takes_a_late_file_in(job):
    (job.home.input / day_name(1)).unlink()
    job.straight()
    job.write(1)
    with pytest.raises(SourceError, match=r"run interval 2024-03-02 to 2024-03-03 again with --replay") as caught:
        job.days(3)
    assert caught.value.exit_code == 7
    before = checkpoints(job.home.config())
    with pytest.raises(SourceError, match=day_name(1)):  # the file would still be late for this run
        job.days(2, replay=True)
    assert checkpoints(job.home.config()) == before
    job.days(1, replay=True)
    job.days(3)
    assert job.contents == rows_of_days(0, 1, 2, 3)


def test_late_file_in_a_replay_is_replayed(job):
    (job.home.input / day_name(1)).unlink()
    job.straight()
    job.days(1, replay=True, max_batches=1)
    job.write(1)
    for _ in range(2):
        with pytest.raises(SourceError, match=r"run interval 2024-03-02 to 2024-03-03 again with --replay"):
            job.run()
    job.days(1, replay=True)
    assert job.contents == rows_of_days(0, 1, 2)


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


def test_deleted_files_are_reported(job):
    job.straight()
    (job.home.input / day_name(1)).unlink()
    job.days(1, replay=True)
    assert "1 file(s) that were taken in before are gone" in job.messages()
    assert job.contents == [*rows_of_days(0), [], *rows_of_days(2)]
