"""Deleted keys are forgotten after `tombstones`, and an event is final after `corrections`; state is freed at the same time."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import History, RowKind
from headrace.testing import PipelineHarness, SideRecord
from tests.unit.operators.changed_jobs import Change, Customer, CustomerVersion, give, harness_of, stream_of, versions
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
MS = timedelta(milliseconds=1)
VALUES = st.sampled_from("ab")
STEPS = st.lists(
    st.builds(Change, st.sampled_from("xy"), st.integers(0, 9), st.integers(-9, 30), st.sampled_from("uud"), VALUES)
    | st.integers(-10, 40),
    max_size=30,
)


class Bounded:
    """The events of each key that are known, and the rows of keys that are forgotten."""

    def __init__(self, corrections, tombstones):
        self.corrections, self.tombstones = corrections, tombstones
        self.watermark = -1000
        self.known, self.rows, self.late = {}, [], []

    def give(self, event):
        known = self.known.setdefault(event.id, {})
        closed = self.watermark - self.corrections
        if any(other.lsn > event.lsn and other.at <= closed for other in known.values()):
            self.late.append(event)
        else:
            known.setdefault(event.lsn, event)
        self.forget()

    def forget(self):
        for known in self.known.values():
            last = max(known.values(), key=lambda event: event.lsn, default=None)
            if last is not None and last.op == "d" and last.at + self.tombstones <= self.watermark:
                self.rows += versions(known.values())
                known.clear()

    def table(self):
        return by_fields([*self.rows, *versions([event for known in self.known.values() for event in known.values()])])


@pytest.mark.parametrize(("corrections", "tombstones"), [(5, 3), (3, 8), (1, 1)])
@examples(80)
@given(steps=STEPS)
def test_bounded_history_equals_a_model(steps, corrections, tombstones):
    model = Bounded(corrections, tombstones)
    options = {"corrections": corrections * MS, "tombstones": tombstones * MS, "late": True}
    with harness_of(History.SCD2, **options) as harness:
        for step in steps:
            if isinstance(step, Change):
                give(harness, step)
                model.give(step)
            elif step > model.watermark:
                harness.watermark(step)
                model.watermark = step
                model.forget()
        assert table_of(harness.kinds(), CustomerVersion) == model.table()
        assert [output.record for output in harness.output() if isinstance(output, SideRecord)] == model.late
        harness.watermark(100)
        for key, known in model.known.items():
            last = max(known.values(), key=lambda event: event.lsn, default=None)
            is_live = last is not None and last.op != "d"
            assert len(harness.state("events_by_lsn", key)) == is_live
            assert (harness.state("latest", key) is not None) == is_live


def test_tombstone_keeps_older_events_away():
    with harness_of(History.SCD1, tombstones=10 * MS) as harness:
        give(harness, Change("x", 5, 5, "d"), Change("x", 3, 6, "u", "a"))
        assert harness.kinds() == []
        harness.watermark(14)
        give(harness, Change("x", 4, 7, "u", "a"))
        assert harness.kinds() == []
        harness.watermark(15)
        assert harness.state("last_event_by_lsn", "x") is None
        give(harness, Change("x", 4, 7, "u", "a"))
        assert harness.kinds() == [(INSERT, Customer("x", "a", None))]


def test_key_that_came_back_stays():
    with harness_of(History.SCD1, tombstones=10 * MS) as harness:
        give(harness, Change("x", 5, 5, "d"), Change("x", 6, 6, "u", "a"))
        harness.watermark(100)
        give(harness, Change("x", 4, 7, "u", "b"))
        assert harness.kinds() == [(INSERT, Customer("x", "a", None))]


def test_cost_of_an_event_does_not_grow():
    with harness_of(History.SCD2, backend="delta") as harness:
        requests = []
        for lsn in range(0, 120, 2):
            give(harness, Change("x", lsn, lsn, "u", str(lsn)))
            if not lsn % 20:
                requests.append(harness.statistics().requests)
        assert len({later - before for before, later in pairwise(requests)}) == 1


def test_late_events_are_dropped_without_side():
    stream = stream_of(History.SCD2, corrections=5 * MS)
    harness = PipelineHarness(stream.upsert_materialize("m", primary_key=("id", "valid_from")).sink("out"), bucket=1)
    harness.feed("changes", [Change("x", 5, 5, "u", "a"), Change("y", 1, 20, "u", "a"), Change("x", 4, 21, "u", "b")])
    assert harness.run().quarantined == 0
    assert by_fields(harness.sink("out")) == [
        CustomerVersion("x", "a", None, 5, None),
        CustomerVersion("y", "a", None, 1, None),
    ]
