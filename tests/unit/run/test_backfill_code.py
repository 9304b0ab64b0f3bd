"""A backfill is of one code: it goes on with a branch only if the job's code is what the branch ran with."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.log.branches import Branches
from headrace.run.backfill import BackfillOutcome
from tests.unit.support.backfilled_job import BackfilledJob, days, four_days_taken_in
from tests.unit.support.code_in_files import change_code, forget_code, put_into_files

OTHER_CODE = "have changed since branch 'again' ran: code_in_files/rules.py has changed. .* --name again --renew"


@pytest.fixture(scope="module")
def four_days():
    return four_days_taken_in()


@pytest.fixture
def job(four_days):
    job = BackfilledJob.restored(four_days)
    job.write(3, ("ann", 40))
    put_into_files(job)
    yield job
    forget_code()


def branch_of(job):
    (branch,) = Branches(job.config).open
    return branch


@pytest.mark.slow
def test_backfill_continues_with_the_same_code(job):
    job.backfill(days(2), "again", max_batches=1)
    forget_code()
    assert job.backfill(days(2), "again").outcome is BackfillOutcome.NEEDS_APPROVAL


@pytest.mark.parametrize("limit", [1, None])
def test_backfill_refuses_to_continue_with_other_code(job, limit):
    job.backfill(days(2), "again", max_batches=limit)
    before, live = branch_of(job), job.content()
    change_code(job)
    forget_code()
    for options in ({}, {"only_open": True, "promote": "automatic"}):
        with pytest.raises(ConfigError, match=OTHER_CODE):
            job.backfill(days(2), "again", **options)
    assert (branch_of(job), job.content()) == (before, live)


@pytest.mark.slow
def test_other_code_renews_the_branch(job):
    job.backfill(days(2), "again", max_batches=1)
    before = branch_of(job)
    change_code(job)
    forget_code()
    assert job.plan(days(2), "again", renews=True).replaced == before
    assert job.backfill(days(2), "again", renews=True).outcome is BackfillOutcome.NEEDS_APPROVAL
    assert branch_of(job).code != before.code
    assert job.backfill(days(2), "again", promote="automatic").outcome is BackfillOutcome.PROMOTED


@pytest.mark.slow
def test_branch_without_results_takes_any_code(job):
    job.backfill(days(2), "again", max_batches=0)
    change_code(job)
    forget_code()
    assert job.backfill(days(2), "again").outcome is BackfillOutcome.NEEDS_APPROVAL


def test_code_that_changes_meanwhile_is_not_promoted(job):
    live = job.content()
    job.backfill(days(2), "again", max_batches=1)
    change_code(job)  # this process has the former code
    with pytest.raises(ConfigError, match=OTHER_CODE):
        job.backfill(days(2), "again", promote="automatic")
    assert job.content() == live


def test_other_settings_are_refused_as_well(job):
    job.backfill(days(2), "again", max_batches=1)
    job.change(job=job.harness.job | {"watermark": {"bucket": 3}})
    live = job.content()
    with pytest.raises(ConfigError, match=r"watermark.bucket 2, and the job's file says 3.*--renew"):
        job.backfill(days(2), "again")
    assert job.content() == live
