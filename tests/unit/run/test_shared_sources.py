"""Sources whose streams call services and do not: the latter neither wait for the calls nor are cut by them."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AsyncFunction,
    FixedDelay,
    KeyedProcessFunction,
    OutputMode,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.errors import UserFunctionError
from headrace.operators import Count, Sum, Tumbling
from headrace.operators._sliced_windows import SlicedAggregation
from headrace.plan.stages import Plan
from headrace.run import transit
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

MODES = (OutputMode.ORDERED, OutputMode.UNORDERED, OutputMode.UNORDERED_PROCESSING_TIME)
WINDOW_MS = 10
ROWS = 100
START = 1_577_836_800_000


class Order(Struct, frozen=True):
    id: int
    shop: str
    at: Timestamp


class Silent(AsyncFunction[Order, Order]):
    """A service that answers no call while it is silent."""

    is_silent = True

    async def invoke(self, order, /):
        if Silent.is_silent:
            await asyncio.get_running_loop().create_future()
        return [order]


@pytest.fixture(autouse=True)
def silent_service(monkeypatch):
    """Let the service be silent, and tasks look for the stop sign after few records."""
    monkeypatch.setattr(Silent, "is_silent", True)
    monkeypatch.setattr(transit, "ROWS_AT_ONCE", 8)


def asked(stream, name="ask", mode=OutputMode.ORDERED, **options):
    return stream.async_wait(name, Silent(), mode=mode, timeout=None, **options)


def counted(stream, name):
    windows = stream.key_by("shop").window(Tumbling(timedelta(milliseconds=WINDOW_MS)))
    return windows.aggregate(name, orders=Count())


def job(add, **options):
    """Return the job of one source that is read by a plain window, and by what `add` adds to the pipeline."""
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    add(orders)
    counted(orders, "plain").sink("plain")
    harness = PipelineHarness(pipeline, now=0, bucket=5, job={"run": {"budget": "2s"}}, **options)
    for first in (0, ROWS // 2):
        harness.feed("orders", [Order(at, "ab"[at % 2], at) for at in range(first, first + ROWS // 2)])
    return harness


def windows_in(harness, sink="plain"):
    return sorted((row.window_start, row.shop, row.orders) for row in harness.sink(sink))


def ids_in(harness, sink):
    return sorted(order.id for order in harness.sink(sink))


COMPLETE = [(start, shop, WINDOW_MS // 2) for start in range(0, ROWS - WINDOW_MS, WINDOW_MS) for shop in "ab"]
"""The results of the windows that the last watermark has passed."""


@pytest.mark.parametrize("mode", MODES)
def test_silent_service_cuts_no_plain_window(mode):
    harness = job(lambda orders: asked(orders, mode=mode).sink("answers"))
    assert harness.run().stopped_because == "budget"
    assert windows_in(harness) == COMPLETE
    assert harness.sink("answers") == []
    assert len(harness.live("async_requests")) == ROWS


@pytest.mark.parametrize("mode", MODES)
def test_answers_come_complete_in_later_run(mode):
    harness = job(lambda orders: counted(asked(orders, mode=mode), "of_answers").sink("of_answers"))
    harness.run()
    Silent.is_silent = False
    harness.run()
    if mode is not OutputMode.UNORDERED_PROCESSING_TIME:
        assert windows_in(harness, "of_answers") == COMPLETE
    assert windows_in(harness) == COMPLETE
    assert harness.live("async_requests") == []


def test_two_silent_waits_in_a_row_cut_nothing():
    harness = job(lambda orders: asked(asked(orders.filter(is_third), "first"), "second").sink("answers"))
    harness.run()
    assert windows_in(harness) == COMPLETE
    Silent.is_silent = False
    harness.run()
    assert ids_in(harness, "answers") == [*range(0, ROWS, 3)]


def is_third(order: Order) -> bool:
    return order.id % 3 == 0


def renamed(order: Order) -> Order:
    return Order(order.id, order.shop * 2, order.at)


def test_records_made_by_steps_reach_later_calls():
    harness = job(lambda orders: asked(orders.filter(is_third).map(renamed)).sink("answers"))
    Silent.is_silent = False
    harness.run()
    assert {order.shop for order in harness.sink("answers")} == {"aa", "bb"}
    assert len(harness.sink("answers")) == len(range(0, ROWS, 3))


def test_join_with_answers_waits_for_them():
    def joined(orders):
        at_once = (timedelta(0), timedelta(0))
        answers = asked(orders).key_by("id")
        orders.key_by("id").join("same", answers, emit=lambda order, _: order, within=at_once, record=Order).sink(
            "same"
        )

    harness = job(joined)
    harness.run()
    assert (windows_in(harness), harness.sink("same")) == (COMPLETE, [])
    Silent.is_silent = False
    harness.run()
    assert ids_in(harness, "same") == [*range(ROWS)]


class Numbered(KeyedProcessFunction[Order, Order]):
    """Puts the number of a record among those of its key before its shop."""

    count = ValueState("count", int)

    async def process(self, order, ctx, /):
        count = await self.count.value() or 0
        await self.count.update(count + 1)
        ctx.collect(Order(order.id, f"{count}{order.shop}", order.at))


def test_answers_meet_plain_records_in_declared_order():
    def met(orders):
        orders.sink("orders")  # a place without the number of its use would sort as one of the first use
        first = orders.filter(is_third)
        answers = asked(orders).filter(is_third).map(renamed)
        first.union(answers).key_by("id").process("met", Numbered()).sink("met")

    harness = job(met)
    Silent.is_silent = False
    harness.run()
    harness.run()
    assert {order.shop for order in harness.sink("met")} == {"0a", "0b", "1aa", "1bb"}


def test_wait_by_key_cuts_no_plain_window():
    harness = job(lambda orders: asked(orders.key_by("id"), mode=OutputMode.KEYED_ORDERED).sink("answers"))
    harness.run()
    assert windows_in(harness) == COMPLETE


def test_waits_of_one_service_share_its_limit():
    under_way = []

    class Noted(AsyncFunction[Order, Order]):
        most = 0

        async def invoke(self, order, /):
            under_way.append(order)
            Noted.most = max(Noted.most, len(under_way))
            await asyncio.sleep(0)
            under_way.remove(order)
            return [order]

    def both(orders):
        for number in (1, 2):
            answers = orders.async_wait(f"ask_{number}", Noted(), timeout=timedelta(hours=1), service="shop")
            answers.sink(f"answers_{number}")

    harness = job(both)
    services = {"shop": {"url": "http://127.0.0.1:9", "concurrency": 1}}
    harness.change(job={"services": services}, parallelism=1)
    harness.run()
    assert Noted.most == 1
    assert len(harness.sink("answers_1")) == len(harness.sink("answers_2")) == ROWS


def test_crash_behind_plain_stages_changes_nothing():
    harness = job(lambda orders: asked(orders).sink("answers"))
    Silent.is_silent = False
    assert harness.run(crash_at="task.half") is None
    assert harness.run(crash_at="run.after") is None
    harness.run()
    assert windows_in(harness) == COMPLETE
    assert ids_in(harness, "answers") == [*range(ROWS)]


def test_failed_plain_stage_makes_no_call():
    calls = []

    class Noted(AsyncFunction[Order, Order]):
        async def invoke(self, order, /):
            calls.append(order)
            return [order]

    def failing(order: Order) -> int:
        return 1 // order.id

    def add(orders):
        orders.async_wait("noted", Noted(), timeout=timedelta(minutes=1)).sink("noted")
        orders.key_by("shop").window(Tumbling(timedelta(milliseconds=WINDOW_MS))).aggregate(
            "failing", total=Sum(failing)
        ).sink("failing")

    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        job(add).run()
    assert not calls


def test_job_without_plain_stage_calls_while_it_reads():
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at")
    orders.sink("raw")
    counted(asked(orders), "of_answers").sink("of_answers")
    Silent.is_silent = False
    harness = PipelineHarness(pipeline, now=0)
    harness.feed("orders", [Order(1, "a", 1)])
    harness.run()
    assert set(harness.facts[-1].seconds) == {"sources", "of_answers", "run"}


def test_calls_that_reading_tasks_left_go_on_later(monkeypatch):
    harness = job(lambda orders: counted(asked(orders), "of_answers").sink("of_answers"))
    with monkeypatch.context() as before:
        before.setattr(Plan, "is_shared", lambda *_: False)
        before.setattr(Plan, "plain_and_others", lambda plan: ((), plan.keyed))
        before.setattr(SlicedAggregation, "takes_columns", False)  # a task that takes columns leaves none
        harness.run()
    assert harness.live("buffered_requests")  # records of the plain window
    harness.change(parallelism=3)
    harness.run()
    assert windows_in(harness) == COMPLETE
    Silent.is_silent = False
    harness.change(job={})
    harness.run()
    assert windows_in(harness, "of_answers") == windows_in(harness) == COMPLETE


# ------------------------------------------------------------------------------------------------------ as properties


class Moody(AsyncFunction[Order, Order]):
    """A service that refuses some orders, and answers others late."""

    refused = frozenset()

    async def invoke(self, order, /):
        await asyncio.sleep(0)
        if order.id % 5 in Moody.refused:
            raise TimeoutError
        return [order]


RETRY = FixedDelay(max_retries=1_000, delay=timedelta(minutes=1), exceptions=(TimeoutError,))


def moody(stream, name, mode):
    return stream.async_wait(
        name, Moody(), mode=mode, timeout=timedelta(hours=1), retry=RETRY, park_after=timedelta(0), capacity=3
    )


def started(mode=None, **options):
    """Return a job whose windows count all orders; with `mode`, also those that have passed one wait, and two."""
    pipeline = Pipeline("shop")
    orders = pipeline.source("orders", Order, event_time="at", out_of_orderness=timedelta(milliseconds=5))
    if mode is not None:
        answers = moody(orders.map(renamed), "ask", mode)
        counted(answers, "once").sink("once")
        counted(moody(answers.filter(is_third), "again", mode), "thirds").sink("thirds")
    else:
        counted(orders.map(renamed), "once").sink("once")
        counted(orders.filter(is_third).map(renamed), "thirds").sink("thirds")
    counted(orders, "plain").sink("plain")
    return PipelineHarness(pipeline, now=START, bucket=3, **options)


@pytest.mark.slow
@examples(6)
@given(
    mode=st.sampled_from([OutputMode.ORDERED, OutputMode.UNORDERED]),
    files=st.lists(st.lists(st.integers(-20, 60), min_size=1, max_size=12), min_size=1, max_size=5),
    data=st.data(),
)
def test_plain_windows_never_notice_the_waits(mode, files, data):
    alone, shared = started(), started(mode, parallelism=data.draw(st.integers(1, 3)), files_per_batch=2)
    number = 0
    for at, file in enumerate(files):
        orders = [Order(number + place, "ab"[place % 2], START + 20 * at + time) for place, time in enumerate(file)]
        number += len(orders)
        for harness in (alone, shared):
            harness.feed("orders", orders)
        Moody.refused = data.draw(st.frozensets(st.integers(0, 4)))
        place = data.draw(
            st.sampled_from([None, "ingest.after", "task.half", "task.half:4", "run.after", "commit.after"])
        )
        if place is not None:
            shared.run(crash_at=place)
        shared.run()
        alone.run()
        assert windows_in(shared) == windows_in(alone)
        shared.change(parallelism=data.draw(st.integers(1, 3)))
        shared.clock.advance(data.draw(st.sampled_from([0, 60_000])))
    Moody.refused = frozenset()
    shared.run(finish=True)
    for harness in (alone, shared):
        harness.run(end_of_input=True)
    for sink in ("plain", "once", "thirds"):
        assert windows_in(shared, sink) == windows_in(alone, sink)
