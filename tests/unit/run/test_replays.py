"""The steps of a replay on a branch, and how a later run knows what is left. Days are numbered from 1970-01-01."""

from __future__ import annotations

import pytest

from headrace.log.checkpoint import Kind
from headrace.log.facts import Requeued
from headrace.run.replay import branch_replay
from headrace.sources.position import FolderPosition, RequeuedRows, SourceFacts
from tests.unit.support.checkpoint_lines import DAY, Line, days


class Replayed:
    """A job, and a branch that forks at one of its checkpoints."""

    def __init__(self):
        self.job, self.branch = Line(), Line()

    def fork(self, checkpoint_id):
        self.fork_id = checkpoint_id
        self.branch.checkpoints = self.job.checkpoints[: checkpoint_id + 1]
        return self.branch

    def replay(self, asked):
        return branch_replay(asked, self.job.checkpoints, self.branch.checkpoints, self.fork_id)

    def steps(self, asked):
        replay = self.replay(asked)
        return [] if replay is None else [step.interval or step.sources["source"].last for step in replay.parts]


@pytest.fixture
def replayed():
    return Replayed()


def test_replay_takes_all_later_intervals_in(replayed):
    replayed.job.days(1, 2, 3, 4)
    replayed.fork(1)
    assert replayed.steps(days(2)) == [days(2), days(3), days(4)]


def test_replay_of_last_interval_has_one_step(replayed):
    replayed.job.days(1, 2)
    replayed.fork(1)
    assert replayed.steps(days(2)) == [days(2)]


def test_replay_within_a_slice_takes_the_slice(replayed):
    replayed.job.days(1).take_in(days(2, 5)).days(5)
    replayed.fork(1)
    assert replayed.steps(days(3)) == [days(2, 5), days(5)]


def test_micro_batches_without_input_are_no_steps(replayed):
    replayed.job.days(1).again(Kind.BATCH).days(2).again(Kind.BATCH).again(Kind.COMPACTION).days(3)
    replayed.fork(0)
    assert replayed.steps(days(1)) == [days(1), days(2), days(3)]


def test_slices_without_interval_are_taken_by_files(replayed):
    replayed.job.days(1).files("b", "c").again(Kind.BATCH).days(5)
    replayed.fork(0)
    assert replayed.steps(days(1)) == [days(1), "b", "c", days(5)]


def test_steps_that_were_taken_are_left_out(replayed):
    replayed.job.days(1, 2, 3)
    branch = replayed.fork(0).days(1)
    assert replayed.steps(days(1)) == [days(2), days(3)]
    branch.days(2, 3)
    assert replayed.replay(days(1)) is None


def test_later_days_of_the_job_are_added(replayed):
    replayed.job.days(1, 2)
    replayed.fork(1).days(2)
    assert replayed.replay(days(2)) is None
    replayed.job.days(3)
    assert replayed.steps(days(2)) == [days(3)]


def test_files_that_were_taken_are_left_out(replayed):
    replayed.job.days(1).files("b", "c")
    branch = replayed.fork(0).days(1).files("b")
    assert replayed.steps(days(1)) == ["c"]
    branch.files("c")
    assert replayed.replay(days(1)) is None


def test_requeue_remains_a_replay_step_until_repeated(replayed):
    def requeued(line, repeats=None):
        rows = (RequeuedRows("a", ((0, 1),), 5),)
        last = line.checkpoints[-1]
        interval = {"start": last.interval_start, "end": last.interval_end}
        return line.add(
            Kind.REQUEUE,
            **interval,
            sources={"source": SourceFacts(position=FolderPosition("b"), requeued=rows)},
            cause=Requeued(repeats),
        )

    requeued(replayed.job.days(1, 2)).days(3)
    branch = replayed.fork(1)
    steps = replayed.replay(days(2)).parts
    assert [step.interval or step.requeue.checkpoint_id for step in steps] == [days(2), 3, days(3)]
    assert str(steps[1]) == "what checkpoint 3 requeued from the quarantine"
    requeued(branch.days(2), repeats=3)
    assert replayed.steps(days(2)) == [days(3)]
    branch.days(3)
    assert replayed.replay(days(2)) is None


def test_requeue_of_elements_is_a_step(replayed):
    replayed.job.days(1, 2).add(Kind.REQUEUE, DAY, 3 * DAY, cause=Requeued(operators=("ask",)))
    replayed.fork(1)
    steps = replayed.replay(days(2)).parts
    assert [step.requeue and step.requeue.checkpoint_id for step in steps] == [None, 3]


def test_requeue_of_nothing_is_no_step(replayed):
    replayed.job.days(1, 2).again(Kind.REQUEUE)
    replayed.fork(1)
    assert replayed.steps(days(2)) == [days(2)]


def test_missing_input_is_named(replayed):
    replayed.job.days(1, 2, 3)
    branch = replayed.fork(1)
    assert replayed.replay(days(2)).missing == "1970-01-03 to 1970-01-05"
    replayed.job.files("b", "c")
    branch.days(2, 3)
    assert replayed.replay(days(2)).missing == "files up to b and what follows, up to files up to c"
