"""Starts of a Delta source that the table has not reached yet: they wait, whatever the other sources of the job do."""

from __future__ import annotations

import pytest

from headrace.plan.loader import plan_of
from headrace.sources.registry import source_of
from tests.unit.support.table_job import TableJob, TableWriter
from tests.unit.support.table_job import table as timed


def remark(job):
    config = job.harness.config
    (node,) = (node for node in plan_of(config.code).sources if node.name == "rows")
    return next(source_of(node, config).remarks())


@pytest.mark.parametrize("start", ["version 3", "2999-01-01"])
def test_start_ahead_outlives_checkpoints_of_others(start):
    written = TableWriter()
    written.append("p")
    job = TableJob(written, "more", start=start, idle_after="1s")
    for number, name in enumerate("xyz"):
        job.harness.feed_table("more", timed(name, at=1000 * number + 1000))
        job.harness.clock.advance(5_000)
        job.run()
    assert job.arrived() == [*"xyz"]
    assert job.last.sources["rows"].position is None
    written.append("q")
    assert job.took() == []
    written.append("r", at=9000)
    job.harness.feed_table("more", timed("w", at=9500))
    assert ("r" in job.took(max_batches=1)) is (start == "version 3")


def test_check_names_a_start_ahead():
    written = TableWriter()
    written.append("p")
    job = TableJob(written, start="version 7")
    assert job.took() == []
    first_remark = remark(job)
    assert (first_remark.outcome, first_remark.text) == (
        "warn",
        f"{written.path}: version 1, and nothing is read before version 7",
    )
    later_start = remark(TableJob(written, start="2999-01-01"))
    assert later_start.text.endswith(": version 1, and nothing is read before a commit of 2999-01-01 or later")
    assert remark(TableJob(written, start="version 1")).outcome == "ok"
