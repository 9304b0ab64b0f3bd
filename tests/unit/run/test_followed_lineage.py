"""A branch follows its job: the same micro-batches at the recorded times of the job."""

from __future__ import annotations

import pytest

from headrace import Pipeline
from headrace.edits.fork import fork
from headrace.edits.restore import restore
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.testing._clocks import START
from tests.unit.support.branched_job import HOUR, NEW, REMINDED, BranchedJob, Order, Totals, totals

DAY = 24 * HOUR


@pytest.fixture
def job():
    """A job with a run every two hours, and a last run four hours later."""
    result = BranchedJob()
    for customers in (("ann", "bob"), ("ann",), ("ann", "bob")):
        result.feed(*((customer, 4) for customer in customers))
        result.run()
        result.pause(2)
    result.pause(2)
    result.feed(("ann", 4), ("bob", 5))
    result.run()
    return result


def batches(job, branch=None):
    """Return the micro-batches of a line, without its fork."""
    config = job.config if branch is None else job.config.on_branch(branch)
    return [
        checkpoint
        for checkpoint in CheckpointLog(JobFolder(config.job_folder)).lineage.checkpoints
        if checkpoint.kind is Kind.BATCH and checkpoint.has_state
    ]


def customers_with(job, amount, branch=None):
    """Return the customers of the side output, in order."""
    rows = (dict(row) for row in job.content(branch)["sink small"])
    return sorted((row["customer"], row["at"]) for row in rows if row["amount"] == amount)


def test_micro_batches_record_their_processing_time(job):
    start = job.harness.clock.now() - 8 * HOUR
    times = [batch.processing_time - start for batch in batches(job)]
    assert {0, 2 * HOUR, 4 * HOUR, 8 * HOUR} <= {*times}
    assert times == sorted(times)
    assert all(
        checkpoint.lineage_time == checkpoint.committed_at and checkpoint.follows is None for checkpoint in batches(job)
    )


@pytest.mark.slow
def test_branch_has_the_times_of_the_job(job):
    job.pause(100)
    fork(job.config, "again", 1, "somebody")
    job.run("again", max_batches=2)
    job.run("again")
    live, branch = batches(job)[1:], batches(job, "again")
    own = branch[len(live) :]
    assert [checkpoint.processing_time for checkpoint in branch[: len(live)]] == [
        checkpoint.processing_time for checkpoint in live
    ]
    assert [checkpoint.follows for checkpoint in branch[: len(live)]] == [
        checkpoint.checkpoint_id for checkpoint in live
    ]
    assert [checkpoint.processing_time for checkpoint in own] == [job.harness.clock.now()] * len(own)


@pytest.mark.slow
def test_entries_expire_equally_on_branch_and_job(job):
    assert len(customers_with(job, NEW)) > 2, "some have expired"
    job.pause(100)
    fork(job.config, "again", 0, "somebody")
    job.run("again", max_batches=len(batches(job)))
    assert customers_with(job, NEW, "again") == customers_with(job, NEW)
    assert customers_with(job, REMINDED, "again") == customers_with(job, REMINDED) != []
    assert job.content("again") == job.content()


def test_branch_beyond_job_uses_wall_clock(job):
    fork(job.config, "ahead", None, "somebody")
    job.pause(1)
    job.feed(("cyd", 4))
    job.run("ahead")
    (own, *_) = batches(job, "ahead")
    assert (own.processing_time, own.follows) == (job.harness.clock.now(), None)
    job.pause(50)
    job.run()
    job.run("ahead")
    times = [batch.processing_time for batch in batches(job, "ahead")]
    assert times == sorted(times)


@pytest.mark.slow
def test_branch_with_other_input_follows_its_names(job):
    folder = job.harness.folder / "input"
    (folder / "orders").rename(folder / "corrected")
    (folder / "orders").mkdir()
    job.pause(100)
    fork(job.config, "again", 1, "somebody", settings={"sources.orders.path": "input/corrected"})
    job.run("again", max_batches=len(batches(job)) - 1)
    assert [batch.processing_time for batch in batches(job, "again")] == [
        checkpoint.processing_time for checkpoint in batches(job)[1:]
    ]


@pytest.mark.slow
def test_branch_with_abandoned_fork_follows_nothing(job):
    fork(job.config, "again", 2, "somebody")
    with job.on_its_clock():
        restore(job.config, 1, "wrong input", "somebody")
    job.pause(100)
    job.run("again")
    assert {batch.follows for batch in batches(job, "again")} == {None}
    assert {checkpoint.processing_time for checkpoint in batches(job, "again")} == {job.harness.clock.now()}


@pytest.mark.slow
def test_restored_branch_follows_again(job):
    fork(job.config, "again", 1, "somebody")
    job.run("again", max_batches=2)
    first = batches(job, "again")
    with job.on_its_clock():
        restore(job.config.on_branch("again"), 2, "once more", "somebody")
    job.pause(100)
    job.run("again", max_batches=2)
    again = [batch for batch in batches(job, "again") if batch not in first]
    assert [checkpoint.processing_time for checkpoint in again] == [checkpoint.processing_time for checkpoint in first]


def test_intervals_have_the_times_of_the_job():
    job = BranchedJob(job={"sources": {"orders": {"interval": "%Y-%m-%d", "max_ahead": "none"}}})
    days = [START + number * DAY for number in range(4)]

    def run(number, branch=None):
        job.run(branch, mode="interval", interval_start=days[number], interval_end=days[number + 1])

    for number in range(3):
        job.harness.feed("orders", [Order("ann", days[number], 4)], file=f"2020-01-0{number + 1}.parquet")
        run(number)
        job.pause(4)
    job.pause(100)
    fork(job.config, "again", 1, "somebody")
    for number in (1, 2):
        run(number, "again")
    live = batches(job)[1:]
    branch = batches(job, "again")[: len(live)]
    assert [checkpoint.processing_time for checkpoint in branch] == [checkpoint.processing_time for checkpoint in live]
    assert customers_with(job, NEW, "again") == customers_with(job, NEW)
    assert len(customers_with(job, NEW)) == 3, "it expires between any two"


def test_branch_with_a_new_source_follows_nothing(job):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at").union(pipeline.source("more", Order, event_time="at"))
    results = orders.key_by("customer").process("totals", Totals())
    results.side("small", Order).sink("small")
    results.upsert_materialize("latest", primary_key=("customer",), upsert_key=("customer",)).sink("totals")
    job.harness.change(pipeline=pipeline)
    settings = {"pipeline": job.harness.config.pipeline, "sources.more.path": "input/more"}
    job.harness.feed("more", [Order("zoe", DAY, 4)])
    job.harness.change(pipeline=totals())
    job.config = job.harness.config
    job.pause(100)
    fork(job.config, "again", 1, "somebody", settings=settings)
    job.run("again")
    assert {batch.follows for batch in batches(job, "again")} == {None}
