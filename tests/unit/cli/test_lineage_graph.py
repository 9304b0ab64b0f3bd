"""The graph of `headrace checkpoints`: each checkpoint leads down to its predecessor on the line."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.cli.graphs import GraphRow, graph_lines, graph_rows
from headrace.readers.graph import CheckpointName, LineageNode


@st.composite
def trees(draw):
    """Draw checkpoints, newest first: each but the first continues from an earlier checkpoint on any line."""
    count = draw(st.integers(1, 12))
    before = [None, *(draw(st.integers(0, number - 1)) for number in range(1, count))]
    names = [CheckpointName(draw(st.sampled_from((None, "one"))), number) for number in range(count)]
    nodes = [
        LineageNode(name, None, None if number is None else names[number], on_line=draw(st.booleans()))
        for name, number in zip(names, before, strict=True)
    ]
    return nodes[::-1], draw(st.sampled_from(names))


def traced(rows, start):
    """Follow a lane down from a checkpoint's row to the next checkpoint; None where it ends."""
    place = max(rows[start].lanes.find("*"), rows[start].lanes.find("x"))
    for row in rows[start + 1 :]:
        lanes = row.lanes.ljust(place + 1)
        if lanes[place] in {"*", "x"}:
            return row.node.name
        if lanes[place] == "|":
            continue
        if place and lanes[place - 1] == "/":
            while place >= 3 and lanes[place - 3] == "_":
                place -= 2
            place -= 2
            continue
        return None
    return None


@given(trees())
def test_every_lane_leads_to_the_checkpoint_before(drawn):
    nodes, head = drawn
    rows = [*graph_rows(nodes, head)]
    for at, row in enumerate(rows):
        if row.node is not None and row.node.before is not None:
            assert traced(rows, at) == row.node.before, "\n".join(line.lanes for line in rows)


@given(trees())
def test_each_row_shows_one_checkpoint_at_most(drawn):
    nodes, head = drawn
    rows = [*graph_rows(nodes, head)]
    assert [row.node for row in rows if row.node is not None] == nodes
    for row in rows:
        marks = [mark for mark in row.lanes if mark in "*x"]
        assert marks == ([] if row.node is None else ["*" if row.node.on_line else "x"])
        assert set(row.below) <= {"|", " "}


@given(trees())
def test_line_of_current_checkpoint_is_leftmost(drawn):
    nodes, head = drawn
    (row,) = (row for row in graph_rows(nodes, head) if row.node is not None and row.node.name == head)
    assert row.lanes[0] in {"*", "x"}


def test_wide_cells_move_to_the_next_line():
    row = GraphRow("| *", "| |")
    cells = ["12", "batch", "a note that goes on for a while"]
    assert [*graph_lines(("id", "kind", "note"), [(row, cells)], 24)] == [
        "     id  kind  note",
        "| *  12  batch",
        "| |    a note that goes",
        "| |    on for a while",
    ]
    assert [*graph_lines(("id", "kind", "note"), [(row, cells)], 80)][1:] == [
        "| *  12  batch  a note that goes on for a while"
    ]
