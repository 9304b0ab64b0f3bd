"""Backfills: past intervals computed again on a branch, beside a job that goes on."""

from __future__ import annotations

import pytest

from headrace.commit.branches import Branches
from headrace.spark.backfill import BackfillOutcome
from tests.unit.support.backfilled_job import BackfilledJob, days


@pytest.fixture
def job():
    made = BackfilledJob()
    for number in range(4):
        made.write(number, ("ann", 1 + number), ("bob", 2))
    made.run()
    return made


def branch_of(job):
    (branch,) = Branches(job.config).open
    return branch.name


def test_corrected_day_is_computed_again(job):
    live = job.content()
    job.write(2, ("ann", 30), ("cyd", 5))
    result = job.backfill(days(2))
    assert result.outcome is BackfillOutcome.NEEDS_APPROVAL
    assert branch_of(job) == "backfill_20191203_20191204"
    assert job.content(branch_of(job)) == job.straight()
    assert job.content() == live
    assert {table.table for table in result.comparison.tables} >= {"keyed_state", "totals"}
