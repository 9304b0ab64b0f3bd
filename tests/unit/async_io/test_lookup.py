"""`lookup` is `async_wait` with a cache, as an inner or a left join."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import AsyncFunction, JoinType, LookupCache, LookupFunction, Pipeline, Struct, Timestamp
from headrace.testing import PipelineHarness


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp


class Line(Struct, frozen=True):
    customer: str
    name: str | None


CALLS: list[str] = []


class Names(LookupFunction[Order, Line]):
    def cache_key(self, record, /):
        return record.customer

    async def look_up(self, key, /):
        CALLS.append(key)
        return {"a": "Ann", "b": "Bob"}.get(key)

    def join(self, record, answers, /):
        return [Line(record.customer, answers)]


@pytest.fixture(autouse=True)
def calls():
    CALLS.clear()
    return CALLS


def looked_up(*customers, **options):
    orders = Pipeline("shop").source("orders", Order, event_time="at")
    stream = orders.lookup("names", Names(), timeout=timedelta(seconds=5), capacity=1, **options)
    harness = PipelineHarness(stream.sink("lines"))
    harness.feed("orders", [Order(customer, at) for at, customer in enumerate(customers)])
    harness.run()
    return sorted((line.customer, line.name) for line in harness.sink("lines"))


def test_inner_lookup_drops_negative_answers():
    assert looked_up("a", "x", "b", "a") == [("a", "Ann"), ("a", "Ann"), ("b", "Bob")]


def test_left_lookup_keeps_all_records():
    assert looked_up("a", "x", how=JoinType.LEFT) == [("a", "Ann"), ("x", None)]


@pytest.mark.parametrize("how", [JoinType.INNER, JoinType.LEFT])
def test_answer_is_asked_for_once(calls, how):
    looked_up("a", "x", "a", "x", how=how)
    assert sorted(calls) == ["a", "x"]


def test_cache_of_negative_answers_can_be_disabled(calls):
    looked_up("x", "x", cache=LookupCache(negative_ttl=timedelta(0)))
    assert calls == ["x", "x"]


def test_unsupported_functions_and_join_types_are_refused():
    class Plain(AsyncFunction[Order, Line]):
        async def invoke(self, record, /):
            return []

    orders = Pipeline("shop").source("orders", Order, event_time="at")
    with pytest.raises(TypeError, match="lookup 'names' takes an instance of a class derived from LookupFunction"):
        orders.lookup("names", Plain(), timeout=timedelta(seconds=5))
    with pytest.raises(
        ValueError, match=r"lookup 'names': how must be JoinType.INNER or JoinType.LEFT, not JoinType.FULL"
    ):
        orders.lookup("names", Names(), timeout=timedelta(seconds=5), how=JoinType.FULL)
