"""Late records correct fired windows; records beyond the lateness go to the side output.

State is freed when no more record can arrive.
"""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import RowKind
from headrace.errors import UserFunctionError
from headrace.operators import Cumulative, Hopping, Session, Tumbling
from headrace.testing import KeyedHarness, SideRecord
from tests.unit.operators.window_jobs import Bid, Summary, Totals, window_pipeline
from tests.unit.support.windows_by_hand import LateModel

INSERT, BEFORE, AFTER, DELETE = RowKind


def ms(number):
    return timedelta(milliseconds=number)


def function_of(windows, result=Summary, *, lateness=0, late=True, row_kind=None):
    pipeline = window_pipeline(windows, result, lateness=lateness, late=late, row_kind=row_kind)
    return next(operator for operator in pipeline.operators if operator.name == "summary").function


def harness_of(windows, result=Summary, *, late=True, backend="hashmap", **options):
    function = function_of(windows, result, late=late, **options)
    sides = {"late": Bid} if late else {}
    return KeyedHarness(function, key=lambda bid: bid.item, backend=backend, side_outputs=sides)


def late_of(harness):
    return [output.record for output in harness.output() if isinstance(output, SideRecord)]


ITEMS = st.sampled_from(["", "a"])
BIDS = st.builds(Bid, ITEMS, st.integers(-30, 30), st.none() | st.integers(-9, 9), st.sampled_from("xyz"))
SLICED = [Tumbling(ms(10)), Hopping(ms(10), ms(5)), Hopping(ms(9), ms(4), ms(1)), Cumulative(ms(12), ms(4))]
EVENTS = st.lists(BIDS | st.integers(-30, 60), max_size=40)


class Table:
    """The table that a changelog describes: a retracted row must exist."""

    def __init__(self):
        self.rows = Counter()

    def apply(self, kind, record):
        row = msgspec.structs.astuple(record)
        if kind in {BEFORE, DELETE}:
            assert self.rows[row] == 1, (kind, row)
            self.rows[row] -= 1
        else:
            self.rows[row] += 1

    @property
    def sorted(self):
        return sorted((+self.rows).elements())


def play(harness, model, events, *, kinds=False):
    """Process bids and watermarks (numbers) in both the harness and the model. Return the table that the changes describe."""
    table, here = Table(), []
    for event in events:
        if isinstance(event, int):
            model.watermark = max(model.watermark, event)
            harness.watermark(model.watermark)
        else:
            sign = -1 if kinds and here.count(event) > 0 and event.at % 2 else 1
            model.take(event, sign)
            here.append(event) if sign == 1 else here.remove(event)
            harness.process(event, timestamp=event.at, kind=INSERT if sign == 1 else DELETE)
    model.watermark = 1000
    harness.watermark(1000)
    for kind, record in harness.kinds():
        table.apply(kind, record)
    return table


def assert_nothing_left(harness):
    assert harness.snapshot().entries == ()


@pytest.mark.parametrize("lateness", [0, 1, 12])
@given(windows=st.sampled_from([*SLICED, Session(ms(6))]), events=EVENTS)
def test_late_record_corrections_equal_a_loop(lateness, windows, events):
    model = LateModel(windows, lateness)
    with harness_of(windows, lateness=lateness) as harness:
        table = play(harness, model, events)
        assert table.sorted == model.summaries
        assert late_of(harness) == model.late
        assert_nothing_left(harness)


@pytest.mark.parametrize("lateness", [0, 12])
@given(windows=st.sampled_from(SLICED), events=EVENTS)
def test_results_after_retractions_equal_a_loop(lateness, windows, events):
    model = LateModel(windows, lateness)
    doubled = [twice for event in events for twice in ([event] if isinstance(event, int) else [event, event])]
    with harness_of(windows, Totals, lateness=lateness, row_kind="kind") as harness:
        table = play(harness, model, doubled, kinds=True)
        assert table.sorted == model.totals
        assert_nothing_left(harness)


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def tumbling(request):
    with harness_of(Tumbling(ms(10)), Totals, lateness=5, backend=request.param) as harness:
        yield harness


def test_late_record_updates_the_result(tumbling):
    tumbling.process(Bid("a", 1, 5, "x"), timestamp=1)
    tumbling.watermark(9)
    tumbling.process(Bid("a", 2, 7, "x"), timestamp=2)
    first, second = Totals("a", 0, 10, 1, 5, 5.0, 1), Totals("a", 0, 10, 2, 12, 6.0, 1)
    assert tumbling.kinds() == [(INSERT, first), (BEFORE, first), (AFTER, second)]


def test_record_beyond_lateness_goes_to_side_output(tumbling):
    late = Bid("a", 2, 7, "x")
    tumbling.watermark(13)
    tumbling.process(late, timestamp=2)
    assert tumbling.kinds() == [(INSERT, Totals("a", 0, 10, 1, 7, 7.0, 1))]
    tumbling.watermark(14)
    tumbling.process(late, timestamp=2)
    assert late_of(tumbling) == [late]


def test_state_is_freed_at_the_lateness(tumbling):
    tumbling.process(Bid("a", 1, 5, "x"), timestamp=1)
    tumbling.watermark(13)
    assert tumbling.state("tumbling_10ms", "a", "0").rows == 1
    tumbling.watermark(14)
    assert_nothing_left(tumbling)


def test_without_a_side_output_late_records_are_dropped():
    with harness_of(Tumbling(ms(10)), Totals, late=False) as harness:
        harness.watermark(9)
        harness.process(Bid("a", 1, 5), timestamp=1)
        assert harness.kinds() == []


def test_taking_all_records_back_deletes_the_result():
    with harness_of(Tumbling(ms(10)), Totals, lateness=5, row_kind="kind") as harness:
        bid = Bid("a", 1, 5, "x")
        harness.process(bid, timestamp=1)
        harness.watermark(9)
        harness.process(bid, timestamp=1, kind=DELETE)
        result = Totals("a", 0, 10, 1, 5, 5.0, 1)
        assert harness.kinds() == [(INSERT, result), (DELETE, result)]


def test_bridging_record_deletes_the_fired_sessions():
    with harness_of(Session(ms(10)), Totals, lateness=50) as harness:
        for at in (0, 15):
            harness.process(Bid("a", at, 1, "x"), timestamp=at)
        harness.watermark(30)
        harness.process(Bid("a", 8, 1, "x"), timestamp=8)
        one, other = Totals("a", 0, 10, 1, 1, 1.0, 1), Totals("a", 15, 25, 1, 1, 1.0, 1)
        both = Totals("a", 0, 25, 3, 3, 1.0, 1)
        expected = [(INSERT, one), (INSERT, other), (DELETE, one), (DELETE, other), (INSERT, both)]
        assert harness.kinds() == expected


def test_fired_session_that_grows_fires_again():
    with harness_of(Session(ms(10)), Totals, lateness=50) as harness:
        harness.process(Bid("a", 0, 1, "x"), timestamp=0)
        harness.watermark(9)
        harness.process(Bid("a", 5, 1, "x"), timestamp=5)
        harness.watermark(14)
        one, both = Totals("a", 0, 10, 1, 1, 1.0, 1), Totals("a", 0, 15, 2, 2, 1.0, 1)
        assert harness.kinds() == [(INSERT, one), (DELETE, one), (INSERT, both)]


@pytest.mark.parametrize(("windows", "result"), [(Tumbling(ms(10)), Summary), (Session(ms(10)), Totals)])
def test_undeclared_retraction_fails(windows, result):
    with harness_of(windows, result) as harness, pytest.raises(UserFunctionError, match="cannot take a record back"):
        harness.process(Bid("a", 1, 5), timestamp=1, kind=BEFORE)


@pytest.mark.parametrize("prices", [(1 << 62, 1 << 62), (-(1 << 62), -(1 << 62) - 1)])
def test_sum_beyond_64_bits_fails(prices):
    with harness_of(Tumbling(ms(10)), Totals) as harness:
        harness.process(Bid("a", 1, prices[0]), timestamp=1)
        with pytest.raises(UserFunctionError, match=r"Sum\('price'\) is -?9223372036854775\d+, more than 64 bits"):
            harness.process(Bid("a", 2, prices[1]), timestamp=2)


def test_shorter_lateness_frees_all_state():
    with harness_of(Tumbling(ms(10)), Totals, lateness=50) as before:
        before.process(Bid("a", 1, 5), timestamp=1)
        snapshot = before.snapshot()
    function = function_of(Tumbling(ms(10)), Totals, late=False)
    with KeyedHarness.restore(snapshot, function, key=lambda bid: bid.item) as harness:
        harness.watermark(100)
        assert_nothing_left(harness)


def test_longer_lateness_keeps_state_longer():
    with harness_of(Tumbling(ms(10)), Totals, lateness=5, late=False) as before:
        before.process(Bid("a", 1, 5), timestamp=1)
        snapshot = before.snapshot()
    function = function_of(Tumbling(ms(10)), Totals, lateness=50, late=False)
    with KeyedHarness.restore(snapshot, function, key=lambda bid: bid.item) as harness:
        harness.watermark(20)
        harness.process(Bid("a", 2, 7), timestamp=2)
        assert [kind for kind, _ in harness.kinds()] == [INSERT, BEFORE, AFTER]
        harness.watermark(100)
        assert_nothing_left(harness)


@pytest.mark.parametrize("watermark", [8, 9])
def test_record_at_a_sessions_end_begins_another(watermark):
    """The result must not depend on whether the first session has fired: the watermark, and so records of other keys, must not decide."""
    with harness_of(Session(ms(10)), Totals) as harness:
        harness.process(Bid("a", 0, 1), timestamp=0)
        harness.watermark(watermark)
        harness.process(Bid("a", 10, 1), timestamp=10)
        harness.watermark(100)
        spans = [(record.window_start, record.window_end) for _, record in harness.kinds()]
    assert spans == [(0, 10), (10, 20)]
