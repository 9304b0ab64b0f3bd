"""How the driver detects due timers of processing time (deltalake, no JVM). Times are milliseconds."""

from __future__ import annotations

import itertools

import pytest

from headrace.commit.protocol import open_job
from headrace.log.checkpoint import Kind
from headrace.log.facts import OperatorFacts
from headrace.run.due_timers import any_timer_due, conditions_of_due
from headrace.state.timers import EVENT_TIME, PROCESSING_TIME, PROCESSING_TIME_CLEANUP, Timer, TimerChange
from headrace.storage.predicate import BetweenTimes
from headrace.tables.changelog import Changelog, parts, stage_state
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import TIMERS
from tests.jobs import wake_ups
from tests.jobs.home import Home

A = b'"a"'


class Job:
    """Commits changes of timers as micro-batches do."""

    def __init__(self, opened):
        self.opened = opened
        self._names = itertools.count()

    def commit(self, *changes, operator="alarms", **fired):
        rows = Changelog(operator, self.opened.next_id, 128).timers([TimerChange(*change) for change in changes])
        folder = self.opened.config.job_folder
        staged = [
            stage_state(JobFolder(str(folder)), TIMERS, f"{next(self._names)}.parquet", part)
            for part in parts(TIMERS, rows)
        ]
        until = {name: OperatorFacts(fired_until={PROCESSING_TIME: timestamp}) for name, timestamp in fired.items()}
        self.opened.commit(Kind.BATCH, files={TIMERS: staged}, operators={**self.opened.last.operators, **until})

    def is_due(self, now):
        return any_timer_due(self.opened, now)


@pytest.fixture
def job(tmp_path):
    with open_job(Home(tmp_path, wake_ups.JOB).config(), "test", create=True) as opened:
        yield Job(opened)


def test_timer_is_due_at_its_time(job):
    assert not job.is_due(10**9)
    job.commit((Timer(1_000, A, PROCESSING_TIME), True), (Timer(5, A, EVENT_TIME), True))
    assert [job.is_due(now) for now in (999, 1_000, 1_001)] == [False, True, True]


def test_fired_or_deleted_timer_is_not_due(job):
    job.commit((Timer(1_000, A, PROCESSING_TIME), True), (Timer(2_000, A, PROCESSING_TIME, "w"), True))
    job.commit((Timer(1_000, A, PROCESSING_TIME), False))
    assert [job.is_due(now) for now in (1_999, 2_000)] == [False, True]


def test_due_cleanup_timer_makes_work_due(job):
    job.commit((Timer(1_000, A, PROCESSING_TIME_CLEANUP), True))
    assert [job.is_due(now) for now in (999, 1_000)] == [False, True]


def test_fired_timer_files_are_not_read_again(job):
    job.commit((Timer(1_000, A, PROCESSING_TIME), True), alarms=1_000, numbers=3_000)
    assert not job.is_due(2_000)
    assert BetweenTimes("timestamp", 1_000, 2_000) in conditions_of_due(job.opened, ["alarms", "numbers"], 2_000)
    job.commit((Timer(1_500, A, PROCESSING_TIME), True), alarms=1_000)
    assert job.is_due(2_000)


def test_all_timers_are_read_without_full_record(job):
    job.commit((Timer(1_000, A, PROCESSING_TIME), True), alarms=1_000)
    assert job.is_due(2_000)


def test_timers_of_former_operators_are_ignored(job):
    job.commit((Timer(1_000, A, PROCESSING_TIME), True), operator="formerly")
    assert not job.is_due(2_000)
