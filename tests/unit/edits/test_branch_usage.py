"""The cost of branches: their own files, and the files that vacuum keeps for them."""

from __future__ import annotations

import pytest

from headrace.edits.compact import compact
from headrace.edits.fork import branch_usages, drop_branch, fork
from headrace.edits.vacuum import vacuum
from headrace.storage.files import Usage
from tests.unit.support.branched_job import BranchedJob
from tests.unit.support.purchase_job import after_retention


@pytest.fixture
def job():
    result = BranchedJob()
    result.feed(("ann", 1), ("bob", 2))
    result.run()
    return result


def go_on(job):
    """Make the earlier checkpoints unneeded once the retention is over."""
    job.feed(("ann", 5), ("bob", 7))
    job.run()
    compact(job.config, "compaction")


def test_job_without_branches_spares_nothing(job):
    assert branch_usages(job.config) == ()


def test_young_branch_holds_nothing_back(job):
    fork(job.config, "other", None, "somebody")
    go_on(job)
    (usage,) = branch_usages(job.config)
    assert (usage.branch.name, usage.held_back) == ("other", Usage())
    assert usage.own.files
    assert usage.own.size


@pytest.mark.slow
def test_dropping_branch_releases_held_back_files(job):
    fork(job.config, "other", None, "somebody")
    go_on(job)
    with after_retention(job.config):
        (usage,) = branch_usages(job.config)
        spared = {*vacuum(job.config, "vacuum", dry_run=True)}
        assert usage.age > job.config.retention.hours * 3_600_000
        drop_branch(job.config, "other", "somebody")
        freed = {*vacuum(job.config, "vacuum", dry_run=True)} - spared
    assert usage.held_back.files == len(freed) > 0
    assert usage.held_back.size > 0


@pytest.mark.slow
def test_branches_of_one_fork_share_their_files(job):
    for name in ("one", "two"):
        fork(job.config, name, 1, "somebody")
    go_on(job)
    fork(job.config, "late", None, "somebody")
    with after_retention(job.config):
        one, two, late = branch_usages(job.config)
        vacuum(job.config, "vacuum", dry_run=False)
        after = [usage.held_back for usage in branch_usages(job.config)]
    assert one.held_back == two.held_back != Usage()
    assert late.held_back == after[2] == Usage()
    assert after[0] == after[1] > one.held_back, "the log's entry of the fork is one of its own now"
