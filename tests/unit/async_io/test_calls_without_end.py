"""Calls without a timeout: they may last as long as the run, and `--finish` says so where none of them ends."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import ClassVar

import pytest

from headrace import AsyncFunction, CircuitBreaker, OnFailure, OutputMode, Pipeline, Struct, Timestamp
from headrace.errors import ServiceError
from headrace.testing import AsyncWaitHarness, PipelineHarness

YEAR_MS = 365 * 24 * 3_600_000


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


class Silent(AsyncFunction[Order, Order]):
    """Never answers for the ids in `silent`."""

    silent = frozenset({"b", "c"})

    async def invoke(self, order, /):
        if order.id in self.silent:
            await asyncio.get_running_loop().create_future()
        return [order]


class Slow(AsyncFunction[Order, Order]):
    async def invoke(self, order, /):
        await asyncio.sleep(YEAR_MS / 1000)
        return [order]


@pytest.mark.parametrize("breaker", [None, CircuitBreaker(failures=1)])
@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_call_without_timeout_may_last_a_year(mode, breaker):
    keyed = {"key": lambda order: order.id} if mode is OutputMode.KEYED_ORDERED else {}
    with AsyncWaitHarness(Slow(), mode=mode, timeout=None, breaker=breaker, **keyed) as harness:
        harness.process(Order("a", 1))
        harness.clock.advance(YEAR_MS - 1)
        assert harness.output() == []
        harness.clock.advance(1)
        assert harness.output() == [Order("a", 1)]


def test_calls_of_one_deadline_expire_in_their_order():
    class Counted(Silent):
        silent = frozenset(map(str, range(40)))
        expired: ClassVar[list[str]] = []

        async def timeout(self, order, /):
            self.expired.append(order.id)
            return [order]

    with AsyncWaitHarness(Counted(), mode=OutputMode.UNORDERED, timeout=timedelta(seconds=1), capacity=40) as harness:
        for number in range(40):
            harness.process(Order(str(number), 1))
        harness.clock.advance(1000)
        assert [order.id for order in harness.output()] == Counted.expired == [*map(str, range(40))]


def job(mode, ids, budget="2s", **options):
    Silent.silent = frozenset({"b", "c"})
    stream = Pipeline("shop").source("orders", Order, event_time="at")
    if mode is OutputMode.KEYED_ORDERED:
        stream = stream.key_by("id")
    waits = stream.async_wait("ask", Silent(), mode=mode, **{"timeout": None, **options})
    harness = PipelineHarness(waits.sink("out"), now=0, job={"run": {"budget": budget}})
    harness.feed("orders", [Order(name, 1) for name in ids])
    return harness


@pytest.mark.parametrize("mode", [OutputMode.UNORDERED, OutputMode.KEYED_ORDERED])
def test_finish_names_calls_that_never_end(mode):
    harness = job(mode, "abc")
    assert harness.run().stopped_because == "budget"
    with pytest.raises(ServiceError) as raised:
        harness.run(finish=True)
    parts = (
        "2 of operator 'ask'",
        "budget of 2 s",
        "async_io.ask.timeout",
        "Nothing is lost",
        "headrace waiting shop --calls",
    )
    assert all(part in str(raised.value) for part in parts)
    assert ('with key "b"' in str(raised.value)) is (mode is OutputMode.KEYED_ORDERED)
    assert 'record {"id":"b","at":1}' in str(raised.value)
    # What the error advises.
    harness.change(job={"run": {"budget": "1h"}, "async_io": {"ask": {"timeout": "1ms"}}})
    with pytest.raises(ServiceError, match="no response within 0.001 s.*OnFailure.QUARANTINE"):
        harness.run(finish=True)
    Silent.silent = frozenset()
    assert harness.run(finish=True).stopped_because == "finished"
    assert sorted(order.id for order in harness.sink("out")) == ["a", "b", "c"]


def test_finish_that_makes_progress_goes_on():
    harness = job(OutputMode.UNORDERED, "bc")
    harness.run()
    Silent.silent = frozenset({"c"})
    assert harness.run(finish=True).stopped_because == "budget"
    with pytest.raises(ServiceError, match="1 of operator 'ask'"):
        harness.run(finish=True)


def test_quarantine_is_a_way_on():
    harness = job(
        OutputMode.ORDERED, "abc", budget="1h", timeout=timedelta(milliseconds=1), on_failure=OnFailure.QUARANTINE
    )
    harness.run(finish=True)
    assert [order.id for order in harness.sink("out")] == ["a"]
    assert len(harness.table("quarantine")) == 2
