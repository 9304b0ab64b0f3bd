"""`headrace top`: what runs do now, as their progress files and checkpoints say."""

from __future__ import annotations

import pytest

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.cli.top import look
from headrace.commit.protocol import open_job
from headrace.log.progress import BatchProgress, ProgressFiles
from headrace.operators import Count
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness

HOUR = 3_600_000


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp


@pytest.fixture
def job():
    orders = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    return PipelineHarness(orders.aggregate("totals", n=Count(), state_ttl=Lifetime.FOREVER).sink("out"), now=HOUR)


def fed(job):
    job.feed("orders", [Order("a", HOUR), Order("b", HOUR)])
    job.run()
    return job


def looked(job, before=None):
    with job.on_its_clock():
        return look(job.config, before)


def test_job_that_never_ran_has_nothing(job):
    row = looked(job).row
    assert {name for name, value in row.items() if value is not None} == {"job"}


def test_idle_job_shows_its_last_checkpoint(job):
    row = looked(fed(job)).row
    assert (row["job"], row["checkpoint"], row["held_by"], row["operator"]) == ("shop", 1, None, None)
    assert row["state"] > 0


def test_rates_are_those_between_looks(job):
    fed(job)

    def at_work(rows, operator="totals"):
        progress = BatchProgress(checkpoint_id=2, operator=operator, rows=rows, of=90, in_flight=3, waiting=1)
        ProgressFiles(JobFolder.of(job.config), held.attempt_id).write(progress)

    with job.on_its_clock(), open_job(job.config, "run-7") as held:
        at_work(10)
        first = look(job.config, None)
        job.clock.advance(2000)
        at_work(50)
        second = look(job.config, first)
        job.clock.advance(1000)
        at_work(5, "other")
        third = look(job.config, second)
    shown = ("held_by", "operator", "rows", "of", "in_flight", "waiting", "rate")
    assert [first.row[name] for name in shown] == ["run-7", "totals", 10, 90, 3, 1, None]
    assert [second.row[name] for name in shown] == ["run-7", "totals", 50, 90, 3, 1, 20]
    assert third.row["rate"] is None


def test_unreadable_job_is_a_line(job):
    fed(job)
    for file in (job.folder / "state" / "shop" / "checkpoints").rglob("*.parquet"):
        file.write_bytes(b"no")
    assert looked(job).row["operator"].startswith("ERROR: ")
