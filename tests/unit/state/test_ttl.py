"""When entries expire: integer arithmetic, against a clock moved by hand."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, ExpiryClock, OnGap, StateTtl, TtlTime, UpdateType, Visibility
from headrace.state.ttl import EntryLifetimes, Gap, LiveTtl


def ms(number):
    return timedelta(milliseconds=number)


def prolonging(ttl, threshold=1):
    return StateTtl(ms(ttl), on_gap=OnGap.PROLONG, gap_threshold=ms(threshold))


def lived(stamp, until, gaps):
    """Return how many milliseconds an entry has lived by `until`, counted one by one."""
    return sum(not any(start <= now < end for start, end in gaps) for now in range(stamp, until))


times = st.integers(0, 60)
gaps = (
    st.lists(times, unique=True, max_size=8)
    .map(sorted)
    .map(lambda timestamps: [Gap(*pair) for pair in zip(timestamps[::2], timestamps[1::2], strict=False)])
)


def at_watermarks(gaps, watermarks):
    """Return the gaps with watermarks that never go back; if there are too few watermarks, the oldest gaps have none."""
    marks = [None] * (len(gaps) - len(watermarks)) + sorted(watermarks)
    return [gap._replace(watermark=mark) for gap, mark in zip(gaps, marks, strict=False)]


known_gaps = st.builds(at_watermarks, gaps, st.lists(st.integers(0, 90), max_size=4))


@given(times, st.integers(1, 20), gaps, times, st.integers(0, 1) | st.integers(0, 30))
def test_entry_dies_after_ttl_without_gaps(stamp, ttl, gaps, clock, own):
    live = LiveTtl.of(prolonging(ttl), gaps)
    counted = [gap[:2] for gap in gaps if gap.end - gap.start > 1]
    dead = lived(stamp, clock, counted) >= (own or ttl)
    assert live.is_dead_at(clock, stamp, own) is dead
    assert (live.expires_at(stamp, own) <= clock) is dead


@given(times, st.integers(1, 20), known_gaps, st.integers(0, 100), st.integers(0, 30))
def test_watermark_lifetime_ignores_time_already_passed(stamp, ttl, gaps, clock, own):
    """Time that the watermark has passed is not given back."""
    left = [(max(gap.start, gap.watermark or 0), gap.end) for gap in gaps if gap.end - gap.start > 1]
    assert LiveTtl.of(prolonging(ttl), gaps).is_dead_at(clock, stamp, own) is (
        lived(stamp, clock, left) >= (own or ttl)
    )
    by_processing_time = replace(prolonging(ttl), expiry=ExpiryClock.PROCESSING_TIME)
    without = [gap._replace(watermark=None) for gap in gaps]
    assert LiveTtl.of(by_processing_time, gaps).gaps == LiveTtl.of(by_processing_time, without).gaps


@given(st.integers(0, 90), st.integers(1, 20), known_gaps, st.integers(0, 30))
def test_dead_entries_never_live_again(stamp, ttl, gaps, own):
    for known, gap in enumerate(gaps):
        before, after = (LiveTtl.of(prolonging(ttl), gaps[:number]) for number in (known, known + 1))
        for clock in range((gap.watermark or -1) + 1):
            assert before.is_dead_at(clock, stamp, own) is after.is_dead_at(clock, stamp, own)


@given(st.integers(1, 20), known_gaps, st.integers(0, 100), st.none() | times, st.integers(0, 1) | st.integers(0, 30))
def test_youngest_expired_stamp_is_computed(ttl, gaps, clock, since, own):
    live = LiveTtl.of(prolonging(ttl), gaps, since)
    dead = [stamp for stamp in range(-100, 101) if live.is_dead_at(clock, stamp, own)]
    youngest = live.dead_until(clock, own)
    assert dead == ([] if youngest is None else list(range(-100, youngest + 1)))


def test_youngest_expired_stamp_at_end_of_gap():
    #   stamp 20 | gap 20-30 | 30 --10--> 40: whoever began by the end of the gap has lived 10 at 40
    live = LiveTtl.of(prolonging(10), [Gap(20, 30)])
    assert [live.is_dead_at(40, stamp) for stamp in (20, 30, 31)] == [True, True, False]
    assert [live.dead_until(clock) for clock in (39, 40, 41)] == [19, 30, 31]


@given(times, st.integers(1, 20), gaps, times)
def test_gaps_change_nothing_without_prolonging_ttl(stamp, ttl, gaps, clock):
    live = LiveTtl.of(StateTtl(ms(ttl)), gaps)
    assert live.is_dead_at(clock, stamp) is (stamp + ttl <= clock)
    assert live.expires_at(stamp) == stamp + ttl


def test_only_pauses_longer_than_the_threshold_count():
    live = LiveTtl.of(prolonging(10, threshold=5), [Gap(1, 6), Gap(7, 13)])
    assert live.expires_at(0) == 16


def test_threshold_applies_to_pause_not_watermark_gap():
    """The threshold applies to the pause, not to the part of it that the watermark leaves."""
    live = LiveTtl.of(prolonging(10, threshold=5), [Gap(1, 6, 4), Gap(7, 13, 12), Gap(20, 30, 30), Gap(40, 50, 70)])
    assert live.gaps == [(12, 13)]
    assert live.expires_at(3) == 14


@given(times, times, st.integers(1, 20))
def test_no_lifetime_begins_before_ttl_is_enabled(stamp, since, ttl):
    live = LiveTtl.of(StateTtl(ms(ttl)), (), since)
    assert live.expires_at(stamp) == max(stamp, since) + ttl
    assert live.is_dead_at(max(stamp, since) + ttl, stamp)
    assert not live.is_dead_at(max(stamp, since) + ttl - 1, stamp)


@pytest.mark.parametrize(
    ("ttl", "stamp", "clock"),
    [
        (StateTtl(ms(10)), 1, 2),
        (StateTtl(ms(10), expiry=ExpiryClock.WATERMARK), 1, 2),
        (StateTtl(ms(10), expiry=ExpiryClock.PROCESSING_TIME), 1, 3),
        (StateTtl(ms(10), time=TtlTime.PROCESSING), 3, 3),
        (StateTtl(ms(10), time=TtlTime.PROCESSING, expiry=ExpiryClock.PROCESSING_TIME), 3, 3),
    ],
)
def test_stamp_and_expiry_clocks_differ(ttl, stamp, clock):
    live = LiveTtl.of(ttl)
    timestamp = SimpleNamespace(timestamp=1, watermark=2, expired_until=2, processing_time=3)
    assert (live.stamp(timestamp), live.clock(timestamp)) == (stamp, clock)
    assert live.is_dead(timestamp, clock - 10)
    assert not live.is_dead(timestamp, clock - 9)
    assert live.remaining(timestamp, clock - 9) == 1
    assert live.remaining(timestamp, clock - 30) == 0
    assert live.remaining(timestamp, clock, 25) == 25


def test_disabled_ttl_equals_no_ttl():
    assert LiveTtl.of(None) is None
    assert LiveTtl.of(StateTtl(ms(10), update=UpdateType.DISABLED)) is None
    assert EntryLifetimes((), {"a": 5}).of(None, "a") is None


def test_each_state_can_disable_its_ttl():
    lifetimes = EntryLifetimes([Gap(20, 30)], {"a": 15})
    assert lifetimes.of(prolonging(10), "a").expires_at(0) == 35
    assert lifetimes.of(prolonging(10), "b").expires_at(0) == 10


def test_exact_cleanup_leaves_nothing_expired_to_return():
    relaxed = StateTtl(ms(1), visibility=Visibility.RETURN_IF_NOT_CLEANED_UP)
    exact = StateTtl(ms(1), visibility=Visibility.RETURN_IF_NOT_CLEANED_UP, cleanup=Cleanup(exact=True))
    assert LiveTtl.of(relaxed).returns_expired
    assert not LiveTtl.of(exact).returns_expired


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ttl": timedelta(microseconds=999)}, "at least 1 ms"),
        ({"ttl": timedelta.max}, "at most 3,652,425 days"),
        ({"time": TtlTime.PROCESSING, "expiry": ExpiryClock.WATERMARK}, "cannot expire by the watermark"),
        ({"on_gap": OnGap.PROLONG}, "needs gap_threshold"),
        ({"gap_threshold": timedelta(hours=1)}, "no effect without"),
        ({"on_gap": OnGap.PROLONG, "gap_threshold": timedelta(0)}, "at least 1 ms"),
    ],
)
def test_meaningless_combinations_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        StateTtl(**{"ttl": ms(10), **arguments})


@pytest.mark.parametrize("name", ["entries_per_record", "entries_per_access"])
def test_cleanup_takes_no_negative_numbers(name):
    with pytest.raises(ValueError, match=f"{name} must be at least 0, not -1"):
        Cleanup(**{name: -1})
