"""Requests for backfills from a scheduler: they are merged, repeated and interrupted, and give the same tables."""

from __future__ import annotations

from contextlib import nullcontext, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.commit.protocol import open_job
from headrace.edits.fork import drop_branch, fork
from headrace.edits.restore import restore
from headrace.errors import ConfigError, FencedError, SourceError
from headrace.log.branches import Branches
from headrace.run.backfill import BackfillOutcome
from tests.unit.support.backfilled_job import BackfilledJob, days, four_days_taken_in
from tests.unit.support.branched_job import CUSTOMERS
from tests.unit.support.fuzzing import examples

NAME = "replay"
PLACES = (
    *("branch.dropped", "fork.listed", "fork.tables", "backfill.forked", "backfill.caught_up"),
    *("promotion.begun", "promotion.staged", "promotion.prepared", "promotion.removed"),
    *("commit.before", "commit.after", "publish.half"),
)


@pytest.fixture(scope="module")
def four_days():
    return four_days_taken_in()


@pytest.fixture
def job(four_days):
    """Return a job whose last day was corrected, so each branch waits for approval."""
    job = BackfilledJob.restored(four_days)
    job.write(3, ("ann", 40), ("bob", 2))
    return job


def ask(job, interval, **options):
    """Request an interval, as the task `backfill` of the replay DAG does."""
    return job.backfill(interval, NAME, promote="approval", renews=True, **options)


def approve(job, interval, **options):
    """Promote the requested intervals, as the task `promote` of the replay DAG does."""
    return job.backfill(interval, NAME, promote="automatic", only_open=True, **options)


def open_branch(job):
    (branch,) = Branches(job.config).open
    return branch


@pytest.mark.slow
def test_request_joins_a_branch_that_begins_before(job):
    ask(job, days(1))
    before = open_branch(job)
    assert ask(job, days(2)).outcome is BackfillOutcome.NEEDS_APPROVAL
    assert open_branch(job) == before


@pytest.mark.slow
def test_request_renews_a_branch_that_begins_later(job):
    ask(job, days(3))
    assert job.plan(days(1), NAME, renews=True).replaced == open_branch(job)
    assert ask(job, days(1)).outcome is BackfillOutcome.NEEDS_APPROVAL
    assert open_branch(job).requested == days(1, 4)


@pytest.mark.slow
def test_request_renews_a_branch_whose_input_changed(job):
    job.write(1, ("ann", 30))
    ask(job, days(1), max_batches=1)
    job.write(1, ("cyd", 8))
    job.write(2, ("dee", 9))
    ask(job, days(2))
    assert open_branch(job).requested == days(1, 3)
    assert job.content(NAME) == job.straight()


@pytest.mark.slow
def test_request_renews_a_branch_behind_a_restore(job):
    ask(job, days(3))
    restore(job.config, 1, "as it was", "somebody")
    job.run()
    job.write(3, ("ann", 41))
    assert ask(job, days(3)).outcome is BackfillOutcome.NEEDS_APPROVAL
    assert approve(job, days(3)).outcome is BackfillOutcome.PROMOTED


@pytest.mark.slow
def test_interrupted_renewal_forgets_no_request(job):
    ask(job, days(2))
    assert ask(job, days(1), crash_at="branch.dropped") is None
    assert not Branches(job.config).open
    ask(job, days(3))
    assert open_branch(job).requested == days(1, 4)


@pytest.mark.slow
def test_dropped_request_is_forgotten(job):
    ask(job, days(1))
    drop_branch(job.config, NAME, "somebody", "rejected")
    ask(job, days(3))
    assert open_branch(job).requested == days(3)


def test_branch_of_another_purpose_is_kept(job):
    fork(job.config, NAME, None, "somebody")
    with pytest.raises(ConfigError, match="no backfill made it"):
        ask(job, days(1))
    assert open_branch(job).name == NAME


def test_second_name_is_refused_also_when_renewing(job):
    job.backfill(days(1))
    with pytest.raises(ConfigError, match="a backfill of 2019-12-02 to 2019-12-03 is open"):
        ask(job, days(2))


@pytest.mark.slow
def test_held_branch_is_not_replaced(job):
    ask(job, days(3))
    with open_job(job.config.on_branch(NAME), "somebody"), pytest.raises(FencedError):
        ask(job, days(1))
    assert open_branch(job).requested == days(3)


def test_approval_without_a_branch_does_nothing(job):
    before = job.content()
    assert approve(job, days(1)) is None
    assert (job.content(), Branches(job.config).open) == (before, [])


@pytest.mark.slow
@pytest.mark.parametrize("place", ["promotion.removed", "publish.half", "commit.after"])
def test_interrupted_approval_is_finished(job, place):
    job.write(1, ("ann", 30), ("bob", 0))
    ask(job, days(1))
    assert approve(job, days(1), crash_at=place) is None
    approve(job, days(1))
    assert not Branches(job.config).open
    assert job.content() == job.straight()


@pytest.mark.slow
def test_approval_catches_up_with_newer_checkpoints(job):
    job.write(1, ("ann", 30))
    ask(job, days(1))
    job.write(4, ("eve", 8))
    job.run()
    assert approve(job, days(1)).outcome is BackfillOutcome.PROMOTED
    assert job.content() == job.straight()


ORDERS = st.lists(st.tuples(st.sampled_from(CUSTOMERS), st.integers(0, 9)), min_size=1, max_size=3)


@pytest.mark.slow  # each example runs a job, branches, and a job without interruption: 6 s
@examples(2)
@given(data=st.data())
def test_backfills_end_like_a_straight_run(data):
    draw = data.draw
    job, count = BackfilledJob(), 4
    for number in range(count):
        job.write(number, *draw(ORDERS, "orders"))
    job.run()
    asked = days(0)
    for _ in range(draw(st.integers(1, 4), "requests")):
        if draw(st.booleans(), "live goes on"):
            job.write(count, *draw(ORDERS, "more"))
            job.run()
            count += 1
        first = draw(st.integers(0, count - 1), "first")
        asked = days(first, draw(st.integers(first + 1, count), "end"))
        if draw(st.booleans(), "corrected"):
            job.write(draw(st.integers(0, count - 1), "day"), *draw(ORDERS, "correction"))
        for step in draw(st.lists(st.sampled_from((ask, approve)), max_size=2), "steps"):
            place = draw(st.none() | st.sampled_from(PLACES), "crash at")
            limit = draw(st.sampled_from((None, 1)), "limit")
            # An approval refuses a branch whose input has changed, or whose request broke off.
            with suppress(SourceError, ConfigError) if step is approve else nullcontext():
                step(job, asked, crash_at=place and f"{place}:1", max_batches=limit)
    if ask(job, asked).outcome is BackfillOutcome.NEEDS_APPROVAL:
        assert approve(job, asked).outcome is BackfillOutcome.PROMOTED
    assert job.content() == job.straight()
    assert not Branches(job.config).open
