"""A process dies anywhere between a requeue and the end of the next run: each requeued row counts once (in memory, no JVM)."""

from __future__ import annotations

import pytest

from headrace.commit.verify import verify
from headrace.log.checkpoint import Kind
from headrace.testing import World
from headrace.testing._memory_disk import DiskCopy
from tests.unit.support.memory_job import killed_at, places_of
from tests.unit.support.refused_rows import RefusedJob

STEPS = {"requeue": lambda job: job.requeue(), "run": lambda job: job.run()}


@pytest.mark.slow
@pytest.mark.parametrize("power", [pytest.param("power stays", marks=pytest.mark.long), "power fails"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("is_mended", [True, False])
def test_each_row_counts_once_wherever_the_process_dies(step, power, is_mended):
    world = World()
    job = RefusedJob(world=world, bucket=2)
    job.feed("p", "q?", "r")
    job.run()
    if is_mended:
        job.mend()
    if step == "run":
        job.requeue()
    job.feed("s", "t?", at=9000)
    begin, places = DiskCopy(world.storage), []
    with places_of(world.disk, places):
        STEPS[step](job)
    assert len(places) > 10
    assert (("requeue.staged", 1) in places) == (step == "requeue")
    for place, visit in places:
        begin.bring_back()
        with killed_at(world.disk, place, visit):
            STEPS[step](job)
        if power == "power fails":
            world.disk.lose_power()
        if step == "requeue" and not any(checkpoint.kind is Kind.REQUEUE for checkpoint in job.log.checkpoints):
            assert job.requeue().metrics["requeued"] == 1  # it was undone as a whole
        job.run()
        assert job.waiting() == []
        assert job.arrived() == (["p", "r", "q?", "s", "t?"] if is_mended else ["p", "r", "s"]), place
        assert len(job.quarantine()) == (0 if is_mended else 2)
        assert [finding for finding in verify(job.harness.config) if not finding.ok] == []
