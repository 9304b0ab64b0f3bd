"""`state rename` and `state drop` of a job with an open branch: refused by the branch's name, and possible once it is dropped."""

from __future__ import annotations

import pytest

from headrace import Pipeline, crash_points
from headrace.edits.edit import apply, preview
from headrace.edits.fork import drop_branch, fork
from headrace.edits.operators import DropOperator, RenameOperator
from headrace.errors import ConfigError
from headrace.run.backfill import BackfillOutcome
from tests.unit.support.backfilled_job import BackfilledJob, days
from tests.unit.support.branched_job import Order, Totals


def totals_by(operator):
    totals = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer").process(operator, Totals())
    totals.side("small", Order).sink("small")
    return totals.sink("totals")


@pytest.fixture
def job():
    """A job with an open branch; then the code gives its operator 'totals' the name 'sums'."""
    job = BackfilledJob(totals_by("totals"))
    for number in range(2):
        job.write(number, ("ann", 1 + number))
    job.run()
    job.write(1, ("ann", 30))
    assert job.backfill(days(1), "again").outcome is BackfillOutcome.NEEDS_APPROVAL
    job.change(pipeline=totals_by("sums"))
    return job


def rename(job):
    return apply(job.config, RenameOperator("totals", "sums"), "rename")


def drop(job):
    return apply(job.config, DropOperator("totals", "no more"), "drop")


EDITS = [
    pytest.param(
        rename,
        lambda job: preview(job.config, RenameOperator("totals", "sums")),
        "'totals' cannot be renamed",
        id="rename",
    ),
    pytest.param(
        drop, lambda job: preview(job.config, DropOperator("totals")), "'totals' cannot be dropped", id="drop"
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("edit", "preview", "message"), EDITS)
def test_edit_waits_for_open_branches(job, edit, preview, message):
    before = job.last()
    for command in (preview, edit):
        with pytest.raises(ConfigError, match=rf"{message} while .* \(again\).*headrace branch drop shop again"):
            command(job)
    assert job.last() == before
    with job.on_its_clock():
        drop_branch(job.config, "again", "somebody")
        edit(job)
    job.write(2, ("ann", 3))
    assert job.run().rows_in == 1


@pytest.mark.slow
@pytest.mark.parametrize("place", ["operator_state.staged", "commit.before"])
@pytest.mark.parametrize(("edit", "preview", "message"), EDITS)
def test_branch_made_meanwhile_is_named(job, edit, preview, message, place):
    with job.on_its_clock():
        drop_branch(job.config, "again", "somebody")
    before, forked = job.last(), []

    def meanwhile(reached):
        if reached == place and not forked:
            forked.append(reached)
            fork(job.config, "late", before.checkpoint_id, "somebody")

    is_refused = place == "operator_state.staged"
    expected = (
        rf"{message} while .*\(late\)"
        if is_refused
        else r"as checkpoint \d+. Meanwhile .* branch 'late' .*headrace branch drop shop late"
    )
    with job.on_its_clock(), crash_points.observed(meanwhile), pytest.raises(ConfigError, match=expected):
        edit(job)
    assert (job.last() == before) == is_refused


@pytest.mark.slow
def test_day_after_a_rename_is_backfilled(job):
    with job.on_its_clock():
        drop_branch(job.config, "again", "somebody")
        rename(job)
    job.write(2, ("ann", 3))
    job.run()
    job.write(1, ("ann", 2))
    job.write(2, ("ann", 7))
    assert job.backfill(days(2), "later").outcome is BackfillOutcome.NEEDS_APPROVAL
