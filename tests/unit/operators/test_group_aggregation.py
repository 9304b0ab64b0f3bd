"""Aggregates of all records of each key: the changelog is that of a table computed anew after each record."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from operator import attrgetter
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, KeyedProcessFunction, Lifetime, Pipeline, RowKind, StateTtl, Struct, Timestamp, TtlTime
from headrace.errors import UserFunctionError
from headrace.operators import Count, CountDistinct, Max, Sum
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp
    cents: int
    article: str = ""


class Spent(Struct, frozen=True):
    customer: str
    orders: Annotated[int, Count()]
    cents: Annotated[int | None, Sum("cents")]
    articles: Annotated[int, CountDistinct("article")]


class Dearest(Struct, frozen=True):
    customer: str
    cents: Annotated[int, Max("cents")]


def orders(*, row_kind=None):
    return Pipeline("shop").source("orders", Order, event_time="at", row_kind=row_kind).key_by("customer")


def function_of(result=Spent, **options):
    stream = orders().aggregate("spent", result, **{"state_ttl": Lifetime.FOREVER} | options)
    return stream.operators[-1].function


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def backend(request):
    return request.param


def harness_of(result=Spent, *, backend="hashmap", **options):
    return KeyedHarness(function_of(result, **options), key=attrgetter("customer"), backend=backend)


def give(harness, *given, kind=INSERT):
    for order in given:
        harness.process(order, timestamp=order.at, kind=kind)
    harness.drain()
    return harness.kinds()


def spent(rows):
    """Return the results of the rows, computed from scratch."""
    by_customer = defaultdict(list)
    for row in rows:
        by_customer[row.customer].append(row)
    return by_fields(
        [
            Spent(customer, len(own), sum(row.cents for row in own), len({row.article for row in own}))
            for customer, own in by_customer.items()
        ]
    )


ORDERS = st.builds(Order, st.sampled_from("ab"), st.integers(0, 9), st.integers(-3, 3), st.sampled_from("xy"))


@given(given=st.lists(st.tuples(ORDERS, st.booleans()), max_size=30))
def test_each_change_leaves_the_table(given):
    rows = []
    with harness_of(retracting=True) as harness:
        for order, is_addition in given:
            if not is_addition and order not in rows:
                continue
            (rows.append if is_addition else rows.remove)(order)
            changes = give(harness, order, kind=AFTER if is_addition else BEFORE)
            assert table_of(changes, Spent) == spent(rows)


@examples(4)
@given(given=st.lists(st.tuples(ORDERS, st.booleans()), max_size=30), cut=st.integers(0, 30), parts=st.integers(1, 3))
def test_net_changes_leave_the_table(given, cut, parts):
    rows, kinds, kept = [], [], []
    for order, is_addition in given:
        if is_addition or order in kept:
            (kept.append if is_addition else kept.remove)(order)
            rows.append(order)
            kinds.append(INSERT if is_addition else DELETE)
    totals = orders(row_kind="kind").aggregate("spent", Spent, emit=Emit.NET_CHANGE, state_ttl=Lifetime.FOREVER)
    pipeline = totals.upsert_materialize("board", primary_key=("customer",)).sink("spent")
    harness = PipelineHarness(pipeline, bucket=2, parallelism=parts, files_per_batch=1)
    for part in (slice(None, cut), slice(cut, None)):
        harness.feed("orders", rows[part], kinds=kinds[part])
        harness.run()
    assert by_fields(harness.sink("spent")) == spent(kept)


def test_later_result_retracts_the_earlier_one(backend):
    with harness_of(backend=backend) as harness:
        changes = give(harness, Order("a", 1, 5), Order("b", 2, 1), Order("a", 3, 7, "x"))
    first = Spent("a", 1, 5, 1)
    assert changes == [(INSERT, first), (INSERT, Spent("b", 1, 1, 1)), (BEFORE, first), (AFTER, Spent("a", 2, 12, 2))]


def test_retracted_result_has_its_own_time():
    with harness_of() as harness:
        give(harness, Order("a", 1, 5), Order("a", 9, 7))
        emitted = [(record.timestamp, RowKind(record.kind)) for record in harness._process.emitted]
    assert emitted == [(1, INSERT), (1, BEFORE), (9, AFTER)]


def test_results_without_retractions_are_updates():
    with harness_of(retract=False) as harness:
        changes = give(harness, Order("a", 1, 5), Order("a", 2, 7))
    assert changes == [(INSERT, Spent("a", 1, 5, 1)), (AFTER, Spent("a", 2, 12, 1))]


def test_equal_result_is_not_emitted_again(backend):
    with harness_of(Dearest, backend=backend) as harness:
        changes = give(harness, Order("a", 1, 5), Order("a", 2, 3), Order("a", 3, 6))
        group = harness.state("aggregate", "a")
    assert changes == [(INSERT, Dearest("a", 5)), (BEFORE, Dearest("a", 5)), (AFTER, Dearest("a", 6))]
    assert (group.rows, group.at) == (3, 3)


def test_last_retraction_deletes_result_and_state(backend):
    with harness_of(backend=backend, retracting=True) as harness:
        give(harness, Order("a", 1, 5))
        changes = give(harness, Order("a", 2, 5), kind=DELETE)
        assert harness.state("aggregate", "a") is None
    assert changes[-1] == (DELETE, Spent("a", 1, 5, 1))


def test_retraction_before_its_record_emits_nothing():
    with harness_of(retracting=True) as harness:
        assert give(harness, Order("a", 1, 5), kind=DELETE) == []
        assert [record for record, _ in harness.quarantined()] == [Order("a", 1, 5)]
        assert give(harness, Order("a", 2, 7)) == [(INSERT, Spent("a", 1, 7, 1))]


def test_result_that_comes_back_keeps_its_time():
    totals = orders(row_kind="kind").aggregate("spent", Spent, emit=Emit.NET_CHANGE, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(totals.sink("log"))
    harness.feed("orders", [Order("a", 1, 5)], kinds=[INSERT])
    harness.run()
    harness.feed("orders", [Order("a", 2, 5), Order("a", 3, 5)], kinds=[DELETE, INSERT])
    harness.run()
    assert harness.sink("log") == [Spent("a", 1, 5, 1)]
    groups = [msgspec.json.decode(row["value"]) for row in harness.table("keyed_state").to_pylist()]
    assert [group["at"] for group in groups] == [1, 1]


def test_results_are_aggregated_again():
    class Customers(Struct, frozen=True):
        orders: int
        customers: Annotated[int, Count()]

    totals = orders().aggregate("spent", Spent, state_ttl=Lifetime.FOREVER)
    counted = totals.key_by("orders").aggregate("customers", Customers, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(counted.upsert_materialize("board", primary_key=("orders",)).sink("customers"))
    harness.feed("orders", [Order("a", 1, 5), Order("b", 2, 5), Order("a", 3, 5), Order("c", 4, 5)])
    harness.run()
    assert by_fields(harness.sink("customers")) == [Customers(1, 2), Customers(2, 1)]


@pytest.mark.parametrize("asynchronous", [True, False])
def test_net_change_is_one_for_each_batch(asynchronous):
    job = {"execution": {"async-state": {"enabled": asynchronous, "in-flight-records-limit": 2}}}
    totals = orders().aggregate("spent", Spent, emit=Emit.NET_CHANGE, retract=False, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(totals.sink("log"), bucket=1, job=job)
    late = [Order("a", 90, 1), Order("a", 80, 1), Order("a", 10, 1), Order("a", 99, 1), Order("a", 5, 1)]
    harness.feed("orders", late)
    harness.run()
    harness.feed("orders", late)
    harness.run()
    assert by_fields(harness.sink("log")) == [Spent("a", 10, 10, 1), Spent("a", 5, 5, 1)]


def test_key_without_records_is_forgotten():
    ttl = StateTtl(timedelta(milliseconds=10), time=TtlTime.EVENT)
    with harness_of(state_ttl=ttl, retract=False) as harness:
        give(harness, Order("a", 1, 5))
        harness.watermark(50)
        assert give(harness, Order("a", 60, 7))[-1] == (INSERT, Spent("a", 1, 7, 1))


def test_value_that_cannot_be_retracted_fails():
    with (
        harness_of(Dearest) as harness,
        pytest.raises(UserFunctionError, match="cents = Max.*cannot take a record back"),
    ):
        give(harness, Order("a", 1, 5), kind=DELETE)


class Loud(Struct, frozen=True):
    customer: str
    window_start: Timestamp


class Relay(KeyedProcessFunction[Order, Order]):
    async def process(self, record, ctx, /):
        ctx.collect(record)


@pytest.mark.parametrize(
    ("build", "error", "reason"),
    [
        (lambda: orders().aggregate("s", Spent), ValueError, "aggregate 's': nothing bounds the state"),
        (
            lambda: orders().process("relay", Relay()).aggregate("s", Spent, state_ttl=Lifetime.FOREVER),
            ValueError,
            r"needs a key: call key_by\(\) before it",
        ),
        (
            lambda: orders().aggregate("s", Spent, emit=Emit.NET_CHANGE, state_ttl=timedelta(days=1)),
            ValueError,
            "NET_CHANGE needs state_ttl=Lifetime.FOREVER",
        ),
        (
            lambda: orders().aggregate("s", Loud, state_ttl=Lifetime.FOREVER),
            TypeError,
            "field 'window_start' of Loud does not say how it is made.*fields without one are 'customer'$",
        ),
    ],
)
def test_wrong_aggregate_is_refused(build, error, reason):
    with pytest.raises(error, match=reason):
        build()


def test_description_names_emitted_changes():
    described = function_of(emit=Emit.NET_CHANGE, retract=False).described()
    assert described["emits"] == "one change for each key and micro-batch"
    assert described["retracts"] == "no -U"
    assert described["state_freed"] == "never (Lifetime.FOREVER)"
