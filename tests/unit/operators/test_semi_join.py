"""Semi and anti joins without windows: their changes add up to EXISTS and NOT EXISTS of SQL."""

from __future__ import annotations

import random
from datetime import timedelta

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Lifetime, NullKeys, Pipeline, RowKind, Struct
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.join_jobs import Offer, Order, function_of, is_not_later, sources, text
from tests.unit.operators.test_join_results import OFFERS, ORDERS, SEEDS, run, with_retractions
from tests.unit.operators.test_window_results import options
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
METHODS = ["semi_join", "anti_join"]
ORDER, OFFER, OTHER = Order("a", 5), Offer("a", 2), Offer("a", 9)


def matched(method, *, on=None, row_kind="kind", state_ttl=Lifetime.FOREVER, **more):
    """Return the stream of a join."""
    _, orders, offers = sources(row_kind)
    return getattr(orders, method)("matched", offers, on=on, state_ttl=state_ttl, **more)


def harness_of(method, **more):
    key = (lambda order: order.item, lambda offer: offer.item)
    return KeyedHarness(function_of(matched(method, **more)), key=key)


def by_loop(method, orders, offers, on):
    """Return the orders that an offer matches, or those that none does."""
    return [
        order
        for order in orders
        if (method == "semi_join")
        == any(order.item == offer.item is not None and (on is None or on(order, offer)) for offer in offers)
    ]


class Change(Struct, frozen=True):
    kind: str
    order: Order


class Log(KeyedProcessFunction[Order, Change]):
    """Keeps row kinds in an append sink."""

    async def process(self, record, ctx, /):
        ctx.collect(Change(ctx.row_kind.symbol, record))


def name_of(order: Order) -> str:
    return str(order.item)


def left_in(log):
    """Return the orders that a log adds up to, sorted."""
    orders = [change.order for change in log if not RowKind.parse(change.kind).is_retraction]
    for change in log:
        if RowKind.parse(change.kind).is_retraction:
            orders.remove(change.order)
    return sorted(map(text, orders))


@examples(4)
@given(method=st.sampled_from(METHODS), orders=ORDERS, offers=OFFERS, seed=SEEDS)
def test_changes_add_up_to_a_plain_loop(method, orders, offers, seed):
    chance = random.Random(seed)
    on = chance.choice([None, is_not_later])
    ordered, orders_left, _ = with_retractions(orders, chance)
    offered, offers_left, _ = with_retractions(offers, chance)
    harness = PipelineHarness(
        matched(method, on=on).key_by(name_of).process("log", Log()).sink("log"), **options(chance)
    )
    run(harness, {"orders": ordered, "offers": offered}, chance)
    if method == "semi_join":
        orders_left = [order for order in orders_left if order.item is not None]
    offers_left = [offer for offer in offers_left if offer.item is not None]
    assert left_in(harness.sink("log")) == sorted(map(text, by_loop(method, orders_left, offers_left, on)))


@pytest.mark.parametrize("method", METHODS)
@examples(20)
@given(orders=ORDERS, offers=OFFERS)
def test_loop_of_these_tests_equals_duckdb(method, orders, offers):
    schema = pa.schema([("item", pa.string()), ("at", pa.int64()), ("row", pa.string())])
    tables = [
        pa.Table.from_pylist([{"item": row.item, "at": row.at, "row": text(row)} for row in rows], schema)
        for rows in (orders, offers)
    ]
    exists = "EXISTS" if method == "semi_join" else "NOT EXISTS"
    with duckdb.connect() as connection:
        connection.register("o", tables[0])
        connection.register("f", tables[1])
        query = f'SELECT "row" FROM o WHERE {exists} (SELECT 1 FROM f WHERE f.item = o.item AND f."at" <= o."at")'
        rows = sorted(row for (row,) in connection.sql(query).fetchall())
    assert rows == sorted(map(text, by_loop(method, orders, offers, is_not_later)))


def play(harness, *events):
    for event in events:
        record, kind = event if isinstance(event, tuple) else (event, INSERT)
        give = harness.process1 if isinstance(record, Order) else harness.process2
        give(record, timestamp=record.at, kind=kind)
    return harness.kinds()


def test_semi_join_emits_with_first_match_once():
    with harness_of("semi_join") as harness:
        assert play(harness, ORDER, OFFER, OTHER) == [(INSERT, ORDER)]
        assert play(harness, (OFFER, DELETE))[1:] == []
        assert play(harness, (OTHER, DELETE))[1:] == [(DELETE, ORDER)]


def test_anti_join_takes_back_with_first_match():
    with harness_of("anti_join") as harness:
        assert play(harness, ORDER, OFFER, OTHER) == [(INSERT, ORDER), (DELETE, ORDER)]
        assert play(harness, (OFFER, BEFORE), (OTHER, BEFORE))[2:] == [(INSERT, ORDER)]


@pytest.mark.parametrize("method", METHODS)
def test_retraction_of_unknown_records_goes_to_quarantine(method):
    with harness_of(method) as harness:
        play(harness, (ORDER, DELETE), (OFFER, DELETE))
        assert [record for record, _ in harness.quarantined()] == [ORDER, OFFER]
        assert harness.snapshot().entries == ()


def test_expired_match_takes_nothing_back():
    ttl = (Lifetime.FOREVER, timedelta(milliseconds=5))
    with harness_of("semi_join", state_ttl=ttl) as harness:
        play(harness, ORDER, OFFER)
        harness.watermark(50)
        later = Order("a", 60)
        assert play(harness, later) == [(INSERT, ORDER)]


@pytest.mark.parametrize(("method", "mode"), [("semi_join", "insert"), ("anti_join", "retract")])
def test_changes_of_inserts_are_known(method, mode):
    stream = matched(method, row_kind=None)
    assert stream._changes.mode.kind == mode


def test_null_keys_follow_the_choice():
    pipeline = matched("anti_join", null_keys=NullKeys.QUARANTINE).key_by(name_of).process("log", Log()).sink("log")
    harness = PipelineHarness(pipeline)
    harness.feed("orders", [Order(None, 1)], kinds=[INSERT])
    harness.feed("offers", [Offer(None, 1)], kinds=[INSERT])
    harness.run(end_of_input=True)
    assert harness.sink("log") == []
    assert harness.table("quarantine").num_rows == 2


@pytest.mark.parametrize("method", METHODS)
def test_wrong_arguments_are_refused(method):
    def wrong(order: Offer, offer: Offer) -> bool:
        return order.at < offer.at

    with pytest.raises(ValueError, match=f"{method} 'matched': nothing bounds the state"):
        matched(method, state_ttl=None)
    with pytest.raises(
        TypeError, match=f"{method} 'matched', on: parameter 'order' of wrong is Offer, but the left side"
    ):
        matched(method, on=wrong)
    with pytest.raises(TypeError, match=f"{method} 'matched' takes a stream, not 5"):
        getattr(Pipeline("p").source("orders", Order, event_time="at").key_by("item"), method)(
            "matched", 5, state_ttl=Lifetime.FOREVER
        )


def test_same_rows_come_at_any_backend():
    events = [ORDER, OFFER, ORDER, (OFFER, DELETE), Order("a", 7)]
    results = []
    for backend in ("hashmap", "rocksdb", "delta"):
        key = (lambda order: order.item, lambda offer: offer.item)
        with KeyedHarness(function_of(matched("semi_join")), key=key, backend=backend) as harness:
            results.append(by_fields(row for _, row in play(harness, *events)))
    assert results[0] == results[1] == results[2]
