"""Early results show a window as it is when the watermark reaches the end of a step, and are corrected later."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind
from headrace.errors import StateSchemaError
from headrace.operators import Cumulative, Hopping, Session, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid, Totals, window_pipeline
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import summaries, summary_of, windows_of

INSERT, BEFORE, AFTER, DELETE = RowKind
FAR = 1000
BIDS = st.builds(
    Bid, st.sampled_from("ab"), st.integers(-20, 30), st.none() | st.integers(-9, 9), st.sampled_from("xy")
)


def ms(number):
    return timedelta(milliseconds=number)


WINDOWS = st.sampled_from([Tumbling(ms(10)), Hopping(ms(10), ms(5)), Cumulative(ms(12), ms(4))])


def function_of(windows, *, early=3, lateness=0):
    pipeline = window_pipeline(windows, Totals, early=early, lateness=lateness)
    return next(operator for operator in pipeline.operators if operator.name == "summary").function


def harness_of(windows, *, backend="hashmap", **options):
    return KeyedHarness(function_of(windows, **options), key=lambda bid: bid.item, backend=backend)


class Model:
    """The expected row of each window: its records when the watermark last reached the end of a step, or of the window."""

    def __init__(self, windows, step):
        self.windows, self.step = windows, step
        self.watermark = -FAR
        self.records, self.shown = defaultdict(list), {}

    def take(self, bid):
        for start, end in windows_of(self.windows, bid.at):
            if end - 1 > self.watermark:
                self.records[bid.item, start, end].append(bid)

    def advance(self, watermark):
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        for window, bids in self.records.items():
            _, start, end = window
            timestamps = [*range(start + self.step - 1, end - 1, self.step), end - 1]
            if any(before < timestamp <= self.watermark for timestamp in timestamps):
                self.shown[window] = list(bids)

    @property
    def table(self):
        results = []
        for (item, start, end), bids in self.shown.items():
            count, _, total, _, _, mean, bidders, *_ = summary_of(list(enumerate(bids)))
            results.append(Totals(item, start, end, count, total, mean, bidders))
        return by_fields(results)


@examples(20)
@given(windows=WINDOWS, step=st.integers(1, 11), events=st.lists(BIDS | st.integers(-20, 40), max_size=25))
def test_each_early_step_shows_the_current_result(windows, step, events):
    model = Model(windows, step)
    with harness_of(windows, early=step) as harness:
        for event in [*events, FAR]:
            if isinstance(event, int):
                model.advance(event)
                harness.watermark(model.watermark)
            else:
                model.take(event)
                harness.process(event, timestamp=event.at)
            assert table_of(harness.kinds(), Totals) == model.table
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_early_result_is_corrected_after_a_restart(backend):
    windows = Tumbling(ms(10))
    with harness_of(windows, backend=backend) as harness:
        harness.process(Bid("a", 1, 5, "x"), timestamp=1)
        harness.watermark(2)
        first = Totals("a", 0, 10, 1, 5, 5.0, 1)
        assert harness.kinds() == [(INSERT, first)]
        snapshot = harness.snapshot()
    options = {"key": lambda bid: bid.item, "backend": backend}
    with KeyedHarness.restore(snapshot, function_of(windows), **options) as restored:
        restored.process(Bid("a", 4, 7, "x"), timestamp=4)
        restored.watermark(9)
        assert restored.kinds() == [(BEFORE, first), (AFTER, Totals("a", 0, 10, 2, 12, 6.0, 1))]
        assert {emitted_record.timestamp for emitted_record in restored._process.emitted} == {9}


def test_unchanged_early_result_is_not_repeated():
    with harness_of(Tumbling(ms(10))) as harness:
        harness.process(Bid("a", 1, 5), timestamp=1)
        for watermark in range(12):
            harness.watermark(watermark)
        assert [kind for kind, _ in harness.kinds()] == [INSERT]


def test_late_records_correct_after_early_ones():
    with harness_of(Tumbling(ms(10)), lateness=5) as harness:
        for at, watermark in ((1, 2), (2, 9), (3, 30)):
            harness.process(Bid("a", at, 5), timestamp=at)
            harness.watermark(watermark)
        assert [kind for kind, _ in harness.kinds()] == [INSERT, BEFORE, AFTER, BEFORE, AFTER]


@examples(1)
@given(bids=st.lists(BIDS, min_size=1, max_size=15), seed=st.integers(0, 1 << 30))
def test_early_results_end_with_the_final_results(bids, seed):
    chance = random.Random(seed)
    harness = PipelineHarness(latest(chance.choice([1, 4])), bucket=chance.choice([1, 3]))
    harness.feed("bids", bids[:7])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("bids", bids[7:])
    harness.run(end_of_input=True)
    result = [(row.item, row.window_start, row.window_end, row.bids, row.total) for row in harness.sink("latest")]
    assert sorted(result) == sorted((*row[:4], row[5]) for row in summaries(Tumbling(ms(10)), bids))


def latest(early):
    bids = Pipeline("bids").source("bids", Bid, event_time="at", out_of_orderness=ms(60)).key_by("item")
    totals = bids.window(Tumbling(ms(10))).aggregate("totals", Totals, early=ms(early))
    key = ("item", "window_start")
    return totals.upsert_materialize("one", primary_key=key, upsert_key=key).sink("latest")


@pytest.mark.parametrize("windows", [Tumbling(ms(10)), Session(ms(10))])
@pytest.mark.parametrize(("before", "after"), [(None, 4), (4, None)])
def test_early_results_cannot_be_switched_later(windows, before, after):
    harness = PipelineHarness(window_pipeline(windows, Totals, early=before))
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    harness.change(pipeline=window_pipeline(windows, Totals, early=after))
    with pytest.raises(StateSchemaError, match="operator 'summary', state .* has stored state and is not declared"):
        harness.run()


def test_changed_early_step_applies_to_open_windows():
    with harness_of(Tumbling(ms(10)), early=3) as before:
        before.process(Bid("a", 1, 5), timestamp=1)
        before.watermark(2)
        snapshot = before.snapshot()
    options = {"key": lambda bid: bid.item}
    with KeyedHarness.restore(snapshot, function_of(Tumbling(ms(10)), early=7), **options) as harness:
        harness.process(Bid("a", 2, 5), timestamp=3)
        harness.watermark(6)
        assert [(kind, record.bids) for kind, record in harness.kinds()] == [(BEFORE, 1), (AFTER, 2)]


@pytest.mark.parametrize(("early", "message"), [(0, "early must be from 1 ms"), (-5, "early must be from 1 ms")])
def test_invalid_early_step_is_refused(early, message):
    with pytest.raises(ValueError, match=f"aggregate 'summary': {message}"):
        function_of(Tumbling(ms(10)), early=early)
