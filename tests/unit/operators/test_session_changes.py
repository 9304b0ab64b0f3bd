"""Sessions of records that may be taken back are those of the records that are left."""

from __future__ import annotations

import random
from collections import defaultdict
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind
from headrace.operators import Session
from headrace.testing import KeyedHarness, PipelineHarness, SideRecord
from tests.unit.operators.window_jobs import Bid, Summary, Totals, window_pipeline
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import summaries

INSERT, BEFORE, AFTER, DELETE = RowKind
GAP = 6


def ms(number):
    return timedelta(milliseconds=number)


SESSIONS = Session(ms(GAP))


def harness_of(result=Summary, *, lateness=0, backend="hashmap"):
    pipeline = window_pipeline(SESSIONS, result, lateness=lateness, late=True, row_kind="kind")
    function = next(operator for operator in pipeline.operators if operator.name == "summary").function
    return KeyedHarness(function, key=lambda bid: bid.item, backend=backend, side_outputs={"late": Bid})


def give(harness, at, kind=INSERT, bidder="x"):
    harness.process(Bid("a", at, 1, bidder), timestamp=at, kind=kind)


class Model:
    """A plain loop: the bids that are left, and the stretches of time in which records are taken, for each item."""

    def __init__(self, lateness):
        self.lateness = lateness
        self.watermark = -(1 << 62)
        self.stretches = defaultdict(list)
        self.bids, self.late, self.unmatched, self.final = [], [], [], []

    def take(self, bid, kind):
        """Take a change, and return whether it was neither late nor unmatched."""
        own = self.stretches[bid.item]
        joined = [(start, end) for start, end in own if start < bid.at + GAP and bid.at < end]
        whole = min([bid.at, *(start for start, _ in joined)]), max([bid.at + GAP, *(end for _, end in joined)])
        if self.is_over(whole):
            self.late.append(bid)
        elif kind.is_retraction:
            (self.bids.remove if bid in self.bids else self.unmatched.append)(bid)
        else:
            self.stretches[bid.item] = [stretch for stretch in own if stretch not in joined] + [whole]
            self.bids.append(bid)

    def is_over(self, stretch):
        return stretch[1] - 1 + self.lateness <= self.watermark

    def advance(self, watermark):
        self.watermark = max(self.watermark, watermark)
        for item, own in self.stretches.items():
            for stretch in filter(self.is_over, own):
                inside = [bid for bid in self.bids if bid.item == item and stretch[0] <= bid.at < stretch[1]]
                self.final += summaries(SESSIONS, inside)
                self.bids = [bid for bid in self.bids if bid not in inside]
            self.stretches[item] = [stretch for stretch in own if not self.is_over(stretch)]


def course(seed, size):
    """Return changes and watermarks (plain numbers) of a clock that moves on; most retractions are of bids that are there."""
    chance, here, events, now = random.Random(seed), [], [], 0
    for _ in range(size):
        now += chance.randint(0, 3)
        bid = Bid(chance.choice("aab"), now - chance.randint(0, 12), chance.choice([None, -1, 2]), chance.choice("xy"))
        if chance.random() < 0.15:
            events.append(now - chance.randint(5, 15))
        elif here and chance.random() < 0.4:
            taken = bid if chance.random() < 0.1 else here.pop(-chance.randint(1, min(len(here), 6)))
            events.append((taken, chance.choice([BEFORE, DELETE])))
        else:
            here.append(bid)
            events.append((bid, chance.choice([INSERT, AFTER])))
    return events


EVENTS = st.builds(course, st.integers(0, 1 << 32), st.integers(0, 40))


def table_of(changes):
    """Return the rows that changes leave; a retracted row must exist, and no two rows are of one session's start."""
    table = {}
    for kind, row in changes:
        place = row.item, row.window_start
        if kind.is_retraction:
            assert table.pop(place) == row
        else:
            assert place not in table
            table[place] = row
    return sorted(map(msgspec.structs.astuple, table.values()))


@pytest.mark.slow
@pytest.mark.parametrize("lateness", [0, 5, 100])
@examples(200)
@given(events=EVENTS)
def test_changed_sessions_equal_a_loop(lateness, events):
    model = Model(lateness)
    with harness_of(lateness=lateness) as harness:
        for event in [*events, 1000]:
            if isinstance(event, int):
                model.advance(event)
                harness.watermark(model.watermark)
            else:
                model.take(*event)
                harness.process(event[0], timestamp=event[0].at, kind=event[1])
        assert table_of(harness.kinds()) == sorted(model.final)
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.late
        assert [record for record, _ in harness.quarantined()] == model.unmatched
        assert harness.snapshot().entries == ()


def bids_of(*, out_of_orderness=1000):
    source = Pipeline("bids").source(
        "bids", Bid, event_time="at", row_kind="kind", out_of_orderness=ms(out_of_orderness)
    )
    return source.key_by("item").window(SESSIONS)


@pytest.mark.slow
@examples(5)
@given(events=EVENTS, seed=st.integers(0, 999), parts=st.integers(1, 3))
def test_splits_and_crashes_change_no_session(events, seed, parts):
    chance = random.Random(seed)
    changes, left = [change for change in events if not isinstance(change, int)], []
    stream = bids_of().aggregate("summary", Summary)
    harness = PipelineHarness(stream.sink("summary", key=("item", "window_start")), parallelism=parts)
    while changes:
        size = chance.randint(1, 7)
        bids, kinds = zip(*changes[:size], strict=True)
        changes = changes[size:]
        for bid, kind in zip(bids, kinds, strict=True):
            if not kind.is_retraction:
                left.append(bid)
            elif bid in left:
                left.remove(bid)
        harness.feed("bids", bids, kinds=kinds)
        harness.run(crash_at=chance.choice([None, "task.half:1", "commit.after"]))
    harness.run(end_of_input=True)
    assert sorted(map(msgspec.structs.astuple, harness.sink("summary"))) == summaries(SESSIONS, left)
    assert harness.live("keyed_state") == []


@pytest.fixture(params=["hashmap", "rocksdb", "delta"])
def corrected(request):
    """A harness whose session from 0 to 16 has fired, and takes late changes."""
    with harness_of(Totals, lateness=100, backend=request.param) as harness:
        for at in (0, 5, 10):
            give(harness, at)
        harness.watermark(20)
        assert harness.kinds() == [(INSERT, total(0, 16, 3))]
        yield harness


def total(start, end, bids):
    return Totals("a", start, end, bids, bids, 1.0, 1)


def changes_behind(harness, *changes):
    before = len(harness.kinds())
    for at, kind in changes:
        give(harness, at, kind)
    return harness.kinds()[before:]


def test_retracted_record_divides_a_session(corrected):
    divided = [(DELETE, total(0, 16, 3)), (INSERT, total(0, 6, 1)), (INSERT, total(10, 16, 1))]
    assert changes_behind(corrected, (5, DELETE)) == divided
    joined = [(DELETE, total(0, 6, 1)), (DELETE, total(10, 16, 1)), (INSERT, total(0, 16, 3))]
    assert changes_behind(corrected, (5, INSERT)) == joined


def test_retracted_record_shortens_a_session(corrected):
    assert changes_behind(corrected, (10, DELETE)) == [(DELETE, total(0, 16, 3)), (INSERT, total(0, 11, 2))]
    assert changes_behind(corrected, (0, DELETE)) == [(DELETE, total(0, 11, 2)), (INSERT, total(5, 11, 1))]
    assert changes_behind(corrected, (5, DELETE)) == [(DELETE, total(5, 11, 1))]


def test_record_within_a_session_updates_its_result(corrected):
    assert changes_behind(corrected, (7, INSERT)) == [(BEFORE, total(0, 16, 3)), (AFTER, total(0, 16, 4))]
    assert changes_behind(corrected, (7, DELETE)) == [(BEFORE, total(0, 16, 4)), (AFTER, total(0, 16, 3))]


def test_records_a_gap_apart_are_divided():
    with harness_of(Totals) as harness:
        for at, kind in [(0, INSERT), (3, INSERT), (GAP, INSERT), (3, DELETE)]:
            give(harness, at, kind)
        harness.watermark(20)
        assert harness.kinds() == [(INSERT, total(0, GAP, 1)), (INSERT, total(GAP, 2 * GAP, 1))]


def test_replaced_record_keeps_its_session_open():
    with harness_of(Totals) as harness:
        give(harness, 0)
        give(harness, 5)
        harness.watermark(8)
        give(harness, 5, BEFORE)
        give(harness, 5, AFTER, "y")
        harness.watermark(10)
        assert [row for _, row in harness.kinds()] == [Totals("a", 0, 11, 2, 2, 1.0, 2)]


def test_sessions_rank_the_records_that_are_left():
    stream = bids_of(out_of_orderness=0).top("best", 1, by="price")
    harness = PipelineHarness(stream.sink("best"))
    bids = [Bid("a", 1, 5), Bid("a", 2, 9), Bid("a", 3, 7), Bid("a", 2, 9)]
    harness.feed("bids", bids, kinds=[INSERT, INSERT, INSERT, DELETE])
    harness.run(end_of_input=True)
    assert harness.sink("best") == [Bid("a", 3, 7)]


def test_early_results_of_changed_sessions_are_refused():
    with pytest.raises(ValueError, match="'summary': early results of sessions need a stream that takes nothing back"):
        bids_of().aggregate("summary", Summary, early=ms(1))
    with pytest.raises(ValueError, match="'best': early results of sessions need a stream that takes nothing back"):
        bids_of().top("best", 1, by="price", early=ms(1))


def test_description_names_stored_rows():
    described = bids_of().aggregate("summary", Summary).operators[-1].function.described()
    assert described["state_kept"].endswith("and a row for the records of each time")
