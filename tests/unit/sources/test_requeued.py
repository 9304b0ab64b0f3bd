"""Rows that have left the quarantine, as stored in an offset."""

from __future__ import annotations

from itertools import pairwise

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.position import RequeuedRows, SourceFacts, count_rows, ranges_of, rows_in, rows_text, with_more

NUMBERS = st.lists(st.integers(0, 30))


@given(numbers=NUMBERS)
def test_ranges_have_each_number_once(numbers):
    ranges = ranges_of(numbers)
    assert list(rows_in(ranges)) == sorted({*numbers})
    assert count_rows(ranges) == len({*numbers})
    assert all(end < start for (_, end), (start, _) in pairwise(ranges))


@given(waiting=NUMBERS, more=NUMBERS)
def test_more_rows_of_a_file_add_up(waiting, more):
    parts = [[RequeuedRows("b", ranges_of(numbers), 31)] for numbers in (waiting, more)]
    assert with_more(*parts) == (RequeuedRows("b", ranges_of([*waiting, *more]), 31),)


def test_files_wait_in_the_order_of_their_names():
    rows = [RequeuedRows(name, ((0, 1),), 5) for name in "cab"]
    assert [row.file for row in with_more(rows[:2], rows[2:])] == ["a", "b", "c"]


def test_whole_file_has_all_of_its_rows():
    whole, some = RequeuedRows("a"), RequeuedRows("a", ((0, 1),), 5)
    for parts in (([whole], [some]), ([some], [whole])):
        assert with_more(*parts) == (whole,)


def test_facts_survive_their_stored_form():
    facts = SourceFacts(requeued=(RequeuedRows("a", ((0, 1), (3, 5)), 7), RequeuedRows("b")))
    assert msgspec.json.decode(msgspec.json.encode(facts), type=SourceFacts) == facts


def test_waiting_rows_are_reported_in_words():
    assert rows_text(1, 0) == "1 row"
    assert rows_text(1_234, 1) == "1,234 rows and 1 whole file"
    assert rows_text(0, 2) == "2 whole files"
