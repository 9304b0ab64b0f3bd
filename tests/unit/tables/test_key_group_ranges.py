"""Ranges of key groups: they cover all groups once, and only a single group may be larger than memory allows."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.key_groups import KeyGroupRange
from headrace.storage.predicate import OneOf, Within
from headrace.tables.view import RANGE_BYTES, files_that_may_meet, key_group_ranges

GROUPS = 12
sizes = st.integers(1, 20_000)
spans = st.tuples(st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1)).map(sorted)
files = st.lists(st.tuples(st.none() | spans, st.integers(0, 50), st.integers(1, 5_000)), max_size=6)


def listed(files):
    """Return files of (first and last key group, rows, bytes) as add actions."""
    names = ("path", "size_bytes", "num_records", "min.key_group", "max.key_group")
    rows = [(str(number), size, count, *(span or (None, None))) for number, (span, count, size) in enumerate(files)]
    return pa.table({name: [row[at] for row in rows] for at, name in enumerate(names)})


@given(files=files, range_bytes=sizes)
def test_ranges_cover_each_group_once(files, range_bytes):
    ranges = key_group_ranges(listed(files), KeyGroupRange(3, 9), range_bytes)
    covered = [group for first, last in ranges for group in range(first, last + 1)]
    is_empty = all(span is not None and (span[1] < 3 or span[0] > 9) for span, *_ in files)
    assert covered == ([] if is_empty else [*range(3, 10)])


@given(files=files, range_bytes=sizes)
def test_only_single_groups_exceed_the_limit(files, range_bytes):
    of_group = [0] * GROUPS
    for span, count, size in files:
        groups = range(GROUPS) if span is None else range(span[0], span[1] + 1)
        for group in groups:
            of_group[group] += -(-(256 * count + 4 * size) // len(groups))
    for first, last in key_group_ranges(listed(files), KeyGroupRange.all_of(GROUPS), range_bytes):
        filled = [size for size in of_group[first : last + 1] if size]
        assert sum(filled) <= range_bytes or len(filled) == 1


def test_ranges_divide_groups_as_tasks_do():
    table = listed([([first, first + 3], 150_000, 1_000_000) for first in (0, 4, 8)])
    assert [*key_group_ranges(table, KeyGroupRange.all_of(GROUPS), 60 << 20)] == [(0, 3), (4, 7), (8, 11)]


def test_ranges_become_more_with_the_table():
    counts = []
    for rows in (1_000, 1_000_000, 10_000_000, 1_000_000_000):
        table = listed([([0, GROUPS - 1], rows, rows * 20)])
        counts.append(len([*key_group_ranges(table, KeyGroupRange.all_of(128), RANGE_BYTES)]))
    assert counts == [1, 6, GROUPS, GROUPS]


def test_statistics_rule_files_out():
    numbers = {"min.checkpoint_id": [1, 2, None, 4], "max.checkpoint_id": [1, 5, None, 9]}
    table = pa.table({"path": ["earlier", "around", "unknown", "later"], **numbers})
    conditions = [OneOf("operator", ("counts",)), Within("checkpoint_id", 2, 3), Within("key_group", 0, 1)]
    assert files_that_may_meet(conditions, table)["path"].to_pylist() == ["around", "unknown"]
    assert files_that_may_meet((), table).equals(table)
