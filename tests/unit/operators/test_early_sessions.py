"""Early results of sessions: the current result, retracted when the session grows or merges into another one."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind
from headrace.operators import Session
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.ranked_jobs import BestOfWindow, Score, scores
from tests.unit.operators.test_window_results import assert_nothing_left
from tests.unit.operators.window_jobs import Bid, Totals, window_pipeline
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import summaries, summary_of

INSERT, BEFORE, AFTER, DELETE = RowKind
FAR = 1000
GAP = 6
BIDS = st.builds(
    Bid, st.sampled_from("ab"), st.integers(-10, 30), st.none() | st.integers(-9, 9), st.sampled_from("xy")
)


def ms(number):
    return timedelta(milliseconds=number)


def function_of(*, early=3, lateness=0, late=False):
    pipeline = window_pipeline(Session(ms(GAP)), Totals, early=early, lateness=lateness, late=late)
    return next(operator for operator in pipeline.operators if operator.name == "summary").function


def harness_of(*, backend="hashmap", late=False, **options):
    sides = {"late": Bid} if late else {}
    function = function_of(late=late, **options)
    return KeyedHarness(function, key=lambda bid: bid.item, backend=backend, side_outputs=sides)


def give(harness, *bids):
    for bid in bids:
        harness.process(bid, timestamp=bid.at)


def totals(start, end, bids, item="a"):
    count, _, total, _, _, mean, bidders, *_ = summary_of(list(enumerate(bids)))
    return Totals(item, start, end, count, total, mean, bidders)


@dataclass
class Visit:
    """A session: its bids, and the result that is shown."""

    item: str
    start: int
    end: int
    bids: list[Bid] = field(default_factory=list)
    shown: Totals | None = None

    def show(self):
        self.shown = totals(self.start, self.end, self.bids, self.item)


class Model:
    """Sessions by a plain loop. A session is shown at the ends of steps from its start, and at the end of its last shown result."""

    def __init__(self, step, lateness):
        self.step, self.lateness = step, lateness
        self.watermark = -FAR
        self.visits, self.late = [], []

    def take(self, bid):
        joined = [
            visit
            for visit in self.visits
            if visit.item == bid.item
            and visit.end - 1 + self.lateness > self.watermark
            and visit.start < bid.at + GAP
            and bid.at < visit.end
        ]
        start, end = (
            min([bid.at, *(session.start for session in joined)]),
            max([bid.at + GAP, *(session.end for session in joined)]),
        )
        whole = Visit(bid.item, start, end, [*(bid for session in joined for bid in session.bids), bid])
        if end - 1 + self.lateness <= self.watermark:
            self.late.append(bid)
            return
        if end - 1 <= self.watermark:
            whole.show()
        elif len(joined) == 1 and joined[0].end - 1 > self.watermark:
            whole.shown = joined[0].shown
        self.visits = [visit for visit in self.visits if visit not in joined] + [whole]

    def advance(self, watermark):
        before, self.watermark = self.watermark, max(self.watermark, watermark)
        for visit in self.visits:
            timestamps = [*range(visit.start + self.step - 1, visit.end - 1, self.step), visit.end - 1]
            timestamps += [visit.shown.window_end - 1] if visit.shown is not None else []
            if any(before < timestamp <= self.watermark for timestamp in timestamps):
                visit.show()

    @property
    def table(self):
        return by_fields(visit.shown for visit in self.visits if visit.shown is not None)


def play(harness, step, lateness, events):
    """Process bids and watermarks (numbers); compare the table after each."""
    model = Model(step, lateness)
    for event in [*events, FAR]:
        emitted, watermark = len(harness.kinds()), model.watermark
        if isinstance(event, int):
            model.advance(event)
            harness.watermark(model.watermark)
        else:
            model.take(event)
            give(harness, event)
        assert table_of(harness.kinds(), Totals) == model.table
        if not lateness:
            times = [emitted_record.timestamp for emitted_record in harness._process.emitted[emitted:]]
            assert all(time > watermark for time in times)  # so windows behind it can take all of them
    return model


@examples(40)
@given(
    step=st.integers(1, 8),
    lateness=st.sampled_from([0, 0, 4, 20]),
    events=st.lists(BIDS | st.integers(-10, 40), max_size=30),
)
def test_table_follows_growing_and_merging_sessions(step, lateness, events):
    with harness_of(early=step, lateness=lateness, late=True) as harness:
        model = play(harness, step, lateness, events)
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.late
        assert harness.snapshot().entries == ()


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@examples(2)
@given(step=st.integers(1, 8), events=st.lists(BIDS | st.integers(-10, 40), max_size=20))
def test_backends_follow_growing_and_merging_sessions(backend, step, events):
    with harness_of(early=step, backend=backend) as harness:
        play(harness, step, 0, events)


def test_merging_sessions_retract_both_results():
    with harness_of(early=2) as harness:
        give(harness, Bid("a", 0, 1), Bid("a", 9, 1))
        harness.watermark(1)
        give(harness, Bid("a", 5, 1))
        harness.watermark(3)
        first, whole = totals(0, 6, [Bid("a", 0, 1)]), totals(0, 15, [Bid("a", at, 1) for at in (0, 9, 5)])
        assert harness.kinds() == [(INSERT, first), (DELETE, first), (INSERT, whole)]


def test_grown_session_is_a_new_row():
    with harness_of(early=2) as harness:
        give(harness, Bid("a", 0, 1))
        harness.watermark(1)
        give(harness, Bid("a", 3, 1))
        harness.watermark(3)
        one, both = totals(0, 6, [Bid("a", 0, 1)]), totals(0, 9, [Bid("a", 0, 1), Bid("a", 3, 1)])
        assert harness.kinds() == [(INSERT, one), (DELETE, one), (INSERT, both)]


def test_session_of_the_same_span_is_updated():
    with harness_of(early=2) as harness:
        give(harness, Bid("a", 0, 1))
        harness.watermark(1)
        give(harness, Bid("a", 0, 3))
        harness.watermark(FAR)
        one, both = totals(0, 6, [Bid("a", 0, 1)]), totals(0, 6, [Bid("a", 0, 1), Bid("a", 0, 3)])
        assert harness.kinds() == [(INSERT, one), (BEFORE, one), (AFTER, both)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
def test_early_result_is_retracted_after_a_restart(backend):
    with harness_of(early=2, backend=backend) as harness:
        give(harness, Bid("a", 0, 1))
        harness.watermark(1)
        snapshot = harness.snapshot()
    options = {"key": lambda bid: bid.item, "backend": backend}
    with KeyedHarness.restore(snapshot, function_of(early=2), **options) as restored:
        give(restored, Bid("a", 4, 1))
        restored.watermark(FAR)
        one, both = totals(0, 6, [Bid("a", 0, 1)]), totals(0, 10, [Bid("a", 0, 1), Bid("a", 4, 1)])
        assert restored.kinds() == [(DELETE, one), (INSERT, both)]
        assert restored.snapshot().entries == ()


def test_session_shows_its_ranks_early():
    stream = scores().window(Session(ms(5))).top("best", 1, by="points", result=BestOfWindow, early=ms(2))
    with KeyedHarness(stream.operators[-1].function, key=lambda score: score.game) as harness:
        for score, watermark in ((Score("a", 0, 9), 1), (Score("a", 3, 5), 5), (Score("a", 7, 12), FAR)):
            harness.process(score, timestamp=score.at)
            harness.watermark(watermark)
        assert table_of(harness.kinds(), BestOfWindow) == [BestOfWindow(0, "a", "", 12, 1)]
        assert [kind for kind, _ in harness.kinds()] == [INSERT, DELETE, INSERT, DELETE, INSERT]


def latest(**options):
    """Return a job whose sink has one row per session; the upsert key is the primary key, so the sink ignores `-U`."""
    bids = Pipeline("bids").source("bids", Bid, event_time="at", out_of_orderness=ms(60)).key_by("item")
    sessions = bids.window(Session(ms(GAP))).aggregate("totals", Totals, **options)
    key = ("item", "window_start")
    return sessions.upsert_materialize("one", primary_key=key, upsert_key=key).sink("latest")


@examples(1)
@given(bids=st.lists(BIDS, min_size=1, max_size=15), seed=st.integers(0, 1 << 30))
def test_tables_end_with_complete_sessions(bids, seed):
    chance = random.Random(seed)
    harness = PipelineHarness(latest(early=ms(chance.choice([1, 4]))), bucket=chance.choice([1, 3]))
    harness.feed("bids", bids[:7])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.feed("bids", [*bids[7:], Bid("c", 70, 1)])
    harness.run(crash_at=chance.choice([None, "task.half:1", "commit.before"]))
    harness.run(end_of_input=True)
    result = [(row.item, row.window_start, row.window_end, row.bids, row.total) for row in harness.sink("latest")]
    expected = summaries(Session(ms(GAP)), [*bids, Bid("c", 70, 1)])
    assert sorted(result) == sorted((*row[:4], row[5]) for row in expected)
    assert_nothing_left(harness)


def test_late_record_moves_a_fired_session():
    harness = PipelineHarness(latest(allowed_lateness=ms(200)), bucket=1)
    harness.feed("bids", [Bid("a", 10, 1), Bid("b", 100, 1)])
    harness.run()
    harness.feed("bids", [Bid("a", 7, 1), Bid("b", 110, 1)])
    harness.run()
    assert [(row.window_start, row.window_end) for row in harness.sink("latest") if row.item == "a"] == [(7, 16)]
