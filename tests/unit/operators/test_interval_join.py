"""The interval join: pairs that are near in time, each once, and no state when the watermark has passed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import RowKind
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness, SideRecord
from tests.unit.support.join_jobs import Offer, Order, Row, function_of, interval_pipeline, near, text

INSERT, BEFORE, AFTER, DELETE = RowKind
KEYS = (lambda order: order.item, lambda offer: offer.item)
SIDES = {"late_left": Order, "late_right": Offer}
BOUNDS = st.tuples(st.integers(-15, 15), st.integers(0, 20)).map(lambda pair: (pair[0], pair[0] + pair[1]))
ITEMS = st.sampled_from(["", "a"])
RECORDS = st.builds(Order, ITEMS, st.integers(-30, 30)) | st.builds(Offer, ITEMS, st.integers(-30, 30))
EVENTS = st.lists(RECORDS | st.integers(-30, 60), max_size=40)


def harness_of(low, high, *, backend="hashmap", late=True):
    if not late:
        return KeyedHarness(function_of(near(low, high)), key=KEYS, backend=backend)
    function = next(each for each in interval_pipeline(low, high).operators if each.name == "near").function
    return KeyedHarness(function, key=KEYS, backend=backend, side_outputs=SIDES)


def give(harness, record, kind=INSERT):
    method = harness.process1 if isinstance(record, Order) else harness.process2
    method(record, timestamp=record.at, kind=kind)


def play(harness, events):
    """Give the events: records, and numbers that are watermarks. Return the records that are not late, and those that are."""
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


def by_hand(low, high, records):
    orders = [each for each in records if isinstance(each, Order)]
    offers = [each for each in records if isinstance(each, Offer)]
    return sorted(
        text(Row(one, other))
        for one in orders
        for other in offers
        if one.item == other.item and low <= other.at - one.at <= high
    )


def check(harness, low, high, events):
    taken, late = play(harness, events)
    assert sorted(text(row) for _, row in harness.kinds()) == by_hand(low, high, taken)
    assert [each.record for each in harness.output() if isinstance(each, SideRecord)] == late
    assert harness.snapshot().entries == ()


@settings(max_examples=150)
@given(bounds=BOUNDS, events=EVENTS)
def test_pairs_are_those_of_a_double_loop(bounds, events):
    with harness_of(*bounds) as harness:
        check(harness, *bounds, events)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@settings(max_examples=3)
@given(bounds=BOUNDS, events=EVENTS)
def test_backends_give_pairs_of_a_double_loop(backend, bounds, events):
    with harness_of(*bounds, backend=backend) as harness:
        check(harness, *bounds, events)


@pytest.mark.parametrize(("at", "is_near"), [(9, False), (10, True), (15, True), (16, False)])
def test_both_bounds_are_included(at, is_near):
    with harness_of(0, 5) as harness:
        give(harness, Order("a", 10))
        give(harness, Offer("a", at))
        assert len(harness.kinds()) == is_near


def test_a_pair_has_the_later_time():
    with harness_of(-5, 5) as harness:
        for record in (Order("a", 10), Offer("a", 7), Offer("a", 12)):
            give(harness, record)
        assert [emitted.timestamp for emitted in harness._process.emitted] == [10, 12]


def test_a_record_at_the_watermark_is_late():
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
        assert [each for each in harness.output() if isinstance(each, SideRecord)] == []
        assert harness.snapshot().entries == ()


def test_a_record_that_nothing_can_match_is_not_kept():
    with harness_of(-20, -10) as harness:
        harness.watermark(5)
        give(harness, Order("a", 6))
        assert harness.snapshot().entries == ()


def test_state_is_freed_a_quarter_of_the_interval_later():
    with harness_of(0, 7) as harness:
        give(harness, Order("a", 0))
        harness.watermark(7)
        assert harness.state("left_0d_to_7ms", "a", "0") != []
        harness.watermark(8)
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize("kind", [BEFORE, DELETE])
def test_a_retraction_that_nobody_announced_fails(kind):
    with (
        harness_of(0, 5) as harness,
        pytest.raises(UserFunctionError, match="an interval join cannot take a record back"),
    ):
        give(harness, Order("a", 1), kind)
