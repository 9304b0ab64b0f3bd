"""A branch repeats the requeues of its job; then it can be promoted, and no row is lost."""

from __future__ import annotations

import itertools
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.testing import World
from tests.unit.run.test_requeue_model import BUCKET, ROWS, Loop, Row, as_table
from tests.unit.support.fuzzing import examples
from tests.unit.support.refused_rows import Mended, RefusedJob, Strict, pipeline


@pytest.fixture
def job():
    """A job with two refused rows, in memory."""
    result = RefusedJob(world=World(), bucket=2)
    result.feed("p", "q?", "r", "s?")
    result.run()
    return result


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1])
def test_branch_older_than_a_requeue_takes_it_in(job, at):
    branch = job.harness.branch("other", at=at)
    branch.run()
    job.mend().requeue()
    job.run()
    with pytest.raises(ConfigError, match="what checkpoint 2 requeued.*headrace run shops --branch other"):
        branch.promote(allow_other_code=True)
    branch.run()
    assert (branch.facts[-1].kind, arrived(branch)) == (Kind.BATCH, ["p", "r", "q?", "s?"])
    branch.promote(allow_other_code=True)
    assert (job.arrived(), job.quarantine()) == (["p", "r", "q?", "s?"], [])
    assert job.requeue() is None


def test_requeue_is_repeated_once(job):
    branch = job.harness.branch("other", at=1)
    job.mend().requeue()
    branch.run()
    requeued = branch.facts[-1]
    assert branch.run().checkpoints == []
    job.run()
    branch.run()
    assert [c.repeats for c in branch.facts if c.kind is Kind.REQUEUE] == [2]
    assert (requeued.follows, branch.facts[-1].follows) == (None, 3)
    assert arrived(branch) == job.arrived()


def test_repeated_rows_get_the_time_of_the_job(job):
    branch = job.harness.branch("other", at=1)
    job.mend().requeue()
    job.harness.clock.advance(3_600_000)
    job.run()
    job.harness.clock.advance(3_600_000)
    branch.run()
    assert (branch.facts[-1].follows, branch.facts[-1].processing_time) == (3, job.last.processing_time)


@pytest.mark.parametrize("why", ["the requeue of checkpoint 2 again", "the requeue of checkpoint 3 again"])
def test_text_of_a_reason_repeats_nothing(job, why):
    branch = job.harness.branch("other", at=1, note=why)
    job.mend().requeue(why=why)
    job.run()
    with pytest.raises(ConfigError, match="what checkpoint 2 requeued"):
        branch.promote(allow_other_code=True)
    assert sorted(job.arrived()) == ["p", "q?", "r", "s?"]


class BranchLoop(Loop):
    """A plain loop over what the job did, as the branch does it: first what the job did since, then what is new."""

    def __init__(self, job):
        super().__init__(job.files_per_batch)
        vars(self).update(deepcopy(vars(job)))
        self.done = []

    def run(self, *, is_mended, slices=1_000):
        self._take(self.requeued, is_mended=is_mended)
        for what, places in self.done:
            if what == "took":
                self._take({name: self.new.pop(name) for name in places if name in self.new}, is_mended=is_mended)
            else:
                moved = {place: self.quarantine.pop(place) for place in places if place in self.quarantine}
                for (file, number), row in moved.items():
                    self.requeued.setdefault(file, {})[number] = row
                self._take(self.requeued, is_mended=is_mended)
        self.done.clear()
        super().run(is_mended=is_mended)

    def _take(self, queue, *, is_mended):
        for file in sorted(queue):
            for number, row in sorted(queue.pop(file).items()):
                self._arrive(file, number, row, is_mended=is_mended)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("feed"), ROWS),
        st.tuples(st.sampled_from(["run", "requeue", "change", "run_branch", "run_branch"]), st.none()),
    ),
    min_size=3,
    max_size=9,
)


class Twins:
    """A job with a branch, and two plain loops: what they have to equal."""

    def __init__(self, files_per_batch, pauses):
        self.pauses, self.names = pauses, itertools.count()
        self.job = RefusedJob(world=World(), bucket=BUCKET, files_per_batch=files_per_batch)
        self.job.run()
        self.branch, self.is_mended = None, False
        self.loop, self.branch_loop = Loop(files_per_batch), None

    def feed(self, drawn):
        rows = [Row(shop, at, f"row {next(self.names)}", has_size) for shop, at, has_size in drawn]
        file = self.job.harness.feed_table("rows", as_table(rows))
        for fed in (self.loop, self.branch_loop):
            if fed is not None:
                fed.feed(file, rows)

    def change(self, _):
        self.is_mended = not self.is_mended
        self.job.harness.change(pipeline=pipeline(Mended if self.is_mended else Strict))

    def requeue(self, _):
        result = self.job.requeue()
        assert (result.metrics["requeued"] if result else 0) == self.loop.requeue()
        if self.branch_loop is not None and result:
            waiting = [(file, number) for file, rows in self.loop.requeued.items() for number in rows]
            self.branch_loop.done.append(("requeued", waiting))

    def run(self, _):
        if self.branch_loop is not None:
            self.branch_loop.done.append(("took", sorted(self.loop.new)))
        self.job.harness.clock.advance(self.pauses * 3_600_000)
        self.job.run()
        self.loop.run(is_mended=self.is_mended)

    def fork(self, _):
        self.branch_loop = BranchLoop(self.loop)
        self.branch = self.job.harness.branch("other")

    def run_branch(self, _):
        if self.branch_loop is not None:
            self.branch.run()
            self.branch_loop.run(is_mended=self.is_mended)
            assert_equal(self.branch, self.branch_loop)


@pytest.mark.slow
@examples(4)
@given(before=STEPS, after=STEPS, files_per_batch=st.integers(1, 3), pauses=st.integers(0, 2))
def test_promoted_branch_equals_a_loop(before, after, files_per_batch, pauses):
    twins = Twins(files_per_batch, pauses)
    for what, detail in [*before, ("fork", None), *after, ("run", None), ("run_branch", None)]:
        getattr(twins, what)(detail)
    twins.branch.promote(allow_other_code=True)
    assert_equal(twins.job.harness, twins.branch_loop)


def arrived(branch):
    return [row.name for row in sorted(branch.sink("arrived"), key=lambda row: row.number)]


def assert_equal(line, loop):
    rows = line.sink("arrived")
    assert {(row.shop, row.name, row.number, row.watermark) for row in rows} == loop.results
    assert len(rows) == len(loop.results)
    positions = sorted(row["position"] for row in line.live("quarantine"))
    assert positions == sorted(f"{file}:{number}" for file, number in loop.quarantine)
