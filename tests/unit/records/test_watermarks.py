"""Watermarks of a line: equal for any split of the rows into micro-batches. Times are milliseconds."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records.order import output_order, record_order, timer_order
from headrace.records.watermarks import (
    Bucket,
    advance,
    cut_at_block,
    lag_of,
    latest,
    latest_by_bucket,
    watermarks_of_timeline,
)


def naive(times, size, lag):
    """Return the watermarks of a plain loop: `lag` behind the latest time, after each full bucket that advances it."""
    results, latest = [], None
    for ordinal, time in enumerate(times, 1):
        latest = time if latest is None or (time is not None and time > latest) else latest
        if ordinal % size == 0 and latest is not None and (not results or latest - lag > results[-1][1]):
            results.append((ordinal, latest - lag))
    return results


def split(times, cuts, size, lag):
    """Return the watermarks of `advance`, in micro-batches; None stands for a row without a time (a bad row)."""
    bucket, watermark, results = Bucket(), None, []
    places = [0, *sorted(min(cut, len(times)) for cut in cuts), len(times)]
    for start, end in itertools.pairwise(places):
        seen = {}
        for ordinal in range(start, end):
            if times[ordinal] is not None:
                number = ordinal // size
                seen[number] = max(times[ordinal], seen.get(number, times[ordinal]))
        bucket, watermarks = advance(bucket, seen, end - start, size=size, lag=lag, watermark=watermark)
        assert bucket.next_ordinal == end
        results += watermarks
        watermark = watermarks[-1][1] if watermarks else watermark
    return results


times = st.lists(st.none() | st.integers(-50, 50), max_size=60)


@given(times=times, cuts=st.lists(st.integers(0, 60), max_size=8), size=st.integers(1, 12), lag=st.integers(1, 20))
def test_any_split_gives_watermarks_of_plain_loop(times, cuts, size, lag):
    assert split(times, cuts, size, lag) == naive(times, size, lag)


@given(times=times, size=st.integers(1, 12), lag=st.integers(1, 20))
def test_watermarks_grow_only_at_bucket_ends(times, size, lag):
    result = split(times, [], size, lag)
    assert all(ordinal % size == 0 and ordinal <= len(times) for ordinal, _ in result)
    assert all(a[0] < b[0] and a[1] < b[1] for a, b in itertools.pairwise(result))


#    rows 0-7 close no bucket of ten; rows 8-25 close two, with watermarks before ordinals 10 and 20


def test_watermarks_equal_the_documented_example():
    bucket, none_yet = advance(Bucket(), {0: 70}, 8, size=10, lag=1, watermark=None)
    assert (bucket, none_yet) == (Bucket(8, open_max=70), [])
    bucket, result = advance(bucket, {0: 50, 1: 190, 2: 250}, 18, size=10, lag=1, watermark=None)
    assert result == [(10, 69), (20, 189)]
    assert bucket == Bucket(26, open_max=250, closed_max=190)


def test_bucket_without_later_times_gives_no_watermark():
    _, result = advance(Bucket(0, closed_max=99), {0: 99, 1: 80, 2: 100}, 30, size=10, lag=9, watermark=90)
    assert result == [(30, 91)]


@pytest.mark.parametrize("rows", [0, 3])
def test_slice_without_times_moves_only_the_ordinal(rows):
    bucket, result = advance(Bucket(5, open_max=7, closed_max=3), {}, rows, size=10, lag=1, watermark=2)
    assert (bucket, result) == (Bucket(5 + rows, open_max=7, closed_max=3), [])


def test_rows_without_times_are_not_counted_through():
    bucket, result = advance(Bucket(), {0: 7, 2**60: 9}, 2**61, size=1, lag=1, watermark=None)
    assert (bucket, result) == (Bucket(2**61, open_max=None, closed_max=9), [(1, 6), (2**60 + 1, 8)])


@pytest.mark.parametrize(("disorder", "lag"), [(0, 1), (1, 2), (60_000, 60_001)])
def test_rows_as_late_as_allowed_are_in_time(disorder, lag):
    assert lag_of(timedelta(milliseconds=disorder)) == lag


def test_latest_time_ignores_unknown_ones():
    assert latest([None, -3, 5, None]) == 5
    assert latest([None]) is None
    assert latest([]) is None


def test_bucket_spans_the_rows_of_several_tasks():
    assert latest_by_bucket([{0: 7, 1: 3}, {}, {1: 9, 2: -1}, {1: 8}]) == {0: 7, 1: 9, 2: -1}
    assert latest_by_bucket([]) == {}


def test_repeated_watermarks_come_before_new_ones():
    assert watermarks_of_timeline([(20, 2)], repeated=[(10, 1)], joined=(15, 1)) == [(10, 1), (15, 1), (20, 2)]
    assert watermarks_of_timeline([(20, 2)]) == [(20, 2)]
    assert watermarks_of_timeline([]) == []


#   records 0..9 | W 10..19 | W 20..


@pytest.mark.parametrize(("block", "ordinal"), [(0, 10), (9, 10), (10, 20), (19, 20)])
def test_waiting_element_blocks_the_next_watermark(block, ordinal):
    cut = cut_at_block(record_order(block), [(10, 1), (20, 2)])
    assert output_order(record_order(ordinal - 1), 7) < cut < record_order(ordinal)
    assert cut < timer_order(record_order(ordinal), -(1 << 40), b"1")


def test_waiting_element_behind_all_watermarks_blocks_none():
    assert cut_at_block(record_order(20), [(10, 1), (20, 2)]) is None
    assert cut_at_block(record_order(0), []) is None
