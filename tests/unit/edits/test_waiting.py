"""Timers that somebody sets or deletes, and calls that somebody drops or has made again now."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    OnFailure,
    OutputMode,
    Pipeline,
    Struct,
    TimeDomain,
    Timestamp,
)
from headrace.edits.edit import apply, preview
from headrace.edits.requeue import requeue
from headrace.edits.waiting import CallName, DeleteTimers, DropCalls, RetryCalls, SetTimer, TimerName
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from headrace.operators import Count, Tumbling
from headrace.testing import PipelineHarness

HOUR = 3_600_000


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp


class Fired(Struct, frozen=True):
    customer: str
    at: int
    domain: str


class Reminds(KeyedProcessFunction[Order, Fired]):
    def process(self, order, ctx, /):
        ctx.timers.register_event_time(order.at + 10 * HOUR)

    def on_timer(self, timestamp, ctx, /):
        ctx.collect(Fired(ctx.key, timestamp, str(ctx.time_domain)))


class Silent(KeyedProcessFunction[Order, Fired]):
    def process(self, order, ctx, /):
        ctx.collect(Fired(order.customer, order.at, ""))


def fed(backend):
    orders = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    orders.process("silent", Silent()).sink("lines")
    pipeline = orders.process("reminds", Reminds()).sink("fired")
    harness = PipelineHarness(pipeline, backend=backend, now=2 * HOUR, bucket=1)
    harness.feed("orders", [Order("a", HOUR), Order("b", 2 * HOUR)])
    harness.run()
    return harness


@pytest.fixture
def job():
    return fed("hashmap")


def edit(job, edit_):
    with job.on_its_clock():
        return apply(job.config, edit_, "somebody")


def reach(job, hour, customer="z"):
    job.clock.advance(hour * HOUR - job.clock.now())
    job.feed("orders", [Order(customer, hour * HOUR), Order(customer, hour * HOUR + 1)])
    job.run()
    return sorted((fired.customer, fired.at // HOUR, fired.domain) for fired in job.sink("fired"))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_set_timers_fire_as_registered_ones(backend):
    job = fed(backend)
    checkpoint = edit(job, SetTimer(TimerName("reminds", "a", 5 * HOUR), "remind"))
    assert (checkpoint.kind, checkpoint.metrics) == (Kind.EDIT, {"timers_edited": 1})
    edit(job, SetTimer(TimerName("reminds", "new", 4 * HOUR, TimeDomain.PROCESSING_TIME), "remind"))
    assert reach(job, 3) == []
    job.clock.advance(HOUR)
    job.run()  # without input
    assert [fired.customer for fired in job.sink("fired")] == ["new"]
    assert reach(job, 6) == [("a", 5, "event_time"), ("new", 4, "processing_time")]
    assert reach(job, 20)[:2] == [("a", 5, "event_time"), ("a", 11, "event_time")]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_deleted_timers_do_not_fire(backend):
    job = fed(backend)
    edit(job, DeleteTimers(TimerName("reminds", "a"), "no reminder"))
    assert reach(job, 20) == [("b", 12, "event_time")]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (SetTimer(TimerName("reminds", "a", HOUR)), "the watermark of operator 'reminds' has passed that time"),
        (SetTimer(TimerName("reminds", "a", HOUR, TimeDomain.PROCESSING_TIME)), "the last micro-batch .* has passed"),
        (SetTimer(TimerName("silent", "a", 9 * HOUR)), "has no on_timer"),
        (SetTimer(TimerName("other", "a", 9 * HOUR)), "no operator 'other'"),
        (DeleteTimers(TimerName("reminds", "a", 7 * HOUR)), "has no such timer of key a"),
        (DeleteTimers(TimerName("reminds", "z")), "has no such timer"),
        (DeleteTimers(TimerName("reminds", "a", domain=TimeDomain.PROCESSING_TIME)), "has no such timer"),
    ],
)
def test_timer_that_cannot_be_is_refused(job, wrong, message):
    with job.on_its_clock(), pytest.raises(ConfigError, match=message):
        preview(job.config, wrong)
    assert len(job.live("timers")) == 2


# --------------------------------------------------------------------------------------------------------------- calls


class Answer(Struct, frozen=True):
    customer: str
    attempts: int


class Service(AsyncFunction[Order, Answer]):
    """Is down for the customers in `down`."""

    down = frozenset({"a"})
    asked: list[str]

    async def invoke(self, order, /):
        self.asked.append(order.customer)
        if order.customer in self.down:
            raise ConnectionError(order.customer)
        return [Answer(order.customer, self.asked.count(order.customer))]


@pytest.fixture(params=[OutputMode.UNORDERED, OutputMode.KEYED_ORDERED, OutputMode.ORDERED])
def calling(request):
    Service.down, Service.asked = frozenset({"a"}), []
    stream = Pipeline("shop").source("orders", Order, event_time="at")
    if request.param is OutputMode.KEYED_ORDERED:
        stream = stream.key_by("customer")
    answers = stream.async_wait(
        "ask",
        Service(),
        mode=request.param,
        retry=FixedDelay(max_retries=5, delay=timedelta(hours=100)),
        park_after=timedelta(0),
        timeout=None,
        on_failure=OnFailure.QUARANTINE,
    )
    harness = PipelineHarness(answers.sink("answers"), now=2 * HOUR)
    harness.feed("orders", [Order("a", HOUR), Order("b", HOUR)])
    harness.run()
    return harness


def answered(job):
    return {(answer.customer, answer.attempts) for answer in job.sink("answers")}


def test_calls_are_made_again_at_once(calling):
    calling.run()
    assert Service.asked.count("a") == 1
    Service.down = frozenset()
    checkpoint = edit(calling, RetryCalls(CallName("ask"), "it is back"))
    assert checkpoint.work.pending == calling.facts[-2].work.pending
    calling.run()
    assert answered(calling) == {("a", 2), ("b", 1)}
    assert calling.facts[-1].work.pending == 0


def test_dropped_calls_are_in_quarantine(calling):
    edit(calling, DropCalls(CallName("ask"), "the customer is gone"))
    (row,) = calling.live("quarantine")
    assert (row["operator"], row["origin"]) == ("ask", "call")
    assert row["error"] == "dropped by hand: the customer is gone (last error: ConnectionError: a)"
    calling.run()
    assert answered(calling) == {("b", 1)}
    assert calling.facts[-1].work.pending == 0
    Service.down = frozenset()
    with calling.on_its_clock():
        requeue(calling.config, "somebody")
    calling.run()
    assert answered(calling) == {("a", 2), ("b", 1)}


def test_only_calls_of_a_key_are_meant():
    Service.down, Service.asked = frozenset({"a", "b"}), []
    stream = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    retry = FixedDelay(max_retries=5, delay=timedelta(hours=100))
    answers = stream.async_wait(
        "ask", Service(), mode=OutputMode.KEYED_ORDERED, retry=retry, park_after=timedelta(0), timeout=None
    )
    job = PipelineHarness(answers.sink("answers"), now=2 * HOUR)
    job.feed("orders", [Order("a", HOUR), Order("b", HOUR)])
    job.run()
    with pytest.raises(ConfigError, match="no call of operator 'ask' waits under that name"):
        edit(job, RetryCalls(CallName("ask", "c"), "back"))
    edit(job, RetryCalls(CallName("ask", "b"), "back"))
    job.run()
    assert Service.asked == ["a", "b", "b"]


def test_keys_and_operators_of_calls_are_checked(calling):
    with pytest.raises(ConfigError, match="no async operator is called 'nope' .there are: ask"):
        edit(calling, RetryCalls(CallName("nope"), "back"))
    is_keyed = (
        calling.facts[-1].operators.get("ask") is not None and calling.facts[-1].operators["ask"].rank is not None
    )
    if not is_keyed:
        with pytest.raises(ConfigError, match="have no key: leave --key out"):
            edit(calling, RetryCalls(CallName("ask", "1"), "back"))


def test_branch_may_lack_calls_that_were_due(calling):
    branch = calling.branch("late")
    edit(calling, RetryCalls(CallName("ask"), "it is back"))
    branch.promote()
    assert calling.facts[-1].kind is Kind.PROMOTION


def test_timers_of_ready_made_operators_are_theirs():
    orders = Pipeline("shop").source("orders", Order, event_time="at").key_by("customer")
    hours = orders.window(Tumbling(timedelta(hours=1))).aggregate("hours", n=Count())
    job = PipelineHarness(hours.sink("out"), now=2 * HOUR)
    job.feed("orders", [Order("a", HOUR)])
    job.run()
    with job.on_its_clock(), pytest.raises(ConfigError, match="ready-made"):
        preview(job.config, SetTimer(TimerName("hours", "a", 90 * HOUR)))
