from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import AggregateFunction, Pipeline, StateTtl, Struct, Timestamp
from headrace.operators import running_aggregate
from headrace.plan.planner import plan_stages
from headrace.testing import KeyedHarness

HOUR = 3_600_000


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp
    cents: int


class Total(Struct, frozen=True):
    customer: str
    cents: int


class Totals(AggregateFunction[Order, Total, Total]):
    def create_accumulator(self):
        return Total("", 0)

    def add(self, value, accumulator, /):
        return Total(value.customer, accumulator.cents + value.cents)

    def get_result(self, accumulator, /):
        return accumulator

    def merge(self, one, other, /):
        return Total(one.customer, one.cents + other.cents)


def totals(ttl=None):
    return running_aggregate(Totals(), takes=Order, gives=Total, ttl=ttl)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def harness_of(request):
    harnesses = []

    def make(function):
        harnesses.append(KeyedHarness(function, key=lambda order: order.customer, backend=request.param))
        return harnesses[-1]

    yield make
    for harness in harnesses:
        harness.close()


def results(harness, *orders):
    for order in orders:
        harness.process(order, timestamp=order.at)
    harness.drain()
    return [(total.customer, total.cents) for total in harness.output() if isinstance(total, Total)]


def test_each_record_emits_its_keys_total(harness_of):
    orders = (Order("ann", 1, 5), Order("bob", 2, 7), Order("ann", 3, 6))
    assert results(harness_of(totals()), *orders) == [("ann", 5), ("bob", 7), ("ann", 11)]


def test_expired_total_restarts(harness_of):
    harness = harness_of(totals(StateTtl(timedelta(hours=1))))
    assert results(harness, Order("ann", 0, 5)) == [("ann", 5)]
    harness.watermark(HOUR)
    assert results(harness, Order("ann", HOUR, 6)) == [("ann", 6)]


def test_total_survives_a_snapshot(harness_of):
    harness = harness_of(totals())
    results(harness, Order("ann", 1, 5))
    options = {"key": lambda order: order.customer, "backend": "hashmap"}
    with KeyedHarness.restore(harness.snapshot(), totals(), **options) as restored:
        assert results(restored, Order("ann", 2, 6)) == [("ann", 11)]


def test_record_beyond_its_ttl_emits_nothing(harness_of):
    harness = harness_of(totals(StateTtl(timedelta(hours=1))))
    harness.watermark(2 * HOUR)
    assert results(harness, Order("ann", HOUR, 5)) == []


def test_running_aggregate_fits_into_a_pipeline():
    source = Pipeline("orders").source("orders", Order, event_time="at")
    pipeline = source.key_by("customer").process("totals", totals()).sink("totals_log")
    assert plan_stages(pipeline).sinks["totals_log"].record is Total


def test_function_without_types_is_refused():
    class Untyped(AggregateFunction):
        create_accumulator = add = get_result = merge = None

    with pytest.raises(TypeError):
        running_aggregate(Untyped(), takes=Order, gives=Total)
