"""The clocks by which stored states expire at a checkpoint: compaction drops only entries that are certainly dead."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import ExpiryClock, OnGap, StateTtl, TtlTime
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Declarations, OperatorDeclaration
from headrace.log.lineage import Lineage
from headrace.log.ttl import certain_expiries, row_expiries
from headrace.records.watermarks import Timeline
from headrace.tables.expiry import dead_sql
from tests.unit.support.keyed_state_rows import row, survivors

TEN = timedelta(milliseconds=10)
PROLONG = {"on_gap": OnGap.PROLONG, "gap_threshold": timedelta(milliseconds=100)}


def last_of(**fields):
    """The last checkpoint, committed at 300."""
    return Checkpoint(
        incarnation=1,
        checkpoint_id=1, kind=Kind.BATCH, run_id="r", attempt_id="a", max_parallelism=1, versions={}, committed_at=300, **fields
    )  # fmt: skip


def expiries_of(ttl, last, now):
    """The clocks that a compaction at `now` uses."""
    return certain_expiries({"op.s": ttl}, last, processing_time=now, paused_since=Lineage([last]).last_micro_batch())


def clocks(ttl, *, watermark=50, now=1_000):
    return [expiry.clock for expiry in expiries_of(ttl, last_of(watermark=watermark), now)]


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (None, []),
        (StateTtl(TEN), [50]),
        (StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME), [1_000]),
        (StateTtl(TEN, time=TtlTime.PROCESSING), [1_000]),
        # Nobody knows yet if the pause since 300 becomes a gap.
        (StateTtl(TEN, time=TtlTime.PROCESSING, **PROLONG), [300]),
        (StateTtl(TEN, **PROLONG), [50]),
        (StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME, **PROLONG), [300]),
    ],
)
def test_no_later_run_turns_compaction_clock_back(ttl, expected):
    assert clocks(ttl) == expected


def test_watermark_stands_still_during_pause():
    assert clocks(StateTtl(TEN, **PROLONG), watermark=700) == [700]


def test_without_a_watermark_nothing_expires_in_event_time():
    assert clocks(StateTtl(TEN), watermark=None) == []


def test_compaction_after_enabling_ttl_keeps_readable_entries():
    last = last_of(watermark=500, declared=Declarations({"op": OperatorDeclaration(ttls={"s": None})}))
    (expiry,) = row_expiries({"op.s": StateTtl(TEN)}, last, processing_time=1_000, paused_since=None)
    assert survivors([row(0)], dead_sql([expiry])) == ["0"]
    assert survivors([row(0)], dead_sql([expiry._replace(clock=510)])) == []


@pytest.mark.parametrize(
    ("ttl", "watermark"),
    [
        (StateTtl(TEN, time=TtlTime.PROCESSING, **PROLONG), None),
        (StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME, **PROLONG), 700),
        (StateTtl(TEN, **PROLONG), 300),
        (StateTtl(TEN, **PROLONG), 250),
        (StateTtl(TEN, **PROLONG), 700),
    ],
)
def test_compaction_in_pause_drops_only_certainly_dead(ttl, watermark):
    last = last_of(watermark=watermark)
    stops_at = watermark if ttl.expires_by_watermark else 300
    rows = [row(stops_at - 11, user_key="dead"), row(stops_at - 5, user_key="alive")]
    for now in (311, 350, 650, 10_000):
        assert survivors(rows, dead_sql(expiries_of(ttl, last, now))) == ["alive"]
    resumed = last.state_ttl.advanced(
        {"op.s": ttl}, paused_since=300, watermark_of=lambda _: watermark, processing_time=10_000
    )
    live = resumed.lifetimes("op").of(ttl, "s")
    clock = watermark if ttl.expires_by_watermark else 10_000
    assert [live.is_dead_at(clock, stops_at - age) for age in (11, 5)] == [True, False]


def test_gap_begins_at_latest_watermark_of_operators():
    timelines = {"source": Timeline(("source",), repeated=((7, 400), (9, 450)))}
    last = last_of(watermark=350, timelines=timelines)
    (expiry,) = row_expiries({"op.s": StateTtl(TEN, **PROLONG)}, last, processing_time=1_000, paused_since=300)
    assert (expiry.live.gaps, expiry.clock) == ([(450, 1_000)], 350)
