"""Order of positions: total within a piece, partial over the partitions of a topic."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.sources.kafka.landed import OffsetRange, landed_name
from headrace.sources.position import (
    FolderPosition,
    PartitionPosition,
    SourceFacts,
    TablePosition,
    TopicPosition,
    derived_name,
    frontiers,
    stored_name,
)

FILES = st.sampled_from(["", "a", "b", "b~00000001.parquet", "c"])
ROWS = st.integers(0, 3)
BEGUN = st.lists(FILES.filter(bool), max_size=2, unique=True).map(lambda names: tuple(sorted(names)))
FOLDERS = st.builds(FolderPosition, FILES, BEGUN, ROWS)
TABLES = st.builds(TablePosition, table_id=st.just("t"), version=st.integers(-1, 3), last=FILES, begun=BEGUN, rows=ROWS)
PARTITIONS = st.builds(PartitionPosition, number=st.just(1), begins_at=st.just(0), next=st.integers(0, 4))
TOPICS = st.builds(TopicPosition, st.just("t"), st.dictionaries(st.integers(0, 2), PARTITIONS, max_size=3))
POSITIONS = [FOLDERS, TABLES, TOPICS]


def three_of_a_kind(positions):
    return st.tuples(positions, positions, positions)


@given(st.one_of(*map(three_of_a_kind, POSITIONS)))
def test_positions_are_partially_ordered(three):
    one, other, third = three
    assert one.covers(one)
    assert one.is_ahead_of(other) is not other.covers(one)
    if one.covers(other) and other.covers(third):
        assert one.covers(third)
    if one.covers(other) and other.covers(one):
        assert {**one.frontier()} == {**other.frontier()}


@given(st.one_of(st.tuples(FOLDERS, FOLDERS), st.tuples(TABLES, TABLES)))
def test_one_of_two_positions_in_files_covers(pair):
    one, other = pair
    assert one.covers(other) or other.covers(one)


def topic(*ends):
    partitions = {number: PartitionPosition(number=number, begins_at=0, next=end) for number, end in enumerate(ends)}
    return TopicPosition("t", partitions)


def test_each_of_two_topic_positions_may_be_ahead():
    one, other = topic(1, 5), topic(2, 4)
    assert one.is_ahead_of(other)
    assert other.is_ahead_of(one)
    assert topic(2, 5).covers(one)


def test_begun_file_is_not_covered_by_later_ones():
    begun = FolderPosition("c", ("a",), 2)
    assert FolderPosition("b").covers(begun)
    assert begun.covers(FolderPosition("a", ("a",), 1))
    assert not begun.covers(FolderPosition("a"))


def test_rows_of_a_transform_count_by_their_file():
    name = derived_name("a", "0123abcd")
    assert stored_name(name) == "a"
    assert FolderPosition("b", (name,), 1).frontier() == {"": (0, "a", 1)}
    assert FolderPosition("b").frontier() == {"": (0, "b", math.inf)}


def test_begun_file_of_a_partition_ends_its_reach():
    name = landed_name("orders", "id", OffsetRange(0, 10, 20))
    assert PartitionPosition(number=0, begins_at=0, next=20, begun=(name,), rows=3).read_up_to == 13
    assert PartitionPosition(number=0, begins_at=0, next=20).read_up_to == 20


def test_drawn_position_is_ahead_of_none():
    """A table or topic whose `start` was chosen, and of which nothing was taken in yet."""
    table = TablePosition(table_id="t", version=5)
    assert table.is_ahead_of(None)
    assert not table.is_ahead_of(TablePosition(table_id="t", version=6, last=f"{6:020d}/append/x"))
    assert TablePosition(table_id="t", version=6, last=f"{6:020d}/append/x").is_ahead_of(table)
    assert topic(0).is_ahead_of(topic())
    assert topic(0).is_ahead_of(None)


@pytest.mark.parametrize("position", [None, FolderPosition(), topic()])
def test_nothing_read_is_ahead_of_nothing(position):
    facts = SourceFacts(position=position)
    assert not facts.is_ahead_of(None)
    assert frontiers({"orders": facts}) == {}
