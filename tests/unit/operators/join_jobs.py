"""Records, pipelines and results of joins, for tests of joins. Tasks of Spark load `pipeline`."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import product

import msgspec

from headrace import JoinType, KeyedProcessFunction, Lifetime, NullKeys, Pipeline, RowKind, Struct, Timestamp


class Order(Struct, frozen=True):
    item: str | None
    at: Timestamp
    pieces: int = 1


class Offer(Struct, frozen=True):
    item: str | None
    at: Timestamp
    cents: float = 1.0


class Row(Struct, frozen=True):
    """A pair; a missing match is None."""

    order: Order | None
    offer: Offer | None

    @classmethod
    def of(cls, order: Order | None, offer: Offer | None) -> Row:
        return cls(order, offer)


class Change(Struct, frozen=True):
    kind: str
    row: Row


class Log(KeyedProcessFunction[Row, Change]):
    """Keeps row kinds in an append sink."""

    async def process(self, record, ctx, /):
        ctx.collect(Change(ctx.row_kind.symbol, record))


def item_of(row: Row) -> str:
    item = (row.order or row.offer).item
    return "none" if item is None else item


def sources(row_kind=None, lag=0, name="joins"):
    """Return a pipeline and its two streams, keyed by item; `lag` in ms."""
    result = Pipeline(name)
    options = {"event_time": "at", "row_kind": row_kind, "out_of_orderness": timedelta(milliseconds=lag)}
    orders = result.source("orders", Order, **options).key_by("item")
    return result, orders, result.source("offers", Offer, **options).key_by("item")


def joined(how=JoinType.INNER, *, row_kind="kind", lag=0, state_ttl=Lifetime.FOREVER, null_keys=NullKeys.KEEP, on=None):
    """Return the stream of a regular join."""
    _, orders, offers = sources(row_kind, lag)
    return orders.join("joined", offers, emit=Row.of, how=how, on=on, state_ttl=state_ttl, null_keys=null_keys)


def regular_pipeline(how, **options):
    """Return the pipeline of a regular join whose changes are appended to a log."""
    return joined(how, **options).key_by(item_of).process("log", Log()).sink("log")


def near(low, high, *, how=JoinType.INNER, lag=0, null_keys=NullKeys.KEEP, on=None):
    """Return the stream of an interval join; lengths in ms."""
    _, orders, offers = sources(lag=lag)
    bounds = (timedelta(milliseconds=low), timedelta(milliseconds=high))
    return orders.join("near", offers, emit=Row.of, how=how, within=bounds, on=on, null_keys=null_keys)


def interval_pipeline(low, high, **options):
    """Return the pipeline of an interval join, with its late records."""
    pairs = near(low, high, **options)
    pairs.side_output("late_left", Order, sink="late_orders").side_output("late_right", Offer, sink="late_offers")
    return pairs.sink("pairs")


def function_of(stream):
    """Return the function of the operator that a stream comes from."""
    return stream.operators[-1].function


def text(row):
    """Return a row as text: rows with None do not compare."""
    return msgspec.json.encode(row).decode()


def is_not_later(order: Order, offer: Offer) -> bool:
    """Return whether an offer is for an earlier or equal time: a condition beside the key."""
    return offer.at <= order.at


def sql_join(how, orders, offers, on=lambda _, __: True):
    """Return the result of a SQL join of two tables, sorted: every pair by a plain double loop, and the unmatched records.

    A null item equals none.
    """
    pairs = [
        (order, offer)
        for order, offer in product(orders, offers)
        if order.item == offer.item is not None and on(order, offer)
    ]
    left = [Row(order, None) for order in orders if order not in {order for order, _ in pairs}]
    right = [Row(None, offer) for offer in offers if offer not in {offer for _, offer in pairs}]
    pairs = [Row(*pair) for pair in pairs]
    return sorted(map(text, [*pairs, *(left if how.keeps_left else []), *(right if how.keeps_right else [])]))


class Table:
    """The table that a changelog describes: a retracted row must exist."""

    def __init__(self):
        self.rows = Counter()

    def apply(self, kind, row):
        if kind.is_retraction:
            assert self.rows[row] > 0, (kind, row)
        self.rows[row] += -1 if kind.is_retraction else 1

    def apply_all(self, changes):
        for kind, row in changes:
            self.apply(kind, row)
        return self

    @property
    def sorted(self):
        return sorted(map(text, self.rows.elements()))


def table_of(log):
    """Return the rows that a log adds up to, in any order of the log."""
    total = Counter()
    for change in log:
        total[change.row] += -1 if RowKind.parse(change.kind).is_retraction else 1
    assert min(total.values(), default=0) >= 0
    return sorted(map(text, total.elements()))


def both_pipeline(low, high):
    """Return one pipeline with a full join of changelogs and an interval join of its additions; lengths in ms."""
    result, orders, offers = sources("kind")
    pairs = orders.join("joined", offers, emit=Row.of, how=JoinType.FULL, state_ttl=Lifetime.FOREVER)
    pairs.key_by(item_of).process("log", Log()).sink("log")
    near_orders, near_offers = (
        result.source(name, record, event_time="at").key_by("item")
        for name, record in (("near_orders", Order), ("near_offers", Offer))
    )
    bounds = (timedelta(milliseconds=low), timedelta(milliseconds=high))
    return near_orders.join("near", near_offers, emit=Row.of, within=bounds).sink("pairs")


pipeline = both_pipeline(-2000, 5000)
