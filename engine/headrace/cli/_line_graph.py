"""Lines of checkpoints as a graph of plain characters, newest first."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.cli._table import cell_width

if TYPE_CHECKING:
    from headrace.commit.line_graph import CheckpointName, LineNode

_GAP = "  "


@dataclass(frozen=True, slots=True)
class GraphRow:
    """Row of the graph: a checkpoint, or a place where lines meet (`node` is None)."""

    lanes: str
    below: str
    """Lanes in further rows of the same checkpoint."""
    node: LineNode | None = None


class _Lanes:
    """Lanes of the graph. Each has the name of the checkpoint that it leads down to; None for a free lane."""

    def __init__(self, head: CheckpointName | None) -> None:
        """Reserve the first lane for the line of `head`. It is empty above `head`."""
        self._head = head
        self._above_head = True
        self._leads_to: list[CheckpointName | None] = [head]

    def rows_of(self, node: LineNode) -> Iterator[GraphRow]:
        """Yield the rows of the next checkpoint: rows where lanes meet in it, then its own."""
        ends = [lane for lane, name in enumerate(self._leads_to) if name == node.name]
        own = ends[0] if ends else self._free()
        for lane in ends[:0:-1]:
            yield GraphRow(self._meeting(own, lane), "")
            self._leads_to[lane] = None
            self._above_head = self._above_head and own > 0
        self._leads_to[own] = node.name
        self._above_head = self._above_head and node.name != self._head
        cells = self._cells()
        cells[own] = "*" if node.on_line else "x"
        self._leads_to[own] = node.before
        yield GraphRow(_text(cells), _text(self._cells()), node)

    def _free(self) -> int:
        if None not in self._leads_to:
            self._leads_to.append(None)
        return self._leads_to.index(None)

    def _cells(self) -> list[str]:
        cells = [" " if name is None else "|" for name in self._leads_to]
        return [" ", *cells[1:]] if self._above_head else cells

    def _meeting(self, target: int, lane: int) -> str:
        """Return the row where a lane joins one on its left."""
        cells = self._cells()
        cells[lane] = " "
        gaps = [" "] * len(cells)
        gaps[lane - 1] = "/"
        for between in range(target + 1, lane):
            gaps[between - 1] = "_"
            cells[between] = "_" if cells[between] == " " else cells[between]
        return "".join(cell + gap for cell, gap in zip(cells, gaps, strict=True)).rstrip()


def graph_rows(nodes: Sequence[LineNode], head: CheckpointName | None) -> Iterator[GraphRow]:
    """Yield the rows of the graph for checkpoints given newest first. The line of `head` is at the left."""
    lanes = _Lanes(head)
    for node in nodes:
        yield from lanes.rows_of(node)


def graph_lines(columns: Sequence[str], rows: Sequence[tuple[GraphRow, Sequence[str]]], width: int) -> Iterator[str]:
    """Yield the lines of a graph with cells beside it, padded to their columns. Cells that exceed `width` go below."""
    lanes = max((cell_width(row.lanes) for row, _ in rows), default=0)
    yield next(_beside(GraphRow("", ""), columns, lanes, width))
    for row, cells in rows:
        yield from _beside(row, cells, lanes, width)


def _beside(row: GraphRow, cells: Sequence[str], lanes: int, width: int) -> Iterator[str]:
    line = row.lanes.ljust(lanes)
    for at, cell in enumerate(cells):
        if at and cell.strip() and cell_width(f"{line}{_GAP}{cell.rstrip()}") > width:
            yield line.rstrip()
            *full, line = _wrapped(row.below.ljust(lanes) + _GAP * 2, cell, width)
            yield from full
        else:
            line += _GAP + cell
    yield line.rstrip()


def _wrapped(before: str, text: str, width: int) -> list[str]:
    space = max(1, width - len(before))
    parts = textwrap.wrap(text.rstrip(), space, break_long_words=False, break_on_hyphens=False)
    return [before + part for part in parts]


def _text(cells: Sequence[str]) -> str:
    return " ".join(cells).rstrip()
