"""Window joins equal a nested loop over the windows."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import JoinType, Pipeline, RowKind
from headrace.operators import Cumulative, Hopping, Session, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.priced_jobs import Order, Priced, Rate
from tests.unit.support.changelog_table import by_fields
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import windows_of

INSERT, BEFORE, AFTER, DELETE = RowKind
CURRENCIES = st.sampled_from(["a", "b", None])
ORDERS = st.builds(Order, CURRENCIES, st.integers(-20, 30), st.integers(1, 2))
RATES = st.builds(Rate, CURRENCIES, st.integers(-20, 30), st.integers(1, 2))
FAR = 1000


def ms(number):
    return timedelta(milliseconds=number)


TEN = Tumbling(ms(10))
WINDOWS = st.sampled_from([TEN, Hopping(ms(10), ms(5)), Cumulative(ms(12), ms(4))])


HOW = st.sampled_from([*JoinType, "semi_join", "anti_join"])


def joined(windows, how=JoinType.INNER, *, other=None, lag=0, emit=Priced.of):
    """Return the stream of a join; `how` is a `JoinType`, or the name of another method."""
    pipeline, lag = Pipeline("shop"), ms(lag)
    orders = pipeline.source("orders", Order, event_time="at", out_of_orderness=lag).key_by("currency")
    rates = pipeline.source("rates", Rate, event_time="at", out_of_orderness=lag).key_by("currency")
    lefts, rights = orders.window(windows), rates.window(other or windows)
    if isinstance(how, str):
        return getattr(lefts, how)("priced", rights)
    return lefts.join("priced", rights, emit=emit, how=how)


def harness_of(windows, how=JoinType.INNER, backend="hashmap"):
    stream = joined(windows, how)
    stream.side("late_left", Order)
    stream.side("late_right", Rate)
    sides = {"late_left": Order, "late_right": Rate}
    key = (attrgetter("currency"), attrgetter("currency"))
    return KeyedHarness(stream.operators[-1].function, key=key, backend=backend, side_outputs=sides)


class Model:
    """The records of each key and window, and the late records."""

    def __init__(self, windows, how):
        self.windows, self.how = windows, how
        self.watermark = -FAR
        self.groups = defaultdict(lambda: ([], []))
        self.late, self.unmatched = [], []

    def takes(self, record):
        """Return whether a record gets to the join: one without a currency only where its side is in the result without a match."""
        if isinstance(self.how, str):
            is_kept = isinstance(record, Order) and self.how == "anti_join"
        else:
            is_kept = self.how.keeps_left if isinstance(record, Order) else self.how.keeps_right
        return record.currency is not None or is_kept

    def take(self, record, kind=INSERT):
        if record.currency is None and isinstance(record, Rate):
            self._put(record, kind, "rates alone")  # they match no order
        else:
            self._put(record, kind, record.currency)

    def _put(self, record, kind, currency):
        side = isinstance(record, Rate)
        spans = windows_of(self.windows, record.at)
        spans = [span for span in spans if span[1] - 1 > self.watermark]
        groups = [self.groups[currency, span][side] for span in spans]
        if not spans:
            self.late.append(record)
        elif not kind.is_retraction:
            for group in groups:
                group.append(record)
        elif record in groups[-1]:
            for group in groups:
                group.remove(record)
        else:
            self.unmatched.append(record)

    @property
    def results(self):
        for lefts, rights in self.groups.values():
            if isinstance(self.how, str):
                yield from lefts if bool(rights) is (self.how == "semi_join") else []
                continue
            yield from (Priced.of(left, right) for left in lefts for right in rights)
            if not rights and self.how in {JoinType.LEFT, JoinType.FULL}:
                yield from (Priced.of(left, None) for left in lefts)
            if not lefts and self.how in {JoinType.RIGHT, JoinType.FULL}:
                yield from (Priced.of(None, right) for right in rights)


@pytest.mark.slow
@examples(60)
@given(
    windows=WINDOWS,
    how=HOW,
    events=st.lists(
        st.tuples(ORDERS | RATES, st.sampled_from([INSERT, INSERT, BEFORE, AFTER, DELETE])) | st.integers(-20, 40),
        max_size=25,
    ),
)
def test_window_joins_equal_a_loop(windows, how, events):
    model = Model(windows, how)
    with harness_of(windows, how) as harness:
        for event in [*events, FAR]:
            if isinstance(event, int):
                model.watermark = max(model.watermark, event)
                harness.watermark(model.watermark)
                continue
            record, kind = event
            if not model.takes(record):
                continue
            model.take(record, kind)
            give = harness.process1 if isinstance(record, Order) else harness.process2
            give(record, timestamp=record.at, kind=kind)
        assert {kind for kind, _ in harness.kinds()} <= {INSERT}
        assert by_fields(record for _, record in harness.kinds()) == by_fields(model.results)
        late = [output.record for output in harness.output() if isinstance(output, SideRecord)]
        assert by_fields(late) == by_fields(model.late)
        assert [record for record, _ in harness.quarantined()] == model.unmatched
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_windows_survive_a_restart(backend):
    hopping = Hopping(ms(10), ms(5))
    with harness_of(hopping, backend=backend) as harness:
        harness.process1(Order("a", 2, 7), timestamp=2)
        harness.process2(Rate("a", 6, 60), timestamp=6)
        snapshot = harness.snapshot()
    function = joined(hopping).operators[-1].function
    options = {"key": (attrgetter("currency"), attrgetter("currency")), "backend": backend}
    with KeyedHarness.restore(snapshot, function, **options) as restored:
        restored.watermark(FAR)
        assert restored.kinds() == [(INSERT, Priced("a", 2, 7, 60))]
        assert restored._process.emitted[0].timestamp == 9


@pytest.mark.slow
@settings(max_examples=4)
@given(
    orders=st.lists(ORDERS, min_size=1, max_size=12), rates=st.lists(RATES, max_size=8), seed=st.integers(0, 1 << 30)
)
def test_splits_tasks_and_crashes_change_nothing(orders, rates, seed):
    chance = random.Random(seed)
    how = chance.choice([*JoinType, "semi_join", "anti_join"])
    harness = PipelineHarness(
        joined(TEN, how, lag=60).sink("priced"), bucket=chance.choice([1, 3]), parallelism=chance.choice([1, 2])
    )
    model = Model(TEN, how)
    for record in filter(model.takes, [*orders, *rates]):
        model.take(record)
    harness.feed("rates", rates[:3])
    harness.feed("orders", orders[:5])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("orders", orders[5:])
    harness.feed("rates", rates[3:])
    harness.run(end_of_input=True)
    assert by_fields(harness.sink("priced")) == by_fields(model.results)


@pytest.mark.parametrize("how", [*JoinType, "semi_join", "anti_join"])
@pytest.mark.parametrize("windows", [TEN, Hopping(ms(10), ms(5)), Cumulative(ms(10), ms(5))])
def test_unmatched_retractions_go_to_quarantine(windows, how):
    with harness_of(windows, how) as harness:
        harness.process1(Order("a", 3, 1), timestamp=3, kind=DELETE)  # before its record
        harness.process1(Order("a", 3, 1), timestamp=3)
        harness.process1(Order("a", 13, 1), timestamp=13, kind=DELETE)  # of another window
        harness.process2(Rate("a", 3, 1), timestamp=3, kind=DELETE)
        harness.watermark(FAR)
        reasons = [reason for _, reason in harness.quarantined()]
        assert reasons == ["a retraction (-D) that matches none of the records of its key in its window"] * 3


def test_both_sides_need_the_same_windows():
    with pytest.raises(ValueError, match="join 'priced': the windows are tumbling, 10ms and tumbling, 5ms: both sides"):
        joined(TEN, other=Tumbling(ms(5)))


@pytest.mark.parametrize("how", [JoinType.INNER, "semi_join", "anti_join"])
def test_sessions_cannot_be_joined(how):
    with pytest.raises(ValueError, match="join 'priced': sessions of two streams have no common windows"):
        joined(Session(ms(5)), how)


@pytest.mark.parametrize("method", ["semi_join", "anti_join"])
def test_other_side_has_windows_of_its_own(method):
    orders = Pipeline("shop").source("orders", Order, event_time="at").key_by("currency")
    with pytest.raises(
        TypeError, match=f"{method} 'priced' takes a stream with windows, as in .*, not <Stream of Order"
    ):
        getattr(orders.window(TEN), method)("priced", orders)
    with pytest.raises(ValueError, match=f"{method} 'priced': the windows are tumbling, 10ms and tumbling, 5ms"):
        joined(TEN, method, other=Tumbling(ms(5)))


def test_emit_that_does_not_fit_is_refused():
    def strict(order: Order, rate: Rate) -> Priced:
        return Priced.of(order, rate)

    with pytest.raises(TypeError, match="join 'priced': parameter 'rate' of strict is Rate, but it gets None"):
        joined(TEN, JoinType.LEFT, emit=strict)
    with pytest.raises(TypeError, match="join 'priced': how must be a JoinType, such as JoinType.LEFT, not 5"):
        joined(TEN, 5)


def test_each_window_emits_its_own_matches():
    hopping = Hopping(ms(10), ms(5))
    with harness_of(hopping, "anti_join") as harness:
        harness.process1(Order("a", 7, 1), timestamp=7)
        harness.process2(Rate("a", 12, 1), timestamp=12)
        harness.watermark(FAR)
        assert [(emitted_record.timestamp, emitted_record.record) for emitted_record in harness._process.emitted] == [
            (9, Order("a", 7, 1))
        ]


def test_join_says_which_sides_are_late():
    with pytest.raises(
        ValueError, match="join 'priced' has no side output 'late': it has 'late_left' and 'late_right'"
    ):
        joined(TEN).side("late", Order)
