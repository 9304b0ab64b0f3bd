"""Async waits among the steps of a source's stage: all waits share one loop, and the limits of their service."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace import AsyncFunction, Pipeline, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.testing import PipelineHarness

SHOP = {"services": {"shop": {"url": "http://127.0.0.1:9", "concurrency": 1}}}


class Order(Struct, frozen=True):
    id: int
    at: Timestamp
    calls: int = 0


class Call(AsyncFunction[Order, Order]):
    async def invoke(self, order, /):
        await asyncio.sleep(0)  # the others wait for their turn
        return [Order(order.id, order.at, order.calls + 1)]


def test_waits_share_limits_over_steps_and_branches():
    def wait(stream, name):
        return stream.async_wait(name, Call(), timeout=timedelta(minutes=1), service="shop")

    p = Pipeline("orders")
    orders = p.source("orders", Order, event_time="at")
    wait(wait(orders, "first").filter(lambda order: order.id), "second").sink("twice")
    wait(orders, "third").sink("once")
    harness = PipelineHarness(p, job=SHOP)
    harness.feed("orders", [Order(number, number) for number in range(5)])
    harness.run()
    assert sorted(order.calls for order in harness.sink("twice")) == [2] * 4
    assert sorted(order.calls for order in harness.sink("once")) == [1] * 5


def test_failed_branch_makes_no_calls():
    calls = []

    class Noted(AsyncFunction[Order, Order]):
        async def invoke(self, order, /):
            calls.append(order)
            return [order]

    p = Pipeline("orders")
    orders = p.source("orders", Order, event_time="at")
    orders.async_wait("noted", Noted(), timeout=timedelta(minutes=1)).sink("noted")
    orders.filter(lambda order: 1 // order.id).sink("kept")
    harness = PipelineHarness(p)
    harness.feed("orders", [Order(0, 0)])
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        harness.run()
    assert not calls
