"""The regular join: its changelog adds up to the SQL join, also after retractions."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import JoinType, Lifetime, Pipeline, RowKind, StateTtl, Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.testing import KeyedHarness
from tests.unit.operators.join_jobs import Offer, Order, Row, Table, function_of, joined, sql_join
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
INNER, LEFT, RIGHT, FULL = JoinType
ORDER, OFFER, OTHER = Order("a", 1), Offer("a", 2), Offer("a", 3)
KEYS = (lambda order: order.item, lambda offer: offer.item)


def ms(number):
    return timedelta(milliseconds=number)


def harness_of(how=INNER, *, backend="hashmap", **options):
    return KeyedHarness(function_of(joined(how, **options)), key=KEYS, backend=backend)


def give(harness, record, kind=INSERT):
    method = harness.process1 if isinstance(record, Order) else harness.process2
    method(record, timestamp=record.at, kind=kind)


ITEMS = st.sampled_from(["", "a"])
# There are only a few different records, so many are equal.
RECORDS = st.builds(Order, ITEMS, st.integers(0, 1)) | st.builds(Offer, ITEMS, st.integers(0, 1))
EVENTS = st.lists(st.tuples(RECORDS, st.sampled_from([INSERT, INSERT, AFTER, BEFORE, DELETE])), max_size=30)


def play(harness, events):
    """Process the events; return the final orders, the final offers, and the unmatched retractions."""
    here, unmatched = [], []
    for record, kind in events:
        give(harness, record, kind)
        if not kind.is_retraction:
            here.append(record)
        elif record in here:
            here.remove(record)
        else:
            unmatched.append(record)
    orders = [record for record in here if isinstance(record, Order)]
    return orders, [record for record in here if isinstance(record, Offer)], unmatched


@pytest.mark.parametrize("how", JoinType)
@examples(60)
@given(events=EVENTS)
def test_changes_add_up_to_the_sql_join(how, events):
    with harness_of(how) as harness:
        orders, offers, unmatched = play(harness, events)
        assert Table().apply_all(harness.kinds()).sorted == sql_join(how, orders, offers)
        assert [record for record, _ in harness.quarantined()] == unmatched


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@settings(max_examples=3)
@given(how=st.sampled_from(JoinType), events=EVENTS)
def test_backends_add_up_to_the_sql_join(backend, how, events):
    with harness_of(how, backend=backend) as harness:
        orders, offers, _ = play(harness, events)
        assert Table().apply_all(harness.kinds()).sorted == sql_join(how, orders, offers)


@examples(30)
@given(how=st.sampled_from(JoinType), events=EVENTS)
def test_full_retraction_leaves_no_state(how, events):
    with harness_of(how) as harness:
        orders, offers, _ = play(harness, events)
        for record in [*orders, *offers]:
            give(harness, record, DELETE)
        assert harness.snapshot().entries == ()


STEPS = st.tuples(RECORDS, st.sampled_from([INSERT, INSERT, DELETE]), st.integers(-3, 6)) | st.integers(0, 4)
LIFETIMES = st.sampled_from(
    [ms(3), (ms(4), ms(8)), (ms(8), ms(4)), (Lifetime.FOREVER, ms(5)), (ms(5), Lifetime.FOREVER)]
)


def play_in_time(harness, steps):
    """Process records; a number advances the watermark, and a record's time counts from the watermark (ms)."""
    now = 0
    for step in steps:
        if isinstance(step, int):
            now += step
            harness.watermark(now)
        else:
            record, kind, after = step
            method = harness.process1 if isinstance(record, Order) else harness.process2
            method(record, timestamp=now + after, kind=kind)


@pytest.mark.slow
@examples(150)
@given(how=st.sampled_from(JoinType), steps=st.lists(STEPS, max_size=40), state_ttl=LIFETIMES)
def test_ttl_retracts_only_emitted_rows(how, steps, state_ttl):
    with harness_of(how, state_ttl=state_ttl) as harness:
        play_in_time(harness, steps)
        emitted = [
            (RowKind(emitted_record.kind), (emitted_record.timestamp, emitted_record.record))
            for emitted_record in harness._process.emitted
        ]
        Table().apply_all(emitted)


def test_pair_outlives_an_expired_partner():
    """The unmatched row was never emitted, so it cannot be retracted."""
    with harness_of(LEFT, state_ttl=(Lifetime.FOREVER, ms(5))) as harness:
        give(harness, OFFER)
        give(harness, ORDER)
        harness.watermark(20)
        give(harness, ORDER, DELETE)
        assert harness.kinds() == [(INSERT, Row(ORDER, OFFER))]
        assert harness.quarantined() == []


def test_equal_records_around_an_expiry_are_distinguished():
    with harness_of(LEFT, state_ttl=(Lifetime.FOREVER, ms(5))) as harness:
        give(harness, OFFER)
        give(harness, ORDER)
        harness.watermark(20)
        for kind in (INSERT, DELETE):
            give(harness, ORDER, kind)
        assert harness.kinds() == [
            (INSERT, Row(ORDER, OFFER)),
            (INSERT, Row(ORDER, None)),
            (DELETE, Row(ORDER, None)),
        ]


# ------------------------------------------------------------------------------------------------------------ kinds


@pytest.mark.parametrize("kind", [INSERT, AFTER])
def test_inner_join_keeps_the_kinds(kind):
    with harness_of() as harness:
        give(harness, OFFER)
        give(harness, ORDER, kind)
        give(harness, ORDER, BEFORE)
        assert harness.kinds() == [(kind, Row(ORDER, OFFER)), (BEFORE, Row(ORDER, OFFER))]


def test_first_match_takes_the_padded_row_back():
    with harness_of(LEFT) as harness:
        for record in (ORDER, OFFER, OTHER):
            give(harness, record, AFTER)
        for record in (OFFER, OTHER):
            give(harness, record, BEFORE)
        assert harness.kinds() == [
            (INSERT, Row(ORDER, None)),
            (DELETE, Row(ORDER, None)),
            (INSERT, Row(ORDER, OFFER)),
            (INSERT, Row(ORDER, OTHER)),
            (DELETE, Row(ORDER, OFFER)),
            (DELETE, Row(ORDER, OTHER)),
            (INSERT, Row(ORDER, None)),
        ]


@pytest.mark.parametrize(("how", "expected"), [(RIGHT, [(INSERT, Row(None, OFFER))]), (LEFT, []), (INNER, [])])
def test_outer_sides_emit_unmatched_records(how, expected):
    with harness_of(how) as harness:
        give(harness, OFFER)
        assert harness.kinds() == expected


def test_pair_has_the_later_time_of_both():
    with harness_of(FULL) as harness:
        for record, kind in [(OTHER, INSERT), (ORDER, INSERT), (ORDER, DELETE)]:
            give(harness, record, kind)
        times = [emitted.timestamp for emitted in harness._process.emitted]
        assert times == [3, 3, 3, 3, 3]


# ------------------------------------------------------------------------------------------------------- odd input


def test_unmatched_retraction_goes_to_quarantine():
    with harness_of(FULL) as harness:
        give(harness, OFFER)
        give(harness, ORDER, BEFORE)
        assert harness.kinds() == [(INSERT, Row(None, OFFER))]
        assert harness.quarantined() == [(ORDER, "a retraction (-U) that matches none of the left records of its key")]


def test_retraction_of_a_forgotten_record_says_why():
    with harness_of(state_ttl=ms(5)) as harness:
        give(harness, ORDER)
        harness.watermark(10)
        give(harness, ORDER, DELETE)
        ((record, reason),) = harness.quarantined()
        assert record == ORDER
        assert "a record is forgotten after state_ttl=0:00:00.005" in reason


def test_each_side_has_its_own_ttl():
    with harness_of(state_ttl=(ms(5), Lifetime.FOREVER)) as harness:
        for record in (ORDER, OFFER):
            give(harness, record)
        harness.watermark(50)
        give(harness, Order("a", 60))
        give(harness, Offer("a", 70))
        pairs = [(row.order.at, row.offer.at) for _, row in harness.kinds()]
        assert pairs == [(1, 2), (60, 2), (60, 70)]


def test_match_renews_an_unmatched_emitted_record():
    with harness_of(LEFT, state_ttl=StateTtl(ms(10))) as harness:
        give(harness, ORDER)
        give(harness, Offer("a", 8))
        harness.watermark(12)
        give(harness, Offer("a", 13))
        assert len(harness.kinds()) == 4


def test_equal_values_of_other_types_are_one_record():
    with harness_of() as harness:
        give(harness, ORDER)
        give(harness, Offer("a", 2, 5))
        give(harness, Offer("a", 2, 5.0), DELETE)
        assert harness.quarantined() == []


def test_emit_failing_on_none_names_the_join():
    def streams():
        result = Pipeline("p")
        return tuple(
            result.source(name, record, event_time="at").key_by("item")
            for name, record in (("orders", Order), ("offers", Offer))
        )

    class Pieces(Struct, frozen=True):
        pieces: int

    orders, offers = streams()
    stream = orders.join(
        "loose", offers, emit=lambda left, _: Pieces(left.pieces), record=Pieces, how=FULL, state_ttl=ms(5)
    )
    with KeyedHarness(function_of(stream), key=KEYS) as harness, pytest.raises(UserFunctionError, match="'NoneType'"):
        give(harness, OFFER)


def test_record_stored_before_field_addition_is_found():
    class Longer(Struct, frozen=True):
        """An order with an added field."""

        item: str | None
        at: Timestamp
        pieces: int = 1
        note: str = ""

    with harness_of() as before:
        give(before, ORDER)
        snapshot = before.snapshot()
    result = Pipeline("p")
    orders = result.source("orders", Longer, event_time="at", row_kind="kind").key_by("item")
    offers = result.source("offers", Offer, event_time="at").key_by("item")
    stream = orders.join("joined", offers, emit=lambda _, other: Row(None, other), record=Row, state_ttl=ms(50))
    with KeyedHarness.restore(snapshot, function_of(stream), key=KEYS) as after:
        after.process1(Longer("a", 1), timestamp=1, kind=DELETE)
        assert after.quarantined() == []
        assert after.snapshot().entries == ()
