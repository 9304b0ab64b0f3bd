"""Expected cost of a backfill, and limits that a job's file sets to it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import LimitError
from headrace.log.branches import Branch, BranchStatus
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.run.backfill_limits import beyond_limits
from headrace.run.backfill_plan import _seconds_by_checkpoint
from tests.unit.support.backfilled_job import BackfilledJob, days

MINUTE = 60.0


@pytest.fixture(scope="module")
def ran():
    """A job that has taken in three days, of which the second was corrected."""
    job = BackfilledJob()
    for number in range(3):
        job.write(number, ("ann", 1 + number))
    job.run()
    job.write(1, ("ann", 9))
    return job


def limited(job, **limits):
    return msgspec.structs.replace(job.config, replay=msgspec.structs.replace(job.config.replay, **limits))


@given(
    calls=st.dictionaries(st.sampled_from(["one", "two"]), st.integers(1, 50)),
    seconds=st.floats(0, 600),
    max_calls=st.none() | st.integers(0, 60),
    max_minutes=st.none() | st.integers(1, 10),
)
def test_plan_beyond_a_limit_is_named(ran, calls, seconds, max_calls, max_minutes):
    plan = ran.plan(days(1))
    plan = replace(plan, estimate=replace(plan.estimate, calls=calls, seconds=seconds))
    reasons = beyond_limits(limited(ran, max_calls=max_calls, max_minutes=max_minutes), plan)
    expected = [
        *(["max_calls"] if max_calls is not None and sum(calls.values()) > max_calls else []),
        *(["max_minutes"] if max_minutes is not None and seconds > max_minutes * MINUTE else []),
    ]
    assert [reason.partition("replay.")[2].partition(" ")[0] for reason in reasons] == expected
    assert all(f"{math.ceil(seconds / MINUTE)} minute" in reason for reason in reasons if "max_minutes" in reason)


def test_open_backfill_was_allowed_before(ran):
    plan = ran.plan(days(1))
    costly = replace(plan, estimate=replace(plan.estimate, calls={"one": 5}))
    config = limited(ran, max_calls=0)
    assert beyond_limits(config, costly) == ["5 calls expected, and replay.max_calls is 0"]
    branch = Branch(name="x", status=BranchStatus.OPEN, fork_id=1, versions={}, sinks={}, created_at=1, made_at=1)
    assert beyond_limits(config, replace(costly, branch=branch)) == []


def test_nothing_is_begun_beyond_a_limit(ran, monkeypatch):
    monkeypatch.setattr("headrace.run.backfill_plan._seconds_by_checkpoint", two_minutes_each)
    ran.config = limited(ran, max_minutes=3)
    with pytest.raises(LimitError, match="4 minutes expected, and replay.max_minutes is 3. Nothing was begun"):
        ran.backfill(days(1))
    assert ran.plan(days(1)).branch is None
    assert ran.backfill(days(1), beyond_limits=True, max_batches=1).outcome.value == "unfinished"
    assert ran.backfill(days(1)).outcome.value == "needs_approval"  # somebody has allowed its begin


def two_minutes_each(lineage):
    return {checkpoint.checkpoint_id: 2 * MINUTE for checkpoint in lineage}


def checkpoint(number, attempt, committed_at, **more):
    common = {"kind": Kind.BATCH, "run_id": "x", "max_parallelism": 8, "versions": {}, "incarnation": 1}
    return Checkpoint(checkpoint_id=number, attempt_id=attempt, committed_at=committed_at, **common, **more)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 90_000), st.integers(0, 90_000)), min_size=1, max_size=8))
def test_seconds_of_a_run_add_up(steps):
    """In each run, they lead from the begin of the first micro-batch to the last commit: commits and publications count."""
    now, attempt, lineage, begins = 0, 0, [], []
    for starts_run, pause, work in steps:
        if starts_run or not lineage:
            now, attempt = now + pause, attempt + 1
            begins.append((len(lineage), now))
        now += work
        begun = begins[-1][1] if begins[-1][0] == len(lineage) else now
        lineage.append(checkpoint(len(lineage), str(attempt), now, processing_time=begun, seconds={"run": work / 2000}))
    seconds = _seconds_by_checkpoint(lineage)
    for (first, begun), (end, _) in pairwise([*begins, (len(lineage), 0)]):
        assert sum(seconds[number] for number in range(first, end)) == pytest.approx(
            (lineage[end - 1].committed_at - begun) / 1000
        )


def test_time_of_a_followed_job_is_no_duration():
    """A branch's micro-batch has the processing time of its job's, days ago."""
    first = checkpoint(1, "a", 900_000_000, processing_time=1000, ended_at=2000, seconds={"run": 3.5})
    assert _seconds_by_checkpoint([first]) == {1: 3.5}
