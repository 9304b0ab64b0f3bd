"""The Arrow mask and the SQL of `RowExpiry` mark exactly the rows that `LiveTtl` finds expired."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime, UpdateType
from headrace.state.ttl import EntryLifetimes, Gap, LiveTtl
from headrace.tables.expiry import RowExpiry, dead_sql, deleted_if_dead, rebuild_expiries
from tests.unit.support.keyed_state_rows import row, survivors, table

TEN = timedelta(milliseconds=10)

times = st.integers(0, 60)
gaps = st.builds(
    lambda at, mark: [Gap(start, end, mark) for start, end in zip(sorted(at)[::2], sorted(at)[1::2], strict=False)],
    st.lists(times, unique=True, max_size=6),
    st.none() | times,
)
stamps = st.lists(st.tuples(times, st.none() | st.integers(0, 30)), min_size=1, max_size=8)
mixed_rows = st.lists(
    st.tuples(
        st.none() | times,
        st.none() | st.integers(0, 30),
        st.sampled_from(["s", "s", "other"]),
        st.sampled_from(["op", "op", "b"]),
    ),
    max_size=12,
)


@given(stamps, gaps, st.none() | times, times, st.integers(1, 20))
def test_sql_and_python_agree_on_expired_rows(entries, gaps, since, clock, ttl):
    declared = StateTtl(timedelta(milliseconds=ttl), on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(declared, gaps, since)
    rows = [row(stamp, own=own, user_key=str(number)) for number, (stamp, own) in enumerate(entries)]
    alive = [str(n) for n, (stamp, own) in enumerate(entries) if not live.is_dead_at(clock, stamp, own or 0)]
    assert survivors(rows, dead_sql([RowExpiry("op", "s", live, clock)])) == sorted(alive)


@given(stamps, gaps, st.none() | times, times, st.integers(1, 20))
def test_rebuilt_copy_lacks_only_dead_entries(entries, gaps, since, clock, ttl):
    declared = StateTtl(timedelta(milliseconds=ttl), on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(declared, gaps, since)
    rows = [row(stamp, own=own, state=state) for state in ("s", "other") for stamp, own in entries]
    marked = deleted_if_dead(table([*rows, row(0, deleted=True)]), [RowExpiry("op", "s", live, clock)])
    dead = [live.is_dead_at(clock, stamp, own or 0) for stamp, own in entries]
    assert marked["deleted"].to_pylist() == [*dead, *([False] * len(entries)), True]


@pytest.fixture(scope="module")
def connection():
    with duckdb.connect(":memory:", config={"threads": 1}) as opened:
        opened.execute("SET TimeZone = 'UTC'")
        yield opened


def marked_by_sql(connection, expiry, rows):
    connection.register("changes", rows)
    return [dead for (dead,) in connection.sql(f"SELECT {expiry.sql()} FROM changes").fetchall()]


@given(mixed_rows, gaps, st.none() | times, times, st.integers(1, 20))
@example([(None, 1, "s", "op")], [], 0, 1, 1)
def test_mask_and_sql_mark_the_same_rows(connection, rows, gaps, since, clock, ttl):
    declared = StateTtl(timedelta(milliseconds=ttl), on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    expiry = RowExpiry("op", "s", LiveTtl.of(declared, gaps, since), clock)
    changes = table([row(stamp, own=own, state=state, operator=name) for stamp, own, state, name in rows])
    assert expiry.mask(changes).to_pylist() == marked_by_sql(connection, expiry, changes)


LONG_AGO, FAR_AHEAD = -9_000_000_000_000_000, 9_000_000_000_000_000
"""Times (ms) near the ends of what a column of microseconds can store."""

LONGEST = timedelta.max // timedelta(milliseconds=1)

any_times = st.integers(0, 60) | st.integers(LONG_AGO, FAR_AHEAD)
any_lifetimes = st.integers(1, 30) | st.integers(1, LONGEST)
kinds = st.sampled_from(
    [
        {"time": TtlTime.EVENT, "expiry": ExpiryClock.WATERMARK},
        {"time": TtlTime.EVENT, "expiry": ExpiryClock.PROCESSING_TIME},
        {"time": TtlTime.PROCESSING},
    ]
)
updates = st.sampled_from([update for update in UpdateType if update is not UpdateType.DISABLED])
on_gaps = st.sampled_from([{}, {"on_gap": OnGap.PROLONG, "gap_threshold": timedelta(milliseconds=2)}])
ttls = st.builds(
    lambda ttl, update, kind, on_gap: StateTtl(timedelta(milliseconds=ttl), update=update, **kind, **on_gap),
    any_lifetimes,
    updates,
    kinds,
    on_gaps,
)
any_gaps = st.builds(
    lambda at, mark: [Gap(start, end, mark) for start, end in zip(sorted(at)[::2], sorted(at)[1::2], strict=False)],
    st.lists(any_times, unique=True, max_size=8),
    st.none() | any_times,
)
aged_rows = st.lists(st.tuples(any_times, st.none() | st.just(0) | any_lifetimes), min_size=1, max_size=8)


def stamped(rows, stamps):
    """The rows with these stamps (ms), also those beyond the years of Python's `datetime`."""
    column = pa.array([stamp * 1_000 for stamp in stamps], pa.int64()).cast(pa.timestamp("us", "UTC"))
    changes = table(rows)
    return changes.set_column(changes.schema.get_field_index("last_access"), "last_access", column)


PROLONGED = StateTtl(TEN, on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=2))
BY_PROCESSING_TIME = StateTtl(TEN, time=TtlTime.PROCESSING)


@given(aged_rows, ttls, any_gaps, st.none() | any_times, any_times, any_times)
@example([(20, 10), (30, 10), (31, 10), (19, 11), (20, 11)], PROLONGED, [Gap(20, 30)], None, 40, 0)
@example([(20, 1), (20, 9), (39, 1), (40, 1)], BY_PROCESSING_TIME, [], 40, 0, 41)
@example([(LONG_AGO, LONGEST), (FAR_AHEAD, 1)], PROLONGED, [Gap(LONG_AGO, FAR_AHEAD)], LONG_AGO, FAR_AHEAD, 0)
def test_mask_sql_and_entries_agree(connection, entries, ttl, gaps, since, watermark, now):
    expiry = RowExpiry.of(
        "op",
        "s",
        ttl,
        EntryLifetimes(gaps, {} if since is None else {"s": since}),
        watermark=watermark,
        processing_time=now,
    )
    at_access = SimpleNamespace(timestamp=watermark, watermark=watermark, expired_until=watermark, processing_time=now)
    dead = [expiry.live.is_dead(at_access, stamp, own or 0) for stamp, own in entries]
    changes = stamped([row(None, own=own) for _, own in entries], [stamp for stamp, _ in entries])
    assert [expiry.live.expires_at(stamp, own or 0) <= expiry.clock for stamp, own in entries] == dead
    assert expiry.mask(changes).to_pylist() == dead
    assert marked_by_sql(connection, expiry, changes) == dead


@pytest.mark.parametrize("since", [None, 10])
def test_rows_die_when_their_ttl_has_counted(connection, since):
    #   10 --5-- | gap 15-30 | 30 --5-- 35
    ttl = StateTtl(TEN, on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    expiry = RowExpiry("op", "s", LiveTtl.of(ttl, [Gap(15, 30)], since), 35)
    changes = table([row(10), row(11), row(10, own=9), row(10, own=10), row(10, own=11)])
    marked = [True, False, True, True, False]
    assert expiry.mask(changes).to_pylist() == marked
    assert marked_by_sql(connection, expiry, changes) == marked


def test_mask_applies_to_rows_without_operator():
    expiry = RowExpiry("op", "s", LiveTtl.of(StateTtl(TEN)), 20)
    rows = table([row(5), row(5, operator="other"), row(15)])
    assert expiry.mask(rows).to_pylist() == [True, False, False]
    assert expiry.mask(rows.drop_columns(["operator"])).to_pylist() == [True, True, False]


def test_rebuilt_copy_omits_rows_of_cleaned_up_states():
    """A state without cleanup at compaction keeps its rows, and so does a state with exact cleanup."""
    declared = {
        "by_watermark": StateTtl(TEN),
        "by_processing_time": StateTtl(TEN, time=TtlTime.PROCESSING),
        "kept": StateTtl(TEN, cleanup=Cleanup(at_compaction=False)),
        "removed_by_timers": StateTtl(TEN, cleanup=Cleanup(exact=True)),
        "for_ever": None,
    }
    expiries = rebuild_expiries("op", declared, EntryLifetimes(), watermark=50, processing_time=70)
    youngest = {expiry.state: expiry.live.dead_until(expiry.clock) for expiry in expiries}
    assert youngest == {"by_watermark": 40, "by_processing_time": 60}
    without_watermark = rebuild_expiries("op", declared, EntryLifetimes(), watermark=None, processing_time=70)
    assert [expiry.state for expiry in without_watermark] == ["by_processing_time"]


def test_only_last_row_decides_about_expiry():
    expiry = RowExpiry("op", "s", LiveTtl.of(StateTtl(TEN)), 20)
    renewed = [row(5, checkpoint=1), row(15, checkpoint=2)]
    late = [row(15, user_key="1", checkpoint=1), row(5, user_key="1", checkpoint=2)]
    assert survivors([*renewed, *late], dead_sql([expiry])) == ["0"]


def test_other_states_and_unstamped_rows_stay():
    expiry = RowExpiry("op", "s", LiveTtl.of(StateTtl(TEN)), 1_000)
    rows = [row(0), row(0, state="other", user_key="1"), row(None, user_key="2")]
    assert survivors(rows, dead_sql([expiry])) == ["1", "2"]
    assert survivors(rows, dead_sql([])) == ["0", "1", "2"]


def test_state_or_operator_name_is_never_sql():
    expiry = RowExpiry("op' OR true --", "s", LiveTtl.of(StateTtl(TEN)), 1_000)
    assert survivors([row(0)], dead_sql([expiry])) == ["0"]


@pytest.mark.slow
def test_sql_stays_small_for_daily_gaps():
    """The test covers ten years with a gap each day."""
    gaps = [Gap(day * 100, day * 100 + 50) for day in range(3_650)]
    ttl = StateTtl(TEN, on_gap=OnGap.PROLONG, gap_threshold=timedelta(milliseconds=1))
    live = LiveTtl.of(ttl, gaps)
    dead = dead_sql([RowExpiry("op", "s", live, 365_000)])
    assert survivors([row(0), row(364_980, user_key="1"), row(364_999, user_key="2")], dead) == ["2"]
    assert live.is_dead_at(365_000, 364_980)
