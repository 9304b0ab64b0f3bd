"""Answers of services: kept by the live lineage, and taken by its branches in place of calls."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    OnFailure,
    OutputMode,
    Pipeline,
    RowKind,
    Struct,
    ValueState,
)
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.edit import apply
from headrace.edits.erase import erase
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import fork
from headrace.edits.operators import DropOperator, RenameOperator
from headrace.edits.promote import promoting
from headrace.edits.rescale import Rescale
from headrace.edits.restore import restore
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.sql import ask_sql
from headrace.run.backfill import BackfillOutcome
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import RESPONSES
from tests.unit.support.backfilled_job import BackfilledJob, days
from tests.unit.support.branched_job import CUSTOMERS, Order
from tests.unit.support.fuzzing import examples
from tests.unit.support.purchase_job import after_retention

MODES = (OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.UNORDERED_PROCESSING_TIME, OutputMode.KEYED_ORDERED)
PLACES = ("commit.before", "commit.after", "prepare.half", "publish.half")
KEEP = {"url": "http://oracle", "keep_responses": "90d"}


class Answer(Struct, frozen=True):
    customer: str
    amount: int
    value: float


class Oracle(AsyncFunction[Order, Answer]):
    """Gives a new answer to each call; fails for the calls in `failing`, or does not even open."""

    def __init__(self, failing=()):
        self.calls, self.failing, self.is_down, self.value = [], set(failing), False, None

    async def open(self, services, /):
        if self.is_down:
            msg = "the service is down"
            raise RuntimeError(msg)

    async def invoke(self, order, /):
        self.calls.append(order)
        if len(self.calls) in self.failing:
            raise ConnectionError
        return [Answer(order.customer, order.amount, float(len(self.calls)) if self.value is None else self.value)]


class Sums(KeyedProcessFunction[Answer, Answer]):
    """Adds up answers."""

    total = ValueState("total", float)

    async def process(self, answer, ctx, /):
        await self.total.update((await self.total.value() or 0) + answer.value)
        ctx.collect(answer)


def asking(oracle, mode=OutputMode.ORDERED, name="ask"):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    given = orders.key_by("customer") if mode is OutputMode.KEYED_ORDERED else orders
    answers = given.async_wait(
        name,
        oracle,
        service="oracle",
        mode=mode,
        timeout=timedelta(hours=9),
        park_after=timedelta(0),
        retry=FixedDelay(max_retries=1, delay=timedelta(hours=1), exceptions=(ConnectionError,)),
        on_failure=OnFailure.QUARANTINE,
    )
    answers.key_by("customer").process("sums", Sums()).sink("answers_given")
    return pipeline


def job_of(oracle, mode=OutputMode.ORDERED, service=KEEP, **options):
    return BackfilledJob(asking(oracle, mode), services={"oracle": service}, **options)


def three_days(oracle, mode=OutputMode.ORDERED, service=KEEP):
    job = job_of(oracle, mode, service)
    for number in range(3):
        job.write(number, ("ann", 1), ("bob", number))
    job.run()
    return job


def run_until_answered(job):
    job.run()
    while job.last().work.pending:
        job.pause(1)
        job.run()


def answers(job, branch=None):
    config = job.config if branch is None else job.config.on_branch(branch)
    last = job.last(branch)
    rows = JobFolder(config.job_folder).view(RESPONSES, last.versions[RESPONSES]).live_rows()
    return sorted(({**row, "checkpoint_id": None} for row in rows), key=lambda row: row["position"])


ORDERS = st.lists(st.tuples(st.sampled_from(CUSTOMERS[:3]), st.integers(0, 2)), min_size=1, max_size=4)


@pytest.mark.slow  # each example runs a job and its branch: 2 s
@examples(3)
@given(data=st.data())
def test_replay_of_unchanged_input_calls_nothing(data):
    draw = data.draw
    oracle = Oracle(draw(st.sets(st.integers(1, 12), max_size=6), "failing calls"))
    mode, files = draw(st.sampled_from(MODES), "mode"), draw(st.integers(1, 3), "files")
    job = job_of(oracle, mode, files_per_batch=files, promote="refuse")
    count = draw(st.integers(1, 4), "days")
    for number in range(count):
        job.write(number, *draw(ORDERS, "orders"))
        if draw(st.booleans(), "run"):
            job.run()
    run_until_answered(job)
    if draw(st.booleans(), "compact"):
        job.compact()
    live, called = job.content(), len(oracle.calls)
    oracle.is_down = draw(st.booleans(), "down")
    asked = days(draw(st.integers(0, count - 1), "first"))
    for _ in range(draw(st.integers(0, 2), "crashes")):
        place = f"{draw(st.sampled_from(PLACES), 'place')}:{draw(st.integers(1, 2), 'visit')}"
        job.backfill(asked, "again", crash_at=place)
    assert job.backfill(asked, "again").outcome is BackfillOutcome.COMPARED
    assert len(oracle.calls) == called
    assert job.content("again") == live
    assert job.content() == live


@pytest.mark.slow
@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_dead_service_is_not_even_opened(mode):
    oracle = Oracle({1, 2, 3})  # one is parked at the fork
    job = three_days(oracle, mode)
    run_until_answered(job)
    live, oracle.is_down = job.content(), True
    result = job.backfill(days(1), "again", promote="refuse")
    assert (result.outcome, job.content("again")) == (BackfillOutcome.COMPARED, live)
    assert result.report.responses_taken >= 4
    assert answers(job, "again") == answers(job)


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_only_changed_records_are_called(mode):
    oracle = Oracle()
    job = three_days(oracle, mode)
    job.write(1, ("cyd", 7), ("ann", 1), ("bob", 5))
    before = len(oracle.calls)
    job.backfill(days(1), "again")
    assert [(order.customer, order.amount) for order in oracle.calls[before:]] == [
        ("cyd", 7),
        ("ann", 1),  # at another time
        ("bob", 5),
    ]


@pytest.mark.slow
def test_promoted_answers_are_taken_again():
    oracle = Oracle()
    job = three_days(oracle)
    job.write(1, ("cyd", 7), ("bob", 1))
    job.backfill(days(1), "again")
    with job.on_its_clock(), promoting(job.config, "again", "somebody") as promotion:
        promotion.promote()
    live, called = job.content(), len(oracle.calls)
    job.backfill(days(1), "more", promote="refuse")
    assert (job.content("more"), len(oracle.calls)) == (live, called)


def test_plan_shows_calls_and_answers():
    job = three_days(Oracle())
    with job.on_its_clock():
        estimate = job.plan(days(1)).estimate
    assert (estimate.calls, estimate.responses) == ({}, {"ask": 4})
    job.pause(91 * 24)
    with job.on_its_clock():
        estimate = job.plan(days(1)).estimate
    assert (estimate.calls, estimate.responses) == ({"ask": 4}, {})


@pytest.mark.slow
def test_expired_answers_are_called_again():
    oracle = Oracle()
    job = three_days(oracle)
    job.pause(89 * 24)
    job.write(3, ("ann", 1))
    job.run()
    job.pause(2 * 24)
    job.backfill(days(1), "again", promote="refuse")
    assert len(oracle.calls) == 7 + 4
    job.compact()
    assert [row["ordinal"] for row in answers(job)] == [6]


@pytest.mark.slow
def test_replay_setting_call_calls_again():
    oracle = Oracle()
    job = three_days(oracle, service=KEEP | {"replay": "call"})
    assert job.plan(days(1)).estimate.calls == {"ask": 4}
    job.backfill(days(1), "again")
    assert len(oracle.calls) == 10


@pytest.mark.slow
def test_effects_are_not_repeated():
    oracle = Oracle()
    job = three_days(oracle, service=KEEP | {"effects": True})
    live = job.content()
    job.backfill(days(1), "again", promote="refuse")
    assert (len(oracle.calls), job.content("again")) == (6, live)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_effects_of_changed_records_are_refused(mode):
    oracle = Oracle()
    job = three_days(oracle, mode, KEEP | {"effects": True})
    live = job.content()
    job.write(2, ("ann", 1), ("bob", 9))
    with pytest.raises(ConfigError, match="no kept response of service 'oracle' for Order.*'bob'.*--allow-effects"):
        job.backfill(days(1), "again")
    assert (len(oracle.calls), job.content()) == (6, live)
    job.backfill(days(1), "again", allow_effects=True)
    assert [order.amount for order in oracle.calls[6:]] == [9]


class Forgetful(Oracle):
    """Has no response for the amount 0."""

    async def invoke(self, order, /):
        return await super().invoke(order) if order.amount else []

    def deleted(self, order, /):
        return Answer(order.customer, order.amount, -1.0)


class Seen(KeyedProcessFunction[Answer, Answer]):
    """Emits each change as an insert, with its kind as the amount."""

    async def process(self, answer, ctx, /):
        ctx.collect(Answer(answer.customer, int(ctx.row_kind), answer.value))


def changes_of(oracle, mode):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at", row_kind="op").drop_update_before("customer")
    keyed = orders.key_by("customer") if mode is OutputMode.KEYED_ORDERED else orders
    answers = keyed.async_wait("ask", oracle, service="oracle", mode=mode, timeout=timedelta(hours=9))
    answers.key_by("customer").process("seen", Seen()).sink("changes")
    return BackfilledJob(pipeline, services={"oracle": KEEP})


def write_changes(job, number, *changes):
    job.path(number).unlink(missing_ok=True)
    at = days(number).start
    kinds, customers, amounts = zip(*changes, strict=True)
    orders = [Order(customer, at, amount) for customer, amount in zip(customers, amounts, strict=True)]
    job.harness.feed("orders", orders, kinds=kinds, file=job.path(number).name)


INSERT, BEFORE, AFTER, DELETE = RowKind


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_branch_repeats_deletions_without_calls(mode):
    oracle = Forgetful()
    job = changes_of(oracle, mode)
    write_changes(job, 0, (INSERT, "ann", 1), (INSERT, "bob", 0))
    write_changes(job, 1, (BEFORE, "ann", 1), (AFTER, "ann", 2), (DELETE, "ann", 2), (DELETE, "eve", 3))
    job.run()
    live, called = job.content(), len(oracle.calls)
    assert emitted(job) == [
        ("ann", INSERT, 1.0),
        ("ann", AFTER, 2.0),
        ("ann", DELETE, -1.0),
        ("bob", DELETE, -1.0),  # the service has no response
        ("eve", DELETE, -1.0),
    ]
    oracle.is_down = True
    job.backfill(days(1), "again", promote="refuse")
    assert (job.content("again"), len(oracle.calls)) == (live, called)


def test_deletion_is_no_answer_to_a_call():
    oracle = Forgetful()
    job = changes_of(oracle, OutputMode.ORDERED)
    write_changes(job, 0, (DELETE, "eve", 3))
    job.run()
    assert not answers(job)
    write_changes(job, 0, (INSERT, "eve", 3))
    job.backfill(days(0), "again")
    assert [order.amount for order in oracle.calls] == [3]
    assert emitted(job, "again") == [("eve", INSERT, 1.0)]


def emitted(job, branch=None):
    rows = map(dict, job.content(branch)["sink changes"])
    return sorted((row["customer"], row["amount"], row["value"]) for row in rows)


def pipeline_of(oracle):
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    orders.async_wait("ask", oracle, service="oracle", timeout=timedelta(hours=9)).sink("answers_given")
    return pipeline


@pytest.mark.slow
def test_answer_changed_by_json_is_dropped():
    oracle = Oracle()
    oracle.value = math.nan
    job = BackfilledJob(pipeline_of(oracle), services={"oracle": KEEP})
    job.write(0, ("ann", 1))
    job.run()
    assert not answers(job)
    job.backfill(days(0), "again")
    assert len(oracle.calls) == 2


def test_job_without_kept_answers_has_no_table():
    job = three_days(Oracle(), service={"url": "http://oracle"})
    assert RESPONSES not in job.last().versions
    assert not (job.harness.folder / "state" / "shop" / RESPONSES).exists()


@pytest.mark.slow
def test_keeping_service_creates_the_table():
    oracle = Oracle()
    job = three_days(oracle, service={"url": "http://oracle"})
    old = job.last().checkpoint_id
    job.change(job=job.harness.job | {"services": {"oracle": KEEP}})
    job.write(3, ("ann", 1))
    assert job.harness.run(crash_at="commit.before") is None
    job.run()
    assert [row["attempts"] for row in answers(job)] == [1]
    with job.on_its_clock():
        fork(job.config, "mine", old, "somebody")
        restore(job.config, old, "as it was", "somebody")
    job.run()
    job.run("mine")
    assert [row["result"] for row in answers(job, "mine")] == [row["result"] for row in answers(job)]
    assert job.content("mine") == job.content()


def test_answers_of_an_erased_key_are_erased():
    job = three_days(Oracle(), OutputMode.KEYED_ORDERED)
    with job.on_its_clock():
        erase(job.config, "somebody", ErasedKey('"ann"'), why="request 7", purge=True)
    assert {row["key"] for row in answers(job)} == {'"bob"'}


@pytest.mark.slow
def test_answers_mentioning_a_key_are_erased():
    job = three_days(Oracle())
    with job.on_its_clock():
        kept = erase(job.config, "somebody", ErasedKey('"ann"'), why="request 7").survey.mentions
        assert {rows.table for rows in kept} == {RESPONSES}
        erase(job.config, "somebody", ErasedKey('"ann"', with_mentions=True), why="request 8", purge=True)
    assert ["ann" in row["request"] for row in answers(job)] == [False] * 3


@pytest.mark.slow
def test_table_goes_through_all_commands():
    oracle = Oracle()
    job = three_days(oracle)
    kept = len(answers(job))
    with job.on_its_clock():
        apply(job.config, Rescale(64, "smaller"), "somebody")
        job.harness.max_parallelism = 64
        job.change(pipeline=asking(oracle, name="inquire"))
        apply(job.config, RenameOperator("ask", "inquire"), "somebody")
        compact(job.config, "somebody")
        assert [row["operator"] for row in answers(job)] == ["inquire"] * kept
        assert ask_sql(JobAtCheckpoint(job.config), "SELECT DISTINCT service FROM responses").rows == [("oracle",)]
        assert all(check.ok for check in verify(job.config))
        job.change(pipeline=asking(oracle))
        apply(job.config, DropOperator("inquire", "not needed"), "somebody")
        assert not answers(job)
    with after_retention(job.config):
        vacuum(job.config, "somebody", dry_run=False)
        assert all(check.ok for check in verify(job.config))
