from __future__ import annotations

from datetime import timedelta

import pytest

from headrace import Pipeline
from headrace.operators import Count, Cumulative, Hopping, Session, Tumbling
from tests.unit.operators.window_jobs import Bid, Totals

DAY = 86_400_000


def ms(number):
    return timedelta(milliseconds=number)


def windows_of(windows, at):
    start = windows.slice_of(at)
    return [(windows.start_of(end), end) for end in windows.ends_of(start)]


@pytest.mark.parametrize(
    ("windows", "at", "expected"),
    [
        (Tumbling(ms(10)), 0, [(0, 10)]),
        (Tumbling(ms(10)), -1, [(-10, 0)]),
        (Tumbling(ms(10), offset=ms(3)), 2, [(-7, 3)]),
        (Tumbling(ms(10), offset=ms(-3)), 7, [(7, 17)]),
        (Tumbling(timedelta(days=1), offset=timedelta(hours=-1)), 0, [(-3_600_000, DAY - 3_600_000)]),
        (Hopping(ms(10), ms(5)), 7, [(0, 10), (5, 15)]),
        (Hopping(ms(10), ms(5)), -1, [(-10, 0), (-5, 5)]),
        (Hopping(ms(3), ms(2)), 2, [(0, 3), (2, 5)]),
        (Hopping(ms(3), ms(2)), 3, [(2, 5)]),
        (Hopping(ms(10), ms(5), offset=ms(1)), 0, [(-9, 1), (-4, 6)]),
        (Cumulative(ms(9), ms(3)), 4, [(0, 6), (0, 9)]),
        (Cumulative(ms(9), ms(3)), -1, [(-9, 0)]),
        (Cumulative(ms(9), ms(3), offset=ms(1)), 0, [(-8, 1)]),
    ],
)
def test_moment_belongs_to_its_windows(windows, at, expected):
    assert windows_of(windows, at) == expected


@pytest.mark.parametrize(
    "windows", [Tumbling(ms(7), ms(2)), Hopping(ms(7), ms(3), ms(-1)), Hopping(ms(8), ms(4)), Cumulative(ms(9), ms(3))]
)
def test_windows_are_made_of_their_slices(windows):
    for at in range(-30, 30):
        start = windows.slice_of(at)
        assert start <= at < start + windows.slice_length
        for end in windows.ends_of(start):
            assert windows.start_of(end) <= at < end
            assert start in windows.slices_of(end)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Tumbling(ms(0)), "size must be from 1 ms to 36,500 days"),
        (lambda: Tumbling(ms(-5)), "size must be from 1 ms"),
        (lambda: Tumbling(timedelta(days=36_501)), "size must be from 1 ms"),
        (lambda: Tumbling(timedelta(microseconds=1500)), "size must be whole milliseconds"),
        (lambda: Tumbling(ms(10), offset=ms(10)), "offset must be shorter than size"),
        (lambda: Tumbling(ms(10), offset=timedelta(microseconds=5)), "offset must be whole"),
        (lambda: Hopping(ms(10), ms(0)), "slide must be from 1 ms"),
        (lambda: Hopping(ms(10), ms(11)), "records between the windows would be lost"),
        (lambda: Hopping(ms(10), ms(5), offset=ms(-5)), "offset must be shorter than slide"),
        (lambda: Cumulative(ms(10), ms(3)), "max_size must be a multiple of step"),
        (lambda: Session(ms(0)), "gap must be from 1 ms"),
    ],
)
def test_invalid_window_lengths_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_number_is_no_length():
    with pytest.raises(TypeError, match="size must be a timedelta, not 300"):
        Tumbling(300)
    with pytest.raises(TypeError, match="offset must be a timedelta, not 1"):
        Tumbling(ms(300), 1)


def test_windows_are_shown_in_large_units():
    assert str(Hopping(timedelta(hours=1), timedelta(seconds=90))) == "hopping, 1h every 90s"
    assert Tumbling(timedelta(days=1), timedelta(hours=-1)).name == "tumbling_1d_before_1h"
    assert Cumulative(timedelta(days=1), timedelta(hours=1), ms(5)).name == "cumulative_1d_by_1h_after_5ms"
    assert Session(timedelta(minutes=90)).name == "session_90m"


def bids():
    return Pipeline("p").source("bids", Bid, event_time="at")


def test_windows_need_a_key():
    with pytest.raises(ValueError, match="needs a key: call key_by"):
        bids().window(Tumbling(ms(10)))


@pytest.mark.parametrize("windows", [Tumbling, Count(), ms(10)])
def test_values_that_are_no_windows_are_refused(windows):
    with pytest.raises(TypeError, match=r"window\(\) takes an instance of a class derived from Windows"):
        bids().key_by("item").window(windows)


def test_negative_lateness_is_refused():
    with pytest.raises(ValueError, match="aggregate 'totals': allowed_lateness must be from 0"):
        bids().key_by("item").window(Tumbling(ms(10))).aggregate("totals", Totals, allowed_lateness=ms(-1))
