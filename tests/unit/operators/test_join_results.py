"""Joins equal SQL for any order, micro-batches, tasks, crashes and backend."""

from __future__ import annotations

import random
from datetime import timedelta
from functools import partial
from typing import Annotated

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JoinType, Lifetime, NullKeys, RowKind, Struct, Timestamp
from headrace.errors import StateSchemaError
from headrace.operators import Count, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.operators.join_jobs import (
    Offer,
    Order,
    interval_pipeline,
    is_not_later,
    regular_pipeline,
    sources,
    sql_join,
    table_of,
    text,
)
from tests.unit.operators.test_interval_join import by_hand
from tests.unit.operators.test_window_results import CRASHES, STOPS, assert_nothing_left, options, within
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
FEW = examples(2)
ITEMS = st.sampled_from([None, "", "a", "é"])
ORDERS = st.lists(st.builds(Order, ITEMS, st.integers(-20, 20), st.integers(1, 2)), max_size=12)
OFFERS = st.lists(st.builds(Offer, ITEMS, st.integers(-20, 20)), max_size=12)
SEEDS = st.integers(0, 1 << 30)


def run(harness, inputs, chance):
    """Feed the rows of each source in pieces, and run between the pieces."""
    rest = {name: list(rows) for name, rows in inputs.items()}
    while any(rest.values()):
        name = chance.choice([item for item, rows in rest.items() if rows])
        size = chance.randint(1, 6)
        rows, rest[name] = rest[name][:size], rest[name][size:]
        records, kinds = zip(*rows, strict=True)
        harness.feed(name, records, kinds=None if kinds[0] is None else kinds)
        if chance.random() < 0.4:
            harness.run(crash_at=chance.choice(CRASHES), budget_ends_at=chance.choice(STOPS))
            harness.change(parallelism=chance.choice([1, 2, 3]))
    harness.run()
    harness.run(end_of_input=True)


def with_retractions(records, chance):
    """Return a changelog with some retracted records, the remaining records, and the surplus retractions."""
    changes, here, unmatched = [], [], []
    for record in records:
        changes.append((record, chance.choice([INSERT, AFTER])))
        here.append(record)
        while here and chance.random() < 0.3:
            removed = here.pop(chance.randrange(len(here)))
            changes.append((removed, chance.choice([BEFORE, DELETE])))
            if removed not in here and chance.random() < 0.3:
                changes.append((removed, DELETE))
                unmatched.append(removed)
    return changes, here, unmatched


def is_joined(how, record):
    """Return whether a join takes a record: one without a key only where its side is in the result without a match."""
    is_kept = how.keeps_left if isinstance(record, Order) else how.keeps_right
    return record.item is not None or is_kept


def on_joined_sides(how, *sides):
    return [[record for record in side if is_joined(how, record)] for side in sides]


def check_regular(how, orders, offers, seed, backend):
    chance = random.Random(seed)
    on = chance.choice([None, is_not_later])
    ordered, orders_left, unmatched1 = with_retractions(orders, chance)
    offered, offers_left, unmatched2 = with_retractions(offers, chance)
    harness = PipelineHarness(regular_pipeline(how, on=on), backend=backend, **options(chance))
    run(harness, {"orders": ordered, "offers": offered}, chance)
    lefts, rights = on_joined_sides(how, orders_left, offers_left)
    assert table_of(harness.sink("log")) == sql_join(how, lefts, rights, on or always)
    without_key = [record for record, _ in [*ordered, *offered] if not is_joined(how, record)]
    refused = [*without_key, *(record for record in [*unmatched1, *unmatched2] if is_joined(how, record))]
    assert sorted(row["raw"] for row in harness.table("quarantine").to_pylist()) == sorted(map(text, refused))


@FEW
@given(how=st.sampled_from(JoinType), orders=ORDERS, offers=OFFERS, seed=SEEDS)
def test_regular_joins_equal_sql(how, orders, offers, seed):
    check_regular(how, orders, offers, seed, "hashmap")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@examples(2)
@given(how=st.sampled_from(JoinType), orders=ORDERS, offers=OFFERS, seed=SEEDS)
def test_every_backend_joins_like_sql(backend, how, orders, offers, seed):
    check_regular(how, orders, offers, seed, backend)


def always(_order, _offer):
    return True


def check_interval(bounds, how, orders, offers, seed, backend):
    chance = random.Random(seed)
    on = chance.choice([None, is_not_later])
    lag = chance.choice([0, 7, 30])
    inputs = [within(rows, lag, chance) for rows in (orders, offers)]
    harness = PipelineHarness(interval_pipeline(*bounds, how=how, lag=lag, on=on), backend=backend, **options(chance))
    run(
        harness,
        dict(zip(("orders", "offers"), ([(row, None) for row in rows] for rows in inputs), strict=True)),
        chance,
    )
    late = [harness.sink("late_orders"), harness.sink("late_offers")]
    keyed = [record for rows in inputs for record in rows if is_joined(how, record)]
    nameless = [record for rows in inputs for record in rows if not is_joined(how, record)]
    assert sorted(map(text, harness.sink("pairs"))) == by_hand(bounds, keyed, how, on=on or always)
    assert late == [[], []]
    assert sorted(row["raw"] for row in harness.table("quarantine").to_pylist()) == sorted(map(text, nameless))
    assert_nothing_left(harness)


BOUNDS = st.sampled_from([(0, 7), (-5, 5), (-9, -3), (2, 2), (0, 0), (-20, 40)])


@FEW
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), orders=ORDERS, offers=OFFERS, seed=SEEDS)
def test_interval_joins_equal_a_loop(bounds, how, orders, offers, seed):
    check_interval(bounds, how, orders, offers, seed, "hashmap")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@examples(2)
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), orders=ORDERS, offers=OFFERS, seed=SEEDS)
def test_every_backend_joins_like_a_loop(backend, bounds, how, orders, offers, seed):
    check_interval(bounds, how, orders, offers, seed, backend)


@pytest.mark.parametrize("pipeline_of", [regular_pipeline, partial(interval_pipeline, 0, 7)])
def test_null_keys_go_to_the_quarantine_where_asked(pipeline_of):
    harness = PipelineHarness(pipeline_of(how=JoinType.FULL, null_keys=NullKeys.QUARANTINE))
    harness.feed("orders", [Order(None, 1), Order("a", 1)])
    harness.feed("offers", [Offer(None, 1)])
    harness.run(end_of_input=True)
    rows = harness.table("quarantine").to_pylist()
    assert sorted(row["raw"] for row in rows) == sorted(map(text, [Order(None, 1), Offer(None, 1)]))
    assert {row["error"] for row in rows} == {"the key (item) is null"}


class Sold(Struct, frozen=True):
    item: str | None
    seller: str | None


def test_null_parts_of_a_sink_key_are_named():
    def sold(order: Order | None, offer: Offer | None) -> Sold:
        return Sold(None if order is None else order.item, None if offer is None else offer.item)

    _, orders, offers = sources()
    joined = orders.join("sold", offers, emit=sold, how=JoinType.FULL, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(joined.sink("sold", key=("item", "seller")))
    harness.feed("orders", [Order("b", 1), Order(None, 1)])
    harness.feed("offers", [Offer("a", 1), Offer("c", 1)])
    harness.run()
    harness.feed("orders", [Order("a", 2)])
    harness.run(end_of_input=True)
    refused = {(row["raw"], row["error"]) for row in harness.table("quarantine").to_pylist()}
    assert refused == {
        (text(Sold("b", None)), "the key (item, seller) is null in seller"),
        (text(Sold(None, "a")), "the key (item, seller) is null in item"),
        (text(Sold(None, "c")), "the key (item, seller) is null in item"),
        (text(Sold(None, None)), "the key (item, seller) is null in item, seller"),
    }
    assert harness.sink("sold") == [Sold("a", "a")]


def test_kept_null_key_moves_the_watermark():
    harness = PipelineHarness(interval_pipeline(0, 7, how=JoinType.LEFT), bucket=1)
    harness.feed("orders", [Order("a", 1), Order(None, 100)])
    harness.feed("offers", [Offer("b", 100)])
    harness.run()
    assert [row.order.item for row in harness.sink("pairs")] == ["a"]


@pytest.mark.parametrize("how", JoinType)
@examples(20)
@given(orders=ORDERS, offers=OFFERS)
def test_loop_of_these_tests_joins_as_duckdb(how, orders, offers):
    tables = [
        pa.Table.from_pylist(
            [{"item": row.item, "row": text(row)} for row in rows],
            pa.schema([("item", pa.string()), ("row", pa.string())]),
        )
        for rows in (orders, offers)
    ]
    with duckdb.connect() as connection:
        connection.register("o", tables[0])
        connection.register("f", tables[1])
        kind = how.value
        rows = connection.sql(f"SELECT o.row, f.row FROM o {kind} JOIN f ON o.item = f.item").fetchall()
    joined = [f'{{"order":{order or "null"},"offer":{offer or "null"}}}' for order, offer in rows]
    assert sorted(joined) == sql_join(how, orders, offers)


def test_changed_join_type_refuses_stored_state():
    harness = PipelineHarness(regular_pipeline(JoinType.INNER))
    harness.feed("orders", [Order("a", 1)])
    harness.feed("offers", [Offer("a", 1)])
    harness.run()
    harness.change(pipeline=regular_pipeline(JoinType.LEFT))
    with pytest.raises(StateSchemaError, match="state 'left'"):
        harness.run()


@pytest.mark.parametrize("how", [JoinType.LEFT, JoinType.RIGHT, JoinType.FULL])
def test_changed_interval_join_type_is_refused(how):
    harness = PipelineHarness(interval_pipeline(0, 50))
    harness.feed("orders", [Order("a", 1)])
    harness.feed("offers", [Offer("a", 1)])
    harness.run()
    harness.change(pipeline=interval_pipeline(0, 50, how=how))
    with pytest.raises(StateSchemaError, match="_0d_to_50ms'"):
        harness.run()


def test_changed_interval_refuses_stored_state():
    harness = PipelineHarness(interval_pipeline(0, 50))
    harness.feed("orders", [Order("a", 1)])
    harness.feed("offers", [Offer("a", 1)])
    harness.run()
    harness.change(pipeline=interval_pipeline(0, 90))
    with pytest.raises(StateSchemaError, match="left_0d_to_50ms"):
        harness.run()


@pytest.mark.parametrize("backend", ["hashmap", "delta"])
def test_unmatched_retraction_is_in_the_quarantine(backend):
    harness = PipelineHarness(regular_pipeline(JoinType.LEFT), backend=backend)
    harness.feed("orders", [Order("a", 1)], kinds=[DELETE])
    harness.feed("offers", [Offer("b", 1)])
    harness.run(end_of_input=True)
    (row,) = harness.table("quarantine").to_pylist()
    assert (row["operator"], row["key"], row["raw"]) == ("joined", '"a"', '{"item":"a","at":1,"pieces":1}')
    assert row["error"] == "a retraction (-D) that matches none of the left records of its key"


class Counted(Struct, frozen=True):
    item: str
    window_start: Timestamp
    rows: Annotated[int, Count()]


class Flat(Struct, frozen=True):
    item: str
    is_matched: bool

    @classmethod
    def of(cls, order: Order, offer: Offer | None) -> Flat:
        return cls(order.item, offer is not None)


def test_window_behind_a_join_counts_remaining_rows():
    pipeline, orders, offers = sources("kind")
    stream = orders.join("joined", offers, emit=Flat.of, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER)
    counted = stream.key_by("item").window(Tumbling(timedelta(milliseconds=10)))
    key = ("item", "window_start")
    counted.aggregate("counted", Counted, allowed_lateness=timedelta(milliseconds=100)).upsert_materialize(
        "latest", primary_key=key, upsert_key=key
    ).sink("counted")
    harness = PipelineHarness(pipeline, bucket=1)
    harness.feed("orders", [Order("a", 1), Order("a", 2), Order("a", 45), Order("a", 2)], kinds=[*[INSERT] * 3, DELETE])
    harness.feed(
        "offers", [Offer("a", 12), Offer("a", 23), Offer("a", 44), Offer("a", 12)], kinds=[*[INSERT] * 3, DELETE]
    )
    harness.run()
    harness.run(end_of_input=True)
    # The remaining pairs: order 1 with offers 23 and 44, order 45 with both.
    assert sorted(map(msgspec.structs.astuple, harness.sink("counted"))) == [("a", 20, 1), ("a", 40, 3)]
