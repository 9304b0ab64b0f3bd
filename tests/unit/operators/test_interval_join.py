"""The interval join: pairs that are close in time, each once; unmatched records; and no state after the watermark has passed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JoinType, RowKind
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, SideRecord
from tests.unit.operators.join_jobs import Offer, Order, Row, function_of, interval_pipeline, near, text
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
KEYS = (lambda order: order.item, lambda offer: offer.item)
SIDES = {"late_left": Order, "late_right": Offer}
BOUNDS = st.tuples(st.integers(-15, 15), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ITEMS = st.sampled_from(["", "a"])
RECORDS = st.builds(Order, ITEMS, st.integers(-30, 30)) | st.builds(Offer, ITEMS, st.integers(-30, 30))
EVENTS = st.lists(RECORDS | st.integers(-30, 60), max_size=40)


def harness_of(low, high, *, how=JoinType.INNER, backend="hashmap", late=True):
    if not late:
        return KeyedHarness(function_of(near(low, high, how=how)), key=KEYS, backend=backend)
    function = next(
        operator for operator in interval_pipeline(low, high, how=how).operators if operator.name == "near"
    ).function
    return KeyedHarness(function, key=KEYS, backend=backend, side_outputs=SIDES)


def give(harness, record, kind=INSERT):
    method = harness.process1 if isinstance(record, Order) else harness.process2
    method(record, timestamp=record.at, kind=kind)


def play(harness, events):
    """Process records, and watermarks (numbers). Return the records that are not late, and the late records."""
    now, taken, late = -1000, [], []
    for event in events:
        if isinstance(event, int):
            now = max(now, event)
            harness.watermark(now)
        else:
            (taken if event.at > now else late).append(event)
            give(harness, event)
    harness.watermark(1000)
    return taken, late


def by_hand(bounds, records, how=JoinType.INNER, now=1000, on=lambda _, __: True):
    """Return the result of a double loop, sorted; it has an unmatched record if no record after `now` can match it."""
    low, high = bounds
    orders = [record for record in records if isinstance(record, Order)]
    offers = [record for record in records if isinstance(record, Offer)]
    pairs = [
        (order, offer)
        for order in orders
        for offer in offers
        if order.item == offer.item is not None and low <= offer.at - order.at <= high and on(order, offer)
    ]
    joined_orders = [order for order, _ in pairs]
    joined_offers = [offer for _, offer in pairs]
    lone_orders = [order for order in orders if order.at + high <= now and order not in joined_orders]
    lone_offers = [offer for offer in offers if offer.at - low <= now and offer not in joined_offers]
    rows = [Row(*pair) for pair in pairs]
    rows += [Row(lone_order, None) for lone_order in lone_orders if how.keeps_left]
    rows += [Row(None, lone_offer) for lone_offer in lone_offers if how.keeps_right]
    return sorted(map(text, rows))


def check(harness, bounds, events, how):
    taken, late = play(harness, events)
    assert {kind for kind, _ in harness.kinds()} <= {INSERT}
    assert sorted(text(row) for _, row in harness.kinds()) == by_hand(bounds, taken, how)
    assert [record.record for record in harness.output() if isinstance(record, SideRecord)] == late
    assert harness.snapshot().entries == ()


@examples(50)
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), events=EVENTS)
def test_results_equal_a_double_loop(bounds, how, events):
    with harness_of(*bounds, how=how) as harness:
        check(harness, bounds, events, how)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@examples(2)
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), events=EVENTS)
def test_every_backend_equals_a_double_loop(backend, bounds, how, events):
    with harness_of(*bounds, how=how, backend=backend) as harness:
        check(harness, bounds, events, how)


@examples(20)
@given(bounds=BOUNDS, how=st.sampled_from(JoinType), events=EVENTS)
def test_unmatched_record_is_emitted_when_certain(bounds, how, events):
    now, taken = -1000, []
    with harness_of(*bounds, how=how) as harness:
        for event in events:
            if isinstance(event, int):
                now = max(now, event)
                harness.watermark(now)
            else:
                taken += [event] if event.at > now else []
                give(harness, event)
            assert sorted(text(row) for _, row in harness.kinds()) == by_hand(bounds, taken, how, now)


@pytest.mark.parametrize(
    ("bounds", "record", "expected"),
    [
        ((0, 5), Order("a", 10), 15),  # an offer may come until then
        ((-9, -3), Order("a", 10), 10),  # none can come after the order: it has its own time
        ((0, 5), Offer("a", 10), 10),
        ((-9, -3), Offer("a", 10), 19),
    ],
)
def test_unmatched_record_has_the_time_of_certainty(bounds, record, expected):
    with harness_of(*bounds, how=JoinType.FULL) as harness:
        give(harness, record)
        harness.watermark(50)
        assert [emitted.timestamp for emitted in harness._process.emitted] == [expected]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_restart_remembers_which_records_matched(backend):
    with harness_of(0, 5, how=JoinType.LEFT, backend=backend) as harness:
        for record in (Order("a", 10), Order("a", 11), Offer("a", 10)):
            give(harness, record)
        snapshot = harness.snapshot()
    function = function_of(near(0, 5, how=JoinType.LEFT))
    with KeyedHarness.restore(snapshot, function, key=KEYS, backend=backend) as restored:
        restored.watermark(50)
        assert restored.kinds() == [(INSERT, Row(Order("a", 11), None))]
        assert restored.snapshot().entries == ()


def test_interval_beyond_the_calendar_is_an_error():
    last = 253_402_300_799_999
    with (
        harness_of(0, 5, how=JoinType.LEFT) as harness,
        pytest.raises(UserFunctionError, match="the interval of that time ends after the year 9999"),
    ):
        give(harness, Order("a", last))


@pytest.mark.parametrize(("at", "is_near"), [(9, False), (10, True), (15, True), (16, False)])
def test_both_bounds_are_included(at, is_near):
    with harness_of(0, 5) as harness:
        give(harness, Order("a", 10))
        give(harness, Offer("a", at))
        assert len(harness.kinds()) == is_near


def test_pair_has_the_later_time():
    with harness_of(-5, 5) as harness:
        for record in (Order("a", 10), Offer("a", 7), Offer("a", 12)):
            give(harness, record)
        assert [emitted.timestamp for emitted in harness._process.emitted] == [10, 12]


def test_record_at_the_watermark_is_late():
    with harness_of(0, 5) as harness:
        give(harness, Order("a", 10))
        harness.watermark(12)
        give(harness, Offer("a", 12))
        give(harness, Offer("a", 13))
        assert [row.offer.at for _, row in harness.kinds()] == [13]


def test_late_records_are_dropped_without_side_outputs():
    with harness_of(0, 5, late=False) as harness:
        harness.watermark(12)
        give(harness, Order("a", 12))
        assert [output for output in harness.output() if isinstance(output, SideRecord)] == []
        assert harness.snapshot().entries == ()


def test_record_without_possible_partners_is_not_kept():
    with harness_of(-20, -10) as harness:
        harness.watermark(5)
        give(harness, Order("a", 6))
        assert harness.snapshot().entries == ()


def test_state_is_freed_a_quarter_interval_later():
    with harness_of(0, 7) as harness:
        give(harness, Order("a", 0))
        harness.watermark(7)
        assert harness.state("left_0d_to_7ms", "a", "0") != []
        harness.watermark(8)
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize("kind", [BEFORE, DELETE])
def test_undeclared_retraction_fails(kind):
    with (
        harness_of(0, 5) as harness,
        pytest.raises(UserFunctionError, match="an interval join cannot take a record back"),
    ):
        give(harness, Order("a", 1), kind)
