"""Aggregates over a frame: each result equals a fold over the frame's rows, cut out of a sorted list."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace import RowKind
from headrace.testing import SideRecord
from tests.unit.operators.over_jobs import FAR, Ahead, Counted, Model, Payment, Placed, Whole, harness_of
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
SPLIT = "split"
"""The end of a micro-batch."""

FRAMES = [{}, {"rows": 1}, {"rows": 3}, {"within": 0}, {"within": 7}]
PAYMENTS = st.builds(
    Payment,
    st.sampled_from("ab"),
    st.integers(-20, 20),
    st.none() | st.integers(-2, 9),
    st.sampled_from([0.1, 0.2, 0.3, 1e16, -1e16]),
    st.integers(0, 3),
)
EVENTS = st.lists(PAYMENTS | st.integers(-25, 25) | st.just(SPLIT), max_size=40)
RESULTS = st.sampled_from([Whole, Counted, Placed, Ahead])
ORDERS = st.sampled_from([(), ("seq",), ("weight", "seq")])


def play(harness, model, events):
    """Process payments, watermarks (numbers) and ends of micro-batches in both; a payment's id is its place among the events."""
    for number, event in enumerate([*events, FAR]):
        if event == SPLIT:
            harness.snapshot()
        elif isinstance(event, int):
            model.watermark = max(model.watermark, event)
            harness.watermark(model.watermark)
        else:
            payment = msgspec.structs.replace(event, id=number)
            model.take(payment)
            harness.process(payment, timestamp=payment.at)
    return harness.kinds()


def late_of(harness):
    return [output.record for output in harness.output() if isinstance(output, SideRecord)]


@examples(100)
@given(frame=st.sampled_from(FRAMES), result=RESULTS, order_by=ORDERS, events=EVENTS)
def test_each_result_equals_a_fold(frame, result, order_by, events):
    model = Model(result, order_by=order_by, **frame)
    events = [event for event in events if event != SPLIT]
    with harness_of(result, order_by=order_by, **frame) as harness:
        changes = play(harness, model, events)
        assert {kind for kind, _ in changes} <= {INSERT}
        for card in "ab":
            ids = {payment.id for payment in model.taken if payment.card == card}
            assert [record for _, record in changes if record.id in ids] == model.results_of(card)
        assert late_of(harness) == model.late


@examples(100)
@given(frame=st.sampled_from(FRAMES), result=RESULTS, order_by=ORDERS, keep=st.sampled_from([1, 6, 30]), events=EVENTS)
def test_late_rows_correct_the_results(frame, result, order_by, keep, events):
    model = Model(result, order_by=order_by, keep=keep, **frame)
    events = [event for event in events if event != SPLIT]
    with harness_of(result, order_by=order_by, keep=keep, **frame) as harness:
        changes = play(harness, model, events)
        assert table_of(changes, result) == by_fields(model.results())
        assert late_of(harness) == model.late
