from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.state.codec import encode
from headrace.state.key_columns import key_group_column
from headrace.state.key_groups import KeyGroupRange, key_group, key_group_range, key_groups_of, task_of

LONG = '"a long key of more than thirty-two bytes, for the other branch"'


# What Spark 4.2 answers to SELECT pmod(xxhash64(key), 128), pmod(xxhash64(key), 7).
@pytest.mark.parametrize(
    ("key", "of_128", "of_7"),
    [
        ('"N14228"', 99, 0),
        ('"a"', 51, 1),
        ("1", 16, 6),  # its hash is negative
        ("-7", 26, 5),
        ('[1,"x"]', 99, 6),
        ('"Zürich"', 28, 5),
        ('""', 24, 1),
        ("null", 4, 0),
        (LONG, 32, 1),
    ],
)
def test_key_groups_equal_those_of_spark(key, of_128, of_7):
    assert key_group(key.encode(), 128) == of_128
    assert key_group(key.encode(), 7) == of_7


sizes = st.integers(1, 300)
texts = st.text(max_size=40).map(encode)


@given(
    keys=st.lists(texts, max_size=30) | st.lists(st.sampled_from([b"1", b'"a"']), min_size=20), max_parallelism=sizes
)
def test_columns_of_keys_have_the_same_groups(keys, max_parallelism):
    groups = [key_group(key, max_parallelism) for key in keys]
    assert key_groups_of(keys, max_parallelism).tolist() == groups
    column = key_group_column(pa.array(keys, pa.binary()), max_parallelism)
    assert (column.to_pylist(), column.type) == (groups, pa.int32())


def test_long_columns_of_keys_have_the_same_groups():
    keys = [b"%d" % number for number in range(50_000)]
    column = key_group_column(pa.array([*keys, b"7"], pa.binary()).slice(1), 128)
    assert column.to_pylist() == [key_group(key, 128) for key in [*keys[1:], b"7"]]


@given(max_parallelism=sizes, parallelism=sizes)
def test_task_ranges_cover_each_key_group_once(max_parallelism, parallelism):
    ranges = [key_group_range(task, max_parallelism, parallelism) for task in range(parallelism)]
    covered = [group for groups in ranges for group in range(groups.first, groups.last + 1)]
    assert covered == list(range(max_parallelism))


@given(max_parallelism=sizes, parallelism=sizes, data=st.data())
def test_key_group_owner_has_its_range(max_parallelism, parallelism, data):
    group = data.draw(st.integers(0, max_parallelism - 1))
    owner = task_of(group, max_parallelism, parallelism)
    assert [t for t in range(parallelism) if group in key_group_range(t, max_parallelism, parallelism)] == [owner]


@given(max_parallelism=sizes, parallelism=sizes)
def test_tasks_own_about_as_many_key_groups_each(max_parallelism, parallelism):
    ranges = [key_group_range(task, max_parallelism, parallelism) for task in range(parallelism)]
    counts = [key_groups.last - key_groups.first + 1 for key_groups in ranges]
    assert max(counts) - min(counts) <= 1


def test_range_is_written_as_in_paths():
    """A range also knows its members."""
    result = KeyGroupRange(0, 63)
    assert str(result) == "0-63"
    assert 0 in result
    assert 63 in result
    assert 64 not in result
    assert "0" not in result
