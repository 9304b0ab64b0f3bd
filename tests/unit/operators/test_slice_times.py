"""Times of windows and slices that are computed once equal those of the windows."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.operators import Cumulative, Hopping, Tumbling
from headrace.operators._slice_times import SliceTimes

MS = timedelta(milliseconds=1)

tumbling = st.builds(
    lambda size, offset: Tumbling(size * MS, offset=offset % size * MS), st.integers(1, 50), st.integers(0, 49)
)
hopping = st.builds(
    lambda slide, times, offset: Hopping(slide * times * MS, slide * MS, offset=offset % slide * MS),
    st.integers(1, 20),
    st.integers(1, 6),
    st.integers(0, 19),
)
cumulative = st.builds(
    lambda step, times: Cumulative(step * times * MS, step * MS), st.integers(1, 20), st.integers(1, 6)
)
windows = st.one_of(tumbling, hopping, cumulative)


@given(windows, st.integers(-500, 500))
def test_slice_of_moment(windows, at):
    assert SliceTimes(windows).slice_of(at) == windows.slice_of(at)


@given(windows, st.integers(-500, 500))
def test_windows_of_slice(windows, at):
    times = SliceTimes(windows)
    start = windows.slice_of(at)
    assert times.ends_of(start) == windows.ends_of(start)
    for end in windows.ends_of(start):
        assert times.start_of(end) == windows.start_of(end)
        assert times.names_of(end) == tuple(map(str, windows.slices_of(end)))
        assert str(start) in times.names_of(end)


@given(windows, st.integers(-500, 500))
def test_slice_is_freed_with_its_last_window_only(windows, at):
    times = SliceTimes(windows)
    start = windows.slice_of(at)
    ends = windows.ends_of(start)
    assert [end for end in ends if str(start) in times.last_names_of(end)] == [ends[-1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("windows", "remembered"),
    [
        (Tumbling(timedelta(seconds=1)), 100_000),
        (Hopping(timedelta(seconds=10), timedelta(seconds=1)), 10_000),
        (Cumulative(timedelta(days=36_500), timedelta(minutes=1)), 1),
    ],
)
def test_memory_for_times_is_bounded(windows, remembered):
    assert SliceTimes(windows).names_of.cache_parameters()["maxsize"] == remembered
