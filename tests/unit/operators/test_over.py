"""Aggregates over a frame: each result equals a fold over the frame's rows, cut out of a sorted list."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import RowKind
from headrace.testing import SideRecord
from tests.unit.operators.over_jobs import FAR, Ahead, Counted, Model, Payment, Placed, Weighed, Whole, harness_of
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
FRAMES = [{}, {"rows": 1}, {"rows": 3}, {"within": 0}, {"within": 7}]
PAYMENTS = st.builds(
    Payment,
    st.sampled_from("ab"),
    st.integers(-20, 20),
    st.none() | st.integers(-2, 9),
    st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16]),
    st.integers(0, 3),
)
EVENTS = st.lists(PAYMENTS | st.integers(-25, 25), max_size=40)
RESULTS = st.sampled_from([Whole, Counted, Weighed, Placed, Ahead])
ORDERS = st.sampled_from([(), ("seq",), ("weight", "seq")])


def play(harness, model, events, splits=()):
    """Process payments and watermarks (numbers) in both, and return the changes. A micro-batch ends before the places `splits`.

    A payment's id is its place.
    """
    for number, event in enumerate([*events, FAR]):
        if number in splits:
            harness.snapshot()
        if isinstance(event, int):
            model.watermark = max(model.watermark, event)
            harness.watermark(model.watermark)
        else:
            payment = msgspec.structs.replace(event, id=number)
            model.take(payment)
            harness.process(payment, timestamp=payment.at)
    return harness.kinds()


def of_card(card, changes, model):
    """Return the changes of one card, in their order."""
    ids = {payment.id for payment in model.taken if payment.card == card}
    return [(kind, record) for kind, record in changes if record.id in ids]


def late_of(harness):
    return [output.record for output in harness.output() if isinstance(output, SideRecord)]


@pytest.mark.slow
@examples(100)
@given(frame=st.sampled_from(FRAMES), result=RESULTS, order_by=ORDERS, events=EVENTS)
def test_each_result_equals_a_fold(frame, result, order_by, events):
    model = Model(result, order_by=order_by, **frame)
    with harness_of(result, order_by=order_by, **frame) as harness:
        changes = play(harness, model, events)
        assert {kind for kind, _ in changes} <= {INSERT}
        for card in "ab":
            assert [record for _, record in of_card(card, changes, model)] == model.results_of(card)
        assert late_of(harness) == model.late


@pytest.mark.slow
@examples(100)
@given(frame=st.sampled_from(FRAMES), result=RESULTS, order_by=ORDERS, keep=st.sampled_from([1, 6, 30]), events=EVENTS)
def test_late_rows_correct_the_results(frame, result, order_by, keep, events):
    model = Model(result, order_by=order_by, keep=keep, **frame)
    with harness_of(result, order_by=order_by, keep=keep, **frame) as harness:
        changes = play(harness, model, events)
        assert table_of(changes, result) == by_fields(model.results())
        assert late_of(harness) == model.late


@examples(20)
@given(
    frame=st.sampled_from(FRAMES),
    result=RESULTS,
    keep=st.sampled_from([0, 6]),
    backend=st.sampled_from(["hashmap", "rocksdb", "delta"]),
    splits=st.sets(st.integers(0, 40)),
    events=EVENTS,
)
def test_splits_and_backends_change_nothing(frame, result, keep, backend, splits, events):
    options = {"keep": keep, **frame}
    model = Model(result, **options)
    with harness_of(result, **options) as one, harness_of(result, backend=backend, **options) as other:
        whole = play(one, model, events)
        parts = play(other, Model(result, **options), events, splits)
        for card in "ab":
            assert of_card(card, parts, model) == of_card(card, whole, model)


@pytest.mark.parametrize("keep", [0, 5])
@pytest.mark.parametrize("result", [Whole, Counted])
@given(events=EVENTS)
def test_watermark_frees_a_range(keep, result, events):
    with harness_of(result, within=7, keep=keep) as harness:
        play(harness, Model(result), events)
        assert harness.snapshot().entries == ()
