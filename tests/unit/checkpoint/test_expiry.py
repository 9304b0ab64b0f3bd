"""Dead entries asked for in SQL are those that `LiveTtl` finds dead, and compaction drops no others."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime
from headrace.checkpoint._compaction import live_entries
from headrace.checkpoint.checkpoint import Checkpoint, Kind, SourceOffset
from headrace.checkpoint.expired_rows import ages_of, removed_if_dead
from headrace.checkpoint.expiry import Expiry, certain_expiries, expiries, is_dead
from headrace.checkpoint.tables import KEYED_STATE, STATE_TABLES
from headrace.checkpoint.ttl_history import TtlHistory
from headrace.state.ttl import Gap, Lives, LiveTtl

SCHEMA = STATE_TABLES[KEYED_STATE].schema
TEN = timedelta(milliseconds=10)


def row(stamp, *, own=None, state="s", user_key="0", checkpoint=1, deleted=False):
    return {
        "operator": "op",
        "key_group": 0,
        "key": '"k"',
        "state": state,
        "user_key": user_key,
        "value": "1",
        "last_access": None if stamp is None else datetime.fromtimestamp(stamp / 1000, UTC),
        "ttl_ms": own,
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


def table(rows):
    return pa.Table.from_pylist([{**dict.fromkeys(SCHEMA.names), **each} for each in rows], SCHEMA)


def survivors(rows, dead):
    return sorted(live_entries(table(rows), KEYED_STATE, dead)["user_key"].to_pylist())


times = st.integers(0, 60)
gaps = st.builds(
    lambda at, mark: [Gap(start, end, mark) for start, end in zip(sorted(at)[::2], sorted(at)[1::2], strict=False)],
    st.lists(times, unique=True, max_size=6),
    st.none() | times,
)
stamps = st.lists(st.tuples(times, st.none() | st.integers(0, 30)), min_size=1, max_size=8)


@given(stamps, gaps, st.none() | times, times, st.integers(1, 20))
def test_sql_and_logic_agree_on_who_is_dead(entries, gaps, since, clock, ttl):
    declared = StateTtl(timedelta(milliseconds=ttl), on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(declared, gaps, since)
    rows = [row(stamp, own=own, user_key=str(number)) for number, (stamp, own) in enumerate(entries)]
    alive = [str(n) for n, (stamp, own) in enumerate(entries) if not live.is_dead_at(clock, stamp, own or 0)]
    assert survivors(rows, is_dead([Expiry("op", "s", live, clock)])) == sorted(alive)


@given(stamps, gaps, st.none() | times, times, st.integers(1, 20))
def test_what_is_rebuilt_does_without_the_dead_alone(entries, gaps, since, clock, ttl):
    declared = StateTtl(timedelta(milliseconds=ttl), on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(declared, gaps, since)
    rows = [row(stamp, own=own, state=state) for state in ("s", "other") for stamp, own in entries]
    marked = removed_if_dead(table([*rows, row(0, deleted=True)]), {"s": live.age(clock)})
    dead = [live.is_dead_at(clock, stamp, own or 0) for stamp, own in entries]
    assert marked["deleted"].to_pylist() == [*dead, *([False] * len(entries)), True]


def test_who_may_be_left_out_of_a_rebuilt_copy():
    declared = {
        "by_watermark": StateTtl(TEN),
        "by_processing_time": StateTtl(TEN, time=TtlTime.PROCESSING),
        "kept": StateTtl(TEN, cleanup=Cleanup(at_compaction=False)),
        "removed_by_timers": StateTtl(TEN, cleanup=Cleanup(exact=True)),
        "for_ever": None,
    }
    found = ages_of(declared, Lives(), watermark=50, processing_time=70)
    assert {state: age.youngest for state, age in found.items()} == {"by_watermark": 40, "by_processing_time": 60}
    assert list(ages_of(declared, Lives(), watermark=None, processing_time=70)) == ["by_processing_time"]


def test_only_the_last_row_of_an_entry_says_whether_it_is_dead():
    expiry = Expiry("op", "s", LiveTtl.of(StateTtl(TEN)), 20)
    renewed = [row(5, checkpoint=1), row(15, checkpoint=2)]
    late = [row(15, user_key="1", checkpoint=1), row(5, user_key="1", checkpoint=2)]
    assert survivors([*renewed, *late], is_dead([expiry])) == ["0"]


def test_states_of_other_names_and_rows_without_stamp_stay():
    expiry = Expiry("op", "s", LiveTtl.of(StateTtl(TEN)), 1_000)
    rows = [row(0), row(0, state="other", user_key="1"), row(None, user_key="2")]
    assert survivors(rows, is_dead([expiry])) == ["1", "2"]
    assert survivors(rows, is_dead([])) == ["0", "1", "2"]


def test_a_state_or_operator_name_is_never_sql():
    expiry = Expiry("op' OR true --", "s", LiveTtl.of(StateTtl(TEN)), 1_000)
    assert survivors([row(0)], is_dead([expiry])) == ["0"]


def test_sql_is_small_enough_for_a_gap_a_day_for_ten_years():
    gaps = [Gap(day * 100, day * 100 + 50) for day in range(3_650)]
    ttl = StateTtl(TEN, on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(ttl, gaps)
    dead = is_dead([Expiry("op", "s", live, 365_000)])
    assert survivors([row(0), row(364_980, user_key="1"), row(364_999, user_key="2")], dead) == ["2"]
    assert live.is_dead_at(365_000, 364_980)


# --------------------------------------------------------------------------------------------------- clocks

PROLONG = {"on_gap": OnGap.PROLONG, "gap_threshold": timedelta(milliseconds=100)}


def last_of(**fields):
    """The last checkpoint, committed at 300."""
    return Checkpoint(
        checkpoint_id=1, kind=Kind.BATCH, run_id="r", attempt_id="a", max_parallelism=1, versions={}, committed_at=300, **fields
    )  # fmt: skip


def found(ttl, last, now):
    """What a compaction at `now` goes by."""
    return certain_expiries(SimpleNamespace(checkpoints=[last], last=last), last, {"op.s": ttl}, now)


def clocks(ttl, *, watermark=50, now=1_000):
    return [each.clock for each in found(ttl, last_of(watermark=watermark), now)]


@pytest.mark.parametrize(
    ("ttl", "expected"),
    [
        (None, []),
        (StateTtl(TEN), [50]),
        (StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME), [1_000]),
        (StateTtl(TEN, time=TtlTime.PROCESSING), [1_000]),
        # Whether the pause since 300 becomes a gap is not known yet.
        (StateTtl(TEN, time=TtlTime.PROCESSING, **PROLONG), [300]),
        (StateTtl(TEN, **PROLONG), [50]),
        (StateTtl(TEN, expiry=ExpiryClock.PROCESSING_TIME, **PROLONG), [300]),
    ],
)
def test_compaction_goes_by_a_clock_that_no_later_run_can_turn_back(ttl, expected):
    assert clocks(ttl) == expected


def test_in_a_pause_the_watermark_stands_wherever_it_stands():
    assert clocks(StateTtl(TEN, **PROLONG), watermark=700) == [700]


def test_without_a_watermark_nothing_expires_in_event_time():
    assert clocks(StateTtl(TEN), watermark=None) == []


def test_compaction_right_after_ttl_was_switched_on_drops_nothing_that_was_readable():
    last = last_of(watermark=500, state_ttl=TtlHistory(declared={"op.s": "off"}))
    (expiry,) = expiries({"op.s": StateTtl(TEN)}, last, processing_time=1_000, paused_since=None)
    assert survivors([row(0)], is_dead([expiry])) == ["0"]
    assert survivors([row(0)], is_dead([expiry._replace(clock=510)])) == []


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
def test_a_compaction_in_a_pause_drops_what_is_dead_whatever_comes_and_nothing_else(ttl, watermark):
    last = last_of(watermark=watermark)
    stops_at = watermark if ttl.expires_by_watermark else 300
    rows = [row(stops_at - 11, user_key="dead"), row(stops_at - 5, user_key="alive")]
    for now in (311, 350, 650, 10_000):
        assert survivors(rows, is_dead(found(ttl, last, now))) == ["alive"]
    resumed = last.state_ttl.advanced(
        {"op.s": ttl}, paused_since=300, watermark_of=lambda _: watermark, processing_time=10_000
    )
    live = resumed.lives("op").of(ttl, "s")
    clock = watermark if ttl.expires_by_watermark else 10_000
    assert [live.is_dead_at(clock, stops_at - age) for age in (11, 5)] == [True, False]


def test_a_gap_begins_at_the_latest_watermark_that_any_operator_has_seen():
    offsets = {"source": SourceOffset(repeated=((7, 400), (9, 450)))}
    last = last_of(watermark=350, offsets=offsets)
    (expiry,) = expiries({"op.s": StateTtl(TEN, **PROLONG)}, last, processing_time=1_000, paused_since=300)
    assert (expiry.live.gaps, expiry.clock) == ([(450, 1_000)], 350)
