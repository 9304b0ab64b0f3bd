"""A retraction that matches nothing changes nothing: it goes to the quarantine, in each operator, in rows and in bundles."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from operator import attrgetter
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, Lifetime, Pipeline, RowKind, StateTtl, Struct, Timestamp, TtlTime
from headrace.operators import Avg, Count, CountDistinct, Hopping, Sum, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
BACKENDS = st.sampled_from(["hashmap", "rocksdb", "delta"])


class Order(Struct, frozen=True):
    customer: str
    at: Timestamp
    cents: int | None
    article: str = ""


def is_large(order):
    return (order.cents or 0) > 1


class Spent(Struct, frozen=True):
    customer: str
    orders: Annotated[int, Count()]
    cents: Annotated[int | None, Sum("cents")]


class Summary(Struct, frozen=True):
    customer: str
    orders: Annotated[int, Count()]
    priced: Annotated[int, Count("cents")]
    large: Annotated[int, Count(where=is_large)]
    cents: Annotated[int | None, Sum("cents")]
    mean: Annotated[float | None, Avg("cents")]
    articles: Annotated[int, CountDistinct("article")]


class WindowSummary(Summary, frozen=True):
    window_start: Timestamp


class Group:
    """Records of one key or slice, as far as their aggregates know them."""

    def __init__(self, result):
        self.result = result
        self.orders = self.priced = self.large = self.cents = 0
        self.articles = Counter()

    def may_hold(self, order):
        if self.orders == 0 or (order.cents is not None and self.priced == 0):
            return False
        return self.result is Spent or (self.articles[order.article] > 0 and (self.large > 0 or not is_large(order)))

    def change(self, order, sign):
        self.orders += sign
        self.large += sign * is_large(order)
        self.articles[order.article] += sign
        if order.cents is not None:
            self.priced += sign
            self.cents += sign * order.cents
        if self.orders == 0:
            self.__init__(self.result)
        elif self.priced == 0:
            self.cents = 0

    def merge(self, other):
        for name in ("orders", "priced", "large", "cents", "articles"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def shown(self, customer, **window):
        cents = self.cents if self.priced else None
        if self.result is Spent:
            return Spent(customer, self.orders, cents)
        mean = self.cents / self.priced if self.priced else None
        articles = sum(count > 0 for count in self.articles.values())
        return self.result(customer, self.orders, self.priced, self.large, cents, mean, articles, **window)


class Model:
    """A plain loop over the changes: groups by key, or by key and slice."""

    def __init__(self, result, place=attrgetter("customer")):
        self.groups = defaultdict(lambda: Group(result))
        self.unmatched = []
        self._place = place

    def take(self, order, kind):
        group = self.groups[self._place(order)]
        if not kind.is_retraction:
            group.change(order, 1)
        elif group.may_hold(order):
            group.change(order, -1)
        else:
            self.unmatched.append(order)
        return self

    @property
    def table(self):
        return by_fields([group.shown(customer) for customer, group in self.groups.items() if group.orders])


CHANGES = st.lists(
    st.tuples(
        st.builds(
            Order,
            st.sampled_from("ab"),
            st.integers(0, 12),
            st.none() | st.integers(-1, 3),
            st.sampled_from("xy"),
        ),
        st.sampled_from(RowKind),
    ),
    max_size=30,
)


def orders():
    return Pipeline("shop").source(
        "orders", Order, event_time="at", row_kind="kind", out_of_orderness=timedelta(milliseconds=100)
    )


def function_of(result, **options):
    stream = orders().key_by("customer").aggregate("spent", result, **{"state_ttl": Lifetime.FOREVER} | options)
    return stream.operators[-1].function


def harness_of(result, *, backend="hashmap", **options):
    return KeyedHarness(function_of(result, **options), key=attrgetter("customer"), backend=backend)


def quarantined(harness):
    return sorted(row["raw"] for row in harness.table("quarantine").to_pylist())


def play(pipeline, changes, cut, **options):
    harness = PipelineHarness(pipeline, files_per_batch=1, **options)
    for part in (changes[:cut], changes[cut:]):
        harness.feed("orders", [order for order, _ in part], kinds=[kind for _, kind in part])
        harness.run()
    harness.run(end_of_input=True)
    return harness


@examples(15)
@given(changes=CHANGES, result=st.sampled_from([Spent, Summary]), backend=BACKENDS)
def test_aggregate_equals_a_plain_loop(changes, result, backend):
    model = Model(result)
    with harness_of(result, backend=backend) as harness:
        for order, kind in changes:
            model.take(order, kind)
            harness.process(order, timestamp=order.at, kind=kind)
            harness.drain()
            assert table_of(harness.kinds(), result) == model.table
        assert [record for record, _ in harness.quarantined()] == model.unmatched


@examples(3)
@given(
    changes=CHANGES,
    result=st.sampled_from([Spent, Summary]),
    emit=st.sampled_from(Emit),
    cut=st.integers(0, 30),
    parallelism=st.integers(1, 3),
    bucket=st.sampled_from([1, 3, 100]),
)
def test_aggregate_of_jobs_equals_a_plain_loop(changes, result, emit, cut, parallelism, bucket):
    totals = orders().key_by("customer").aggregate("spent", result, emit=emit, state_ttl=Lifetime.FOREVER)
    pipeline = totals.upsert_materialize("board", primary_key=("customer",)).sink("spent")
    harness = play(pipeline, changes, cut, parallelism=parallelism, bucket=bucket)
    model = Model(result)
    for order, kind in changes:
        model.take(order, kind)
    assert by_fields(harness.sink("spent")) == model.table
    assert len(quarantined(harness)) == len(model.unmatched)


@examples(3)
@given(
    changes=CHANGES,
    windows=st.sampled_from([(Tumbling, 6, 6, 6), (Hopping, 6, 4, 2)]),
    cut=st.integers(0, 30),
    bucket=st.sampled_from([1, 3, 100]),
)
def test_windows_equal_a_plain_loop(changes, windows, cut, bucket):
    kind_of_windows, size, slide, slice_length = windows
    lengths = (size,) if size == slide else (size, slide)
    stream = orders().key_by("customer").window(kind_of_windows(*(timedelta(milliseconds=ms) for ms in lengths)))
    pipeline = stream.aggregate("totals", WindowSummary).sink("log")
    harness = play(pipeline, changes, cut, bucket=bucket)
    model = Model(WindowSummary, lambda order: (order.customer, order.at // slice_length * slice_length))
    for order, kind in changes:
        model.take(order, kind)
    merged = defaultdict(lambda: Group(WindowSummary))
    for (customer, at), group in model.groups.items():
        for start in range(-12, 24, slide):
            if start <= at < start + size:
                merged[customer, start].merge(group)
    shown = [group.shown(name, window_start=start) for (name, start), group in merged.items() if group.orders]
    assert by_fields(harness.sink("log")) == by_fields(shown)
    assert len(quarantined(harness)) == len(model.unmatched)


def remaining(changes):
    """Return the orders that are left, and the unmatched retractions, where operators know each order."""
    here, unmatched = [], []
    for order, kind in changes:
        if not kind.is_retraction:
            here.append(order)
        elif order in here:
            here.remove(order)
        else:
            unmatched.append(order)
    return by_fields(here), unmatched


@examples(3)
@given(changes=CHANGES, cut=st.integers(0, 30), bucket=st.sampled_from([1, 3, 100]))
def test_ranked_window_equals_a_plain_loop(changes, cut, bucket):
    windows = orders().key_by("customer").window(Tumbling(timedelta(milliseconds=20)))
    harness = play(windows.top("best", 100, by="at").sink("log"), changes, cut, bucket=bucket)
    here, unmatched = remaining(changes)
    assert by_fields(harness.sink("log")) == here
    assert len(quarantined(harness)) == len(unmatched)


@pytest.mark.slow
@examples(10)
@given(changes=CHANGES, backend=BACKENDS)
def test_top_equals_a_plain_loop(changes, backend):
    function = orders().key_by("customer").top("best", 100, by="at", state_ttl=Lifetime.FOREVER).operators[-1].function
    with KeyedHarness(function, key=attrgetter("customer"), backend=backend) as harness:
        for order, kind in changes:
            harness.process(order, timestamp=order.at, kind=kind)
        harness.drain()
        here, unmatched = remaining(changes)
        assert table_of(harness.kinds(), Order) == here
        assert [record for record, _ in harness.quarantined()] == unmatched


def test_update_behind_a_ttl_inserts():
    ttl = StateTtl(timedelta(milliseconds=10), time=TtlTime.EVENT)
    with harness_of(Spent, state_ttl=ttl) as harness:
        harness.process(Order("a", 1, 1), timestamp=1)
        harness.watermark(50)
        for kind, cents in ((BEFORE, 1), (AFTER, 7)):
            harness.process(Order("a", 60, cents), timestamp=60, kind=kind)
        harness.drain()
        assert harness.kinds()[1:] == [(INSERT, Spent("a", 1, 7))]
        reason = "a retraction (-U) that matches none of the records of its key (a record is forgotten after state_ttl="
        assert [(record.cents, shown.startswith(reason)) for record, shown in harness.quarantined()] == [(1, True)]


@pytest.mark.parametrize("emit", Emit)
def test_retractions_never_go_below_empty(emit):
    totals = orders().key_by("customer").aggregate("spent", Spent, emit=emit, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(totals.upsert_materialize("board", primary_key=("customer",)).sink("spent"))
    cents, kinds = [1, 1, 1, 7, 8], [INSERT, DELETE, DELETE, INSERT, INSERT]
    harness.feed("orders", [Order("a", at, price) for at, price in enumerate(cents)], kinds=kinds)
    harness.run()
    assert harness.sink("spent") == [Spent("a", 2, 15)]
    (row,) = harness.table("quarantine").to_pylist()
    assert (row["source"], row["error"]) == ("spent", "a retraction (-D) that matches none of the records of its key")
