"""The as-of join equals a search over all versions, once the watermark has passed."""

from __future__ import annotations

import random
from datetime import timedelta
from operator import attrgetter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JoinType, Lifetime, Pipeline, RowKind
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.priced_jobs import Order, Priced, Rate
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
CURRENCIES = st.sampled_from("ab")
ORDERS = st.builds(Order, CURRENCIES | st.none(), st.integers(-20, 30), st.integers(1, 3))
RATES = st.tuples(st.builds(Rate, CURRENCIES, st.integers(-20, 30), st.integers(1, 5)), st.sampled_from(RowKind))
FAR = 1000


def streams(*, lag=0, row_kind=None):
    pipeline, lag = Pipeline("shop"), timedelta(milliseconds=lag)
    orders = pipeline.source("orders", Order, event_time="at", out_of_orderness=lag, row_kind=row_kind)
    rates = pipeline.source("rates", Rate, event_time="at", out_of_orderness=lag)
    return orders.key_by("currency"), rates.key_by("currency")


def function_of(how=JoinType.INNER, *, late=False, state_ttl=Lifetime.FOREVER):
    orders, rates = streams()
    priced = orders.join_as_of("priced", rates, emit=Priced.of, how=how, state_ttl=state_ttl)
    if late:
        priced.side("late", Order)
    return priced.operators[-1].function


def harness_of(how=JoinType.INNER, *, backend="hashmap", late=False, state_ttl=Lifetime.FOREVER):
    sides = {"late": Order} if late else {}
    key = (attrgetter("currency"), attrgetter("currency"))
    return KeyedHarness(function_of(how, late=late, state_ttl=state_ttl), key=key, backend=backend, side_outputs=sides)


class Model:
    """All records, joined by a search over all versions."""

    def __init__(self, how, ttl=2 * FAR):
        self.how, self.ttl = how, ttl
        self.watermark = -FAR
        self.waiting, self.versions, self.late, self.joined = [], {}, [], []

    def left(self, order):
        (self.late if order.at <= self.watermark else self.waiting).append(order)

    def right(self, rate, kind):
        if kind is not BEFORE:
            self.versions[rate.currency, rate.at] = None if kind is DELETE else rate

    def advance(self, watermark):
        self.watermark = max(self.watermark, watermark)
        for order in [order for order in self.waiting if order.at <= self.watermark]:
            self.waiting.remove(order)
            valid = max((at for key, at in self.versions if key == order.currency and at <= order.at), default=None)
            is_over = valid is None or valid + self.ttl < order.at
            rate = None if is_over else self.versions[order.currency, valid]
            if rate is not None or self.how is JoinType.LEFT:
                self.joined.append(Priced.of(order, rate))


@examples(20)
@given(
    how=st.sampled_from([JoinType.INNER, JoinType.LEFT]),
    events=st.lists(ORDERS | RATES | st.integers(-20, 40), max_size=30),
    ttl=st.sampled_from([None, 1, 8]),
)
def test_orders_join_the_version_valid_then(how, events, ttl):
    """A version is valid until the next one, and for `ttl` at most, whenever the next one arrives."""
    model = Model(how) if ttl is None else Model(how, ttl)
    lifetime = Lifetime.FOREVER if ttl is None else timedelta(milliseconds=ttl)
    with harness_of(how, late=True, state_ttl=lifetime) as harness:
        for event in [*events, FAR]:
            if isinstance(event, int):
                model.advance(event)
                harness.watermark(model.watermark)
            elif isinstance(event, Order):
                if event.currency is None and how is not JoinType.LEFT:
                    continue  # it goes to the quarantine
                model.left(event)
                harness.process1(event, timestamp=event.at)
            else:
                model.right(*event)
                harness.process2(event[0], timestamp=event[0].at, kind=event[1])
        assert by_fields(record for _, record in harness.kinds()) == by_fields(model.joined)
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.late
        keys = {key for key, _ in model.versions}
        assert ttl or len(harness.snapshot().entries) == len(keys)  # the last version of each


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def backend(request):
    return request.param


def test_versions_and_orders_survive_a_restart(backend):
    with harness_of(backend=backend) as harness:
        harness.process2(Rate("a", 1, 10), timestamp=1)
        harness.process2(Rate("a", 5, 50), timestamp=5)
        harness.process1(Order("a", 4, 7), timestamp=4)
        snapshot = harness.snapshot()
    options = {"key": (attrgetter("currency"), attrgetter("currency")), "backend": backend}
    with KeyedHarness.restore(snapshot, function_of(), **options) as restored:
        restored.process1(Order("a", 5, 8), timestamp=5)
        restored.watermark(5)
        assert restored.kinds() == [(INSERT, Priced("a", 4, 7, 10)), (INSERT, Priced("a", 5, 8, 50))]
        assert [version.at for version in restored.state("versions", "a").values()] == [5]


def test_order_waits_for_the_watermark():
    with harness_of(JoinType.LEFT) as harness:
        harness.process1(Order("a", 4, 7), timestamp=4)
        harness.watermark(3)
        harness.process2(Rate("a", 2, 20), timestamp=2)
        assert harness.kinds() == []
        harness.watermark(4)
        assert harness.kinds() == [(INSERT, Priced("a", 4, 7, 20))]


def test_deletion_ends_a_version():
    with harness_of(JoinType.LEFT) as harness:
        harness.process2(Rate("a", 1, 10), timestamp=1)
        harness.process2(Rate("a", 3, 10), timestamp=3, kind=DELETE)
        for at in (2, 3):
            harness.process1(Order("a", at, 7), timestamp=at)
        harness.watermark(9)
        assert [record.rate for _, record in harness.kinds()] == [10, None]


def test_late_versions_do_not_outlive_deletions():
    with harness_of(JoinType.LEFT) as harness:
        harness.process2(Rate("a", 3, 10), timestamp=3, kind=DELETE)
        harness.watermark(9)
        harness.process2(Rate("a", 1, 10), timestamp=1)
        harness.process1(Order("a", 12, 7), timestamp=12)
        harness.watermark(20)
        assert [record.rate for _, record in harness.kinds()] == [None]


def test_retracted_order_retracts_its_result():
    with harness_of() as harness:
        harness.process2(Rate("a", 1, 10), timestamp=1)
        harness.process1(Order("a", 2, 7), timestamp=2)
        harness.process1(Order("a", 2, 7), timestamp=2, kind=DELETE)
        harness.watermark(9)
        assert [kind for kind, _ in harness.kinds()] == [INSERT, DELETE]


def test_ttl_ends_the_last_version():
    with harness_of(JoinType.LEFT, state_ttl=timedelta(milliseconds=10)) as harness:
        harness.process2(Rate("a", 1, 10), timestamp=1)
        harness.watermark(50)
        harness.process1(Order("a", 60, 7), timestamp=60)
        harness.watermark(70)
        assert [record.rate for _, record in harness.kinds()] == [None]


@examples(1)
@given(
    orders=st.lists(ORDERS, min_size=1, max_size=12),
    rates=st.lists(
        st.builds(Rate, CURRENCIES, st.integers(-20, 30), st.integers(1, 5)), max_size=8, unique_by=lambda rate: rate.at
    ),
    seed=st.integers(0, 1 << 30),
)
def test_splits_tasks_and_crashes_change_nothing(orders, rates, seed):
    chance = random.Random(seed)
    left, right = streams(lag=60)
    job = left.join_as_of("priced", right, emit=Priced.of, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER).sink("priced")
    harness = PipelineHarness(job, bucket=chance.choice([1, 3]), parallelism=chance.choice([1, 2]))
    model = Model(JoinType.LEFT)
    for rate in rates:
        model.right(rate, INSERT)
    for order in orders:
        model.left(order)
    model.advance(FAR)
    harness.feed("rates", rates[:3])
    harness.feed("orders", orders[:5])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("orders", orders[5:])
    harness.feed("rates", rates[3:])
    harness.run(end_of_input=True)
    assert by_fields(harness.sink("priced")) == by_fields(model.joined)


@pytest.mark.parametrize("how", [JoinType.RIGHT, JoinType.FULL])
def test_other_joins_are_refused(how):
    orders, rates = streams()
    with pytest.raises(
        ValueError, match=r"join_as_of 'priced': how must be JoinType.INNER or JoinType.LEFT, not JoinType"
    ):
        orders.join_as_of("priced", rates, emit=Priced.of, how=how)


def test_both_sides_need_a_key_of_one_type():
    orders, rates = streams()
    source = Pipeline("other").source("rates", Rate, event_time="at")
    with pytest.raises(ValueError, match="join_as_of 'priced': 'rates' needs a key"):
        orders.join_as_of("priced", source, emit=Priced.of)
    with pytest.raises(ValueError, match="a job has one pipeline"):
        orders.join_as_of("priced", source.key_by("currency"), emit=Priced.of)
    by_rate = rates._pipeline.source("more", Rate, event_time="at").key_by("rate")
    with pytest.raises(TypeError, match="join_as_of 'priced': 'orders' is keyed by currency"):
        orders.join_as_of("priced", by_rate, emit=Priced.of)


def test_emit_that_does_not_fit_is_refused():
    def strict(order: Order, rate: Rate) -> Priced:
        return Priced.of(order, rate)

    orders, rates = streams()
    with pytest.raises(TypeError, match="join_as_of 'priced': parameter 'rate' of strict is Rate, but it gets None"):
        orders.join_as_of("priced", rates, emit=strict, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER)
    assert orders.join_as_of("priced", rates, emit=strict, state_ttl=Lifetime.FOREVER)


def test_type_of_results_must_be_known():
    def untyped(order, rate):
        return Priced.of(order, rate)

    orders, rates = streams()
    with pytest.raises(TypeError, match="join_as_of 'priced': the type of the results is not known"):
        orders.join_as_of("priced", rates, emit=untyped, state_ttl=Lifetime.FOREVER)
    assert orders.join_as_of("priced", rates, emit=untyped, record=Priced, state_ttl=Lifetime.FOREVER)
