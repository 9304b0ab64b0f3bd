"""Backfills: past intervals recomputed on a branch while the job continues."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    Migration,
    Pipeline,
    Struct,
    ValueState,
    crash_points,
)
from headrace.commit.input_changes import ChangeOfInput
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.edits.fork import drop_branch, fork, log_of
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, IntervalError, SourceError, StateSchemaError, StorageError
from headrace.log.branches import Branches
from headrace.log.checkpoint import Kind
from headrace.log.intervals import interval_of
from headrace.readers.difference import differences
from headrace.run.backfill import BackfillOutcome
from tests.unit.support.backfilled_job import BackfilledJob, days, four_days_taken_in
from tests.unit.support.branched_job import CUSTOMERS, Order
from tests.unit.support.fuzzing import examples
from tests.unit.support.purchase_job import after_retention

pytestmark = pytest.mark.delta

NAME = "backfill_20191203_20191204"
PLACES = (
    "backfill.forked",
    "fork.listed",
    "fork.tables",
    "commit.before",
    "commit.after",
    "publish.half",
    "backfill.caught_up",
)


@pytest.fixture(scope="module")
def four_days():
    return four_days_taken_in()


@pytest.fixture
def job(four_days):
    return BackfilledJob.restored(four_days)


def open_names(job):
    return [branch.name for branch in Branches(job.config).open]


ORDERS = st.lists(st.tuples(st.sampled_from(CUSTOMERS), st.integers(0, 9)), min_size=1, max_size=4)


@pytest.mark.slow  # each example runs a job, its branch, and a job without interruption: 2 s
@examples(3)
@given(data=st.data())
def test_branch_equals_straight_run_over_corrections(data):
    draw = data.draw
    count = draw(st.integers(2, 5), "days")
    job = BackfilledJob(promote="refuse", files_per_batch=draw(st.integers(1, 3), "files a micro-batch"))
    for number in range(count):
        job.write(number, *draw(ORDERS, "orders"))
        if draw(st.booleans(), "run"):
            job.run()
    job.run()
    for number in draw(st.lists(st.integers(0, count - 1), max_size=2, unique=True), "corrected"):
        job.write(number, *draw(ORDERS, "correction"))
    first = draw(st.integers(0, count - 1), "first")
    asked = days(first, draw(st.integers(first + 1, count), "end"))
    result = None
    for ahead in range(draw(st.integers(0, 2), "crashes")):
        place = f"{draw(st.sampled_from(PLACES), 'place')}:{draw(st.integers(1, 2), 'visit')}"
        result = job.backfill(asked, "again", crash_at=place, max_batches=draw(st.sampled_from((None, 1)), "limit"))
        if draw(st.booleans(), "live goes on"):
            job.write(count + ahead, *draw(ORDERS, "more"))
            job.run()
    live = job.content()
    result = job.backfill(asked, "again")
    assert result.outcome is BackfillOutcome.COMPARED
    assert job.content() == live
    assert job.content("again") == job.straight()


@pytest.mark.slow
def test_corrected_day_is_computed_again(job):
    live = job.content()
    job.write(2, ("ann", 30), ("cyd", 5))
    result = job.backfill(days(2))
    assert result.outcome is BackfillOutcome.NEEDS_APPROVAL
    assert open_names(job) == [NAME]
    assert job.content(NAME) == job.straight()
    assert job.content() == live
    assert {table.table for table in result.comparison.tables} >= {"keyed_state", "totals"}
    assert [branch.requested for branch in Branches(job.config).open] == [days(2)]


@pytest.mark.slow
def test_branch_that_changes_nothing_is_promoted(job):
    live = job.content()
    result = job.backfill(days(3))
    assert (result.outcome, result.promotion) == (BackfillOutcome.PROMOTED, job.last().checkpoint_id)
    assert (job.content(), open_names(job)) == (live, [])


@pytest.mark.slow
def test_branch_that_differs_when_caught_up_waits(job, monkeypatch):
    """The job takes in a file while it is compared; the branch reads that file, corrected since, before it would be promoted."""

    def meanwhile(*tables, **options):
        yield from differences(*tables, **options)
        if len(log_of(job.config).checkpoints) == compared_at:
            job.write(4, ("ann", 1))
            job.run()
            job.write(4, ("ann", 70))

    compared_at = len(log_of(job.config).checkpoints)
    monkeypatch.setattr("headrace.run.backfill.differences", meanwhile)
    result = job.backfill(days(1), "again")
    assert (result.outcome, open_names(job)) == (BackfillOutcome.NEEDS_APPROVAL, ["again"])
    assert job.content("again") == job.straight()


@pytest.mark.slow
def test_restore_after_the_comparison_is_compared_again(job, monkeypatch):
    """Nobody asked to undo a restore that was made while a branch without differences was about to be promoted."""

    def meanwhile(*tables, **options):
        yield from differences(*tables, **options)
        if len(log_of(job.config).checkpoints) == compared_at:
            restore(job.config, 2, "as it was then", "somebody")

    compared_at = len(log_of(job.config).checkpoints)
    monkeypatch.setattr("headrace.run.backfill.differences", meanwhile)
    result = job.backfill(days(2), "again")
    assert (result.outcome, open_names(job)) == (BackfillOutcome.NEEDS_APPROVAL, ["again"])
    assert job.last().kind is Kind.RESTORE


@pytest.mark.slow
def test_held_job_lets_an_equal_branch_wait(job):
    with (
        open_job(job.config, "nightly"),
        pytest.raises(
            FencedError,
            match=rf"run nightly, .* holds .*Branch '{NAME}' is complete, and is to be promoted: the same command does that then, and so does "
            rf"'headrace branch promote shop {NAME}'",
        ),
    ):
        job.backfill(days(2))
    assert job.backfill(days(2)).outcome is BackfillOutcome.PROMOTED


@pytest.mark.slow
def test_error_of_the_branch_says_that_it_stays(job, monkeypatch):
    def unready(*_, **__):
        raise ConfigError("there are no jars")

    with monkeypatch.context() as patch:
        patch.setattr("tests.unit.support.backfilled_job.run_on", unready)
        with pytest.raises(ConfigError) as refusal:
            job.backfill(days(2))
    assert refusal.value.text_of_start == (
        f"there are no jars. Branch '{NAME}' stays open, and the live tables are as before: the same command goes on with it, and "
        f"'headrace branch drop shop {NAME}' removes it."
    )
    assert job.backfill(days(2)).outcome is BackfillOutcome.PROMOTED


@pytest.mark.slow
def test_refused_promotion_keeps_an_equal_branch(job):
    assert job.backfill(days(2), "again", promote="refuse").outcome is BackfillOutcome.COMPARED
    assert open_names(job) == ["again"]


@pytest.mark.slow
def test_branch_repeats_the_micro_batches_of_the_job(job):
    job.backfill(days(1, 3), promote="refuse")
    result = log_of(job.config.on_branch("backfill_20191202_20191204")).checkpoints[-3:]
    assert list(map(interval_of, result)) == [days(1), days(2), days(3)]


def test_plan_lists_the_upcoming_micro_batches(job):
    plan = job.plan(days(2))
    assert (plan.fork_id, plan.reason, len(plan.steps)) == (2, None, 2)
    assert (plan.estimate.files, plan.estimate.rows, plan.estimate.sinks) == (2, 4, ("small", "totals"))
    assert not open_names(job)


@pytest.mark.slow
def test_fork_moves_before_a_changed_file(job):
    job.write(1, ("ann", 5), ("bob", 5), ("cyd", 5))
    assert_fork_moves(job, ChangeOfInput.CHANGED)


@pytest.mark.slow
def test_fork_moves_before_a_late_file():
    job = BackfilledJob()
    for number in (0, 2, 3):
        job.write(number, ("ann", 1))
    job.run()
    job.write(1, ("bob", 4))
    assert_fork_moves(job, ChangeOfInput.NEW)


@pytest.mark.slow
def test_fork_moves_before_a_deleted_file(job):
    job.path(1).unlink()
    assert_fork_moves(job, ChangeOfInput.GONE)


def assert_fork_moves(job, change):
    plan = job.plan(days(3))
    assert (plan.reason.change, plan.fork_id) == (change, 1)
    job.backfill(days(3), "again")
    assert job.content("again") == job.straight()


@pytest.mark.slow
def test_cleaned_up_input_moves_no_fork(job):
    before = job.content()
    job.path(0).unlink()
    job.path(1).unlink()
    plan = job.plan(days(3))
    assert (plan.fork_id, plan.reason) == (3, None)
    job.backfill(days(3), "again", promote="refuse")
    assert job.content("again") == before


@pytest.mark.slow
def test_resumed_backfill_continues(job):
    job.write(1, ("ann", 30))
    assert job.backfill(days(1), "again", max_batches=1).outcome is BackfillOutcome.UNFINISHED
    assert len(job.plan(days(1), "again").steps) == 2
    result = job.backfill(days(1), "again")
    assert (result.outcome, len(result.report.checkpoints)) == (BackfillOutcome.NEEDS_APPROVAL, 2)
    assert not job.backfill(days(1), "again").report.checkpoints
    assert job.content("again") == job.straight()


@pytest.mark.slow
def test_repeated_backfill_joins_an_open_one(job):
    job.write(2, ("ann", 30))
    job.backfill(days(1), "again")
    assert job.backfill(days(2), "again").outcome is BackfillOutcome.NEEDS_APPROVAL
    with pytest.raises(ConfigError, match="branch 'again' begins at 2019-12-02, after the start of interval"):
        job.backfill(days(0), "again")


@pytest.mark.slow
def test_second_backfill_is_refused(job):
    job.write(2, ("ann", 30))
    job.backfill(days(1), "again")
    with pytest.raises(ConfigError, match="a backfill of 2019-12-02 to 2019-12-03 is open.*--name again"):
        job.backfill(days(2))
    drop_branch(job.config, "again", "somebody")
    assert job.backfill(days(2)).outcome is BackfillOutcome.NEEDS_APPROVAL


def test_branch_of_another_purpose_is_refused(job):
    fork(job.config, "mine", None, "somebody")
    with pytest.raises(ConfigError, match="branch 'mine' of job 'shop' exists already, and no backfill made it"):
        job.backfill(days(1), "mine")


def test_interval_after_the_jobs_position_is_refused(job):
    with pytest.raises(IntervalError, match="interval 2019-12-05 to 2019-12-06 was not taken in.*stands at 2019-12-05"):
        job.backfill(days(4))
    assert job.plan(days(3, 9)).requested == days(3)


def test_job_that_never_ran_is_refused():
    with pytest.raises(ConfigError, match="has not taken in anything yet"):
        BackfilledJob().backfill(days(1))


def test_source_without_intervals_is_refused(job):
    job.change(job={})
    with pytest.raises(ConfigError, match="no 'interval' pattern"):
        job.backfill(days(1))


@pytest.mark.slow
def test_restored_job_leaves_the_branch_behind(job):
    job.write(3, ("ann", 40))
    job.backfill(days(3), "again")
    restore(job.config, 1, "as it was", "somebody")
    job.run()
    with pytest.raises(ConfigError, match="begins at checkpoint 3, which a later restore or promotion"):
        job.backfill(days(3), "again")


def test_fork_without_files_is_refused(job):
    for _ in range(2):
        compact(job.config, "compaction")
    with after_retention(job.config):
        vacuum(job.config, "vacuum", dry_run=False)
        with pytest.raises(StorageError, match="no branch can begin at checkpoint"):
            job.backfill(days(1))
    assert not open_names(job)


def test_input_that_changes_again_is_refused(job):
    job.write(2, ("ann", 30))
    job.backfill(days(2), "again", max_batches=1)
    live = job.content()
    job.write(2, ("ann", 31), ("bob", 7))
    with pytest.raises(
        SourceError, match="the input of branch 'again' changed again: file 2019-12-03.parquet.*drop shop again"
    ):
        job.backfill(days(2), "again")
    assert job.content() == live


def test_input_that_changes_meanwhile_is_refused(job):
    def corrects_again(place):
        if place == "backfill.caught_up":
            job.write(2, ("ann", 31), ("bob", 7))

    with (
        crash_points.observed(corrects_again),
        pytest.raises(SourceError, match="the input of branch 'again' changed again"),
    ):
        job.backfill(days(2), "again")


@pytest.mark.slow
@pytest.mark.parametrize("is_behind", [True, False])
def test_automatic_backfill_promotes_when_caught_up(job, monkeypatch, is_behind):
    job.change(job=job.harness.job | {"replay": {"promote": "automatic"}})
    events = []

    class Held:
        def __init__(self):
            self.is_behind = is_behind

        def promote(self):
            events.append(job.content("again"))
            return job.last()

    @contextmanager
    def promoting(config, name, run_id):
        events.append((config.branch, name))
        if is_behind:
            job.write(4, ("eve", 8))
            job.run()
        yield Held()

    monkeypatch.setattr("headrace.run.backfill.promoting", promoting)
    result = job.backfill(days(2), "again")
    assert (result.outcome, result.promotion) == (BackfillOutcome.PROMOTED, job.last().checkpoint_id)
    assert events == [(None, "again"), job.content()]


@pytest.mark.slow
def test_refusing_policy_only_compares(job):
    job.change(job=job.harness.job | {"replay": {"promote": "refuse"}})
    assert job.backfill(days(2), "again").outcome is BackfillOutcome.COMPARED


class Greeting(Struct, frozen=True):
    customer: str


class Greeter(AsyncFunction[Order, Greeting]):
    """Answers unless the service is down."""

    def __init__(self):
        self.calls, self.is_down = 0, False

    async def invoke(self, order, /):
        self.calls += 1
        if self.is_down:
            raise ConnectionError
        return [Greeting(order.customer)]


def greeted(greeter, *, effects=False):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    waits = orders.async_wait(
        "greet",
        greeter,
        service="post",
        timeout=timedelta(hours=9),
        park_after=timedelta(0),
        retry=FixedDelay(max_retries=9, delay=timedelta(hours=1)),
    )
    waits.sink("greetings")
    job = BackfilledJob(pipeline, services={"post": {"url": "http://post", "effects": effects}})
    for number in range(3):
        job.write(number, ("ann", 1), ("bob", 2))
    job.run()
    return job


def test_backfill_calls_the_service_again():
    greeter = Greeter()
    job = greeted(greeter)
    assert job.plan(days(1)).estimate.calls == {"greet": 4}
    job.backfill(days(1), "again")
    assert greeter.calls == 10


@pytest.mark.slow
def test_unavailable_service_makes_branch_elements_wait():
    greeter = Greeter()
    job = greeted(greeter)
    live = job.content()
    greeter.is_down = True
    result = job.backfill(days(1), "again")
    assert (result.outcome, result.report.waiting) == (BackfillOutcome.WAITING, 4)
    assert job.content() == live
    greeter.is_down = False
    job.harness.clock.advance(3_600_000)
    assert job.backfill(days(1), "again").outcome is BackfillOutcome.PROMOTED
    assert job.content() == live


@pytest.mark.slow
def test_effects_are_refused_unless_allowed():
    job = greeted(Greeter(), effects=True)
    with pytest.raises(ConfigError, match="operator 'greet' calls service 'post', which has effects.*--allow-effects"):
        job.backfill(days(1), "again")
    assert not open_names(job)
    assert job.backfill(days(1), "again", allow_effects=True).outcome is BackfillOutcome.PROMOTED


class Count(KeyedProcessFunction[Order, Greeting]):
    """Counts orders."""

    count = ValueState("count", int)

    async def process(self, order, ctx, /):
        await self.count.update((await self.count.value() or 0) + 1)


def counted(function):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    orders.key_by("customer").process("count", function).sink("greetings")
    return pipeline


@pytest.fixture
def counting():
    job = BackfilledJob(counted(Count()))
    for number in range(3):
        job.write(number, ("ann", 1), ("bob", 2))
    job.run()
    return job


@pytest.mark.slow
def test_branch_migrates_state_of_the_fork(counting):
    class CountInTexts(Count):
        """Counts orders, stored as text."""

        count = ValueState("count", str, migrate=Migration(int, str))

        async def process(self, order, ctx, /):
            await self.count.update(str(int(await self.count.value() or 0) + 1))

    job = counting
    job.change(pipeline=counted(CountInTexts()))
    job.run()
    live = job.content()
    job.write(1, ("ann", 1), ("ann", 1), ("bob", 2))
    assert job.backfill(days(1), "again").outcome is BackfillOutcome.NEEDS_APPROVAL
    assert job.content() == live
    counts = {row[2]: row[6] for row in job.content("again")["keyed_state"]}
    assert counts == {'"ann"': '"4"', '"bob"': '"3"'}


@pytest.mark.slow
def test_types_that_do_not_fit_are_refused(counting):
    class CountInLists(Count):
        """Counts orders, stored in a type without a migration."""

        count = ValueState("count", list[int])

    job = counting
    live = job.content()
    job.change(pipeline=counted(CountInLists()))
    with pytest.raises(StateSchemaError, match="count"):
        job.backfill(days(1), "again")
    assert job.content() == live


def both_kinds():
    """Return a pipeline of two sources that meet."""
    pipeline = Pipeline("shop")
    orders, returns = (
        pipeline.source(name, Order, event_time="at").key_by("customer") for name in ("orders", "returns")
    )
    orders.connect(returns).process("count", Meetings()).sink("greetings")
    return pipeline


class Meetings(KeyedCoProcessFunction[Order, Order, Greeting]):
    """Greets a customer with the customer's last return."""

    last = ValueState("last", int)

    async def process1(self, order, ctx, /):
        ctx.collect(Greeting(f"{order.customer} {order.amount} {await self.last.value()}"))

    async def process2(self, order, ctx, /):
        await self.last.update(order.amount)


@pytest.mark.slow
def test_sources_that_meet_are_cut_alike():
    job = BackfilledJob(both_kinds(), sources=("orders", "returns"))
    for number in range(3):
        job.write(number, ("ann", 1), ("bob", 2))
        job.write(number, ("ann", 5 + number), source="returns")
        if number:
            job.run()
    job.write(1, ("ann", 7), ("bob", 2))
    job.backfill(days(1), "again")
    assert job.content("again") == job.straight()
    cuts = [
        [checkpoint.sources for checkpoint in log_of(config).checkpoints if checkpoint.kind is Kind.BATCH]
        for config in (job.config, job.config.on_branch("again"))
    ]
    assert [_places(sources) for sources in cuts[0]] == [_places(sources) for sources in cuts[1]]


@pytest.mark.slow
def test_longer_corrected_file_keeps_the_merge_order():
    job = BackfilledJob(both_kinds(), sources=("orders", "returns"), promote="automatic")
    for number in range(2):
        job.write(number, ("ann", 1))
        job.write(number, ("ann", 5), ("ann", 6), ("ann", 7), source="returns")
    job.run()
    job.write(0, ("ann", 1), ("ann", 2), ("ann", 3))
    assert job.backfill(days(0)).outcome is BackfillOutcome.PROMOTED
    job.run(end_of_input=True)
    assert job.content() == job.straight(end_of_input=True)


def _places(sources):
    return {name: facts.position for name, facts in sources.items()}


@pytest.mark.slow
def test_backfill_notices_a_concurrent_restore(job):
    def goes_back(place):
        if place == "backfill.forked":
            restore(job.config, 0, "as it was", "somebody")

    with (
        crash_points.observed(goes_back),
        pytest.raises(ConfigError, match="restore or promotion of job 'shop' has left behind"),
    ):
        job.backfill(days(2), "again")


def test_backfill_mode_needs_a_branch(job):
    with pytest.raises(ConfigError, match="a run of mode backfill needs a branch of job 'shop'"):
        job.run(mode="backfill", interval_start=days(1).start, interval_end=days(1).end)


@pytest.mark.slow
def test_promoted_rows_count_once_in_plans(job):
    job.change(job=job.harness.job | {"replay": {"promote": "automatic"}})
    assert job.backfill(days(3)).outcome is BackfillOutcome.PROMOTED
    plan = job.plan(days(3))
    assert (plan.estimate.rows, plan.estimate.sinks, plan.changes) == (2, ("small", "totals"), ())
