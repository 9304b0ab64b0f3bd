"""Limits of a micro-batch: files and rows, with a first file of which a part was taken in before."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.source import first_files

SIZES = st.lists(st.integers(0, 5), max_size=6)


def chosen(sizes, *, files=16, rows=None, rows_taken=0):
    limits = SimpleNamespace(max_files_per_batch=files, max_rows_per_batch=rows)
    return first_files(range(len(sizes)), limits, sizes.__getitem__, rows_taken)


@given(sizes=SIZES, files=st.integers(1, 4), rows=st.none() | st.integers(1, 12), data=st.data())
def test_first_files_stay_within_both_limits(sizes, files, rows, data):
    rows_taken = data.draw(st.integers(0, sizes[0] if sizes else 0))
    count = len(chosen(sizes, files=files, rows=rows, rows_taken=rows_taken))
    assert list(chosen(sizes, files=files, rows=rows, rows_taken=rows_taken)) == list(range(count))
    assert count >= bool(sizes)
    assert count - (rows_taken > 0) <= files
    if rows is not None and count > 1:
        assert sum(sizes[:count]) - rows_taken <= rows


@given(sizes=SIZES, files=st.integers(1, 4), rows=st.integers(1, 12))
def test_one_more_file_would_exceed_a_limit(sizes, files, rows):
    count = len(chosen(sizes, files=files, rows=rows))
    if count < len(sizes):
        assert count == files or sum(sizes[: count + 1]) > rows


def test_rest_of_begun_file_counts_by_rows():
    assert list(chosen([5, 3, 3], files=1, rows_taken=1)) == [0, 1]
    assert list(chosen([5, 3, 3], rows=4, rows_taken=4)) == [0, 1]
    assert list(chosen([5, 3, 3], rows=4, rows_taken=3)) == [0]


def test_changed_file_has_no_negative_rest():
    assert list(chosen([5, 3, 3], rows=4, rows_taken=9)) == [0, 1]
