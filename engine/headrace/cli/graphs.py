"""Graphs for people: a job's operators, and its checkpoints with their branches.

A job's graph for people: as a tree for the terminal, and as a Mermaid flowchart for documents.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.api.graph import AsyncWait, Input, SinkNode, SourceNode, StatelessTransform
from headrace.cli.describe import state_options
from headrace.cli.output import cell_width
from headrace.names import counted
from headrace.options import AsyncStateOptions
from headrace.stream.stream import Pipeline

if TYPE_CHECKING:
    from rich.tree import Tree

    from headrace.readers.graph import CheckpointName, LineageNode


_SHAPES: tuple[tuple[Any, str], ...] = (
    (SourceNode, '[/"{}"/]'),
    (SinkNode, '[("{}")]'),
    (AsyncWait, '{{{{"{}"}}}}'),
    (StatelessTransform, '("{}")'),
)


def mermaid(pipeline: Pipeline) -> str:
    """Return a pipeline as a Mermaid flowchart. Streams are arrows, labelled with keys and names of side outputs."""
    ids = {node: f"n{number}" for number, node in enumerate(pipeline.nodes)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[node]}{_shape(node.operator)}" for node in pipeline.nodes]
    lines += [f"    {ids[edge.node]} {_arrow(edge)} {ids[node]}" for node in pipeline.nodes for edge in node.inputs]
    return "\n".join(lines)


def _shape(operator: Any) -> str:
    shape = next((shape for kind, shape in _SHAPES if isinstance(operator, kind)), '["{}"]')
    return shape.format(_escaped(operator.name))


def _arrow(edge: Input) -> str:
    if edge.is_broadcast:
        return '-. "broadcast" .->'
    parts = [edge.side or "", f"by {edge.key}" if edge.key else ""]
    label = " ".join(part for part in parts if part)
    return f'-- "{_escaped(label)}" -->' if label else "-->"


def _escaped(text: str) -> str:
    return text.replace('"', "#quot;").replace("<", "#lt;").replace(">", "#gt;")


def tree(described: dict[str, Any]) -> Tree:
    """Return the result of `describe` as a tree: operators of a stage below each other, several uses of a stream as branches."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"{described['job']}: {described['description']}"))
    cluster, state = described["cluster"], described["state"]
    root.add(Text(f"cluster {cluster['name']} ({cluster['master']}), {counted(cluster['tasks'], 'task')} per operator"))
    root.add(Text(f"state in {state['folder']} ({state['backend']}, {counted(state['key_groups'], 'key group')})"))
    for group in described["sources_that_meet"]:
        root.add(Text(f"one order of arrival for {', '.join(group)}"))
    for stage in described["stages"]:
        first = stage["operators"][0]
        where = "reads a source" if first["kind"] == "source" else "after a shuffle by key"
        branch = root.add(Text(f"stage {stage['stage']}: {where}"))
        _grow(branch.add(Text(_title(first))), first)
        _grow_flow(branch, stage["flow"], stage["operators"])
        for side, flow in stage["side_flows"].items():
            label = f"side output {side}: {stage['side_changes'][side]}"
            _grow_flow(branch.add(Text(label)), flow, stage["operators"])
    return root


def _grow_flow(branch: Tree, flow: list[dict[str, Any]], operators: list[dict[str, Any]]) -> None:
    """Add the targets of a stream: below each other while it has one use, else a branch for each use."""
    from rich.text import Text

    for use in flow:
        twig = branch if len(flow) == 1 else branch.add(Text(f"branch {use['edge']}"))
        if "stage" in use:
            place = f", input {use['input']}" if "input" in use else ""
            key = f"by {', '.join(use['key'])}" if use["key"] else "to all tasks"
            twig.add(Text(f"-> stage {use['stage']}: {use['name']}{place}, {key}"))
            continue
        operator = operators[use["operator"]]
        _grow(twig.add(Text(_title(operator))), operator)
        _grow_flow(twig, use.get("flow", []), operators)


def _title(operator: dict[str, Any]) -> str:
    """Return kind and name. The name of a transform begins with its kind, or equals it."""
    kind, name = operator["kind"], operator["operator"]
    return name if name.replace("_", " ").startswith(kind) and kind in _STEPS else f"{kind} {name}"


_STEPS = ("map", "filter", "flat map", "union")


def _grow(branch: Tree, values: dict[str, Any]) -> None:
    from rich.text import Text

    for name, value in _shown(values):
        if isinstance(value, list) and isinstance(value[0], dict):
            for item in value:
                branch.add(Text(f"{name.rstrip('s').replace('_', ' ')}: {_line(item)}"))
        else:
            branch.add(Text(f"{name.replace('_', ' ')}: {_line(value)}"))


def _shown(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name not in {"operator", "kind"} and value not in (None, []):
            yield name, _notable(value) if name == "async_state" else value


def _notable(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without default values, and the two most important ones in any case."""
    defaults = state_options(AsyncStateOptions())
    asked_for = {"in-flight-records-limit", "buffer-size"}
    return {key: value for key, value in options.items() if key in asked_for or value != defaults[key]}


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_line(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


_GAP = "  "


@dataclass(frozen=True, slots=True)
class GraphRow:
    """Row of the graph: a checkpoint, or a place where lines meet (`node` is None)."""

    lanes: str
    below: str
    """Lanes in further rows of the same checkpoint."""
    node: LineageNode | None = None


class _Lanes:
    """Lanes of the graph. Each has the name of the checkpoint that it leads down to; None for a free lane."""

    def __init__(self, head: CheckpointName | None) -> None:
        """Reserve the first lane for the line of `head`. It is empty above `head`."""
        self._head = head
        self._above_head = True
        self._leads_to: list[CheckpointName | None] = [head]

    def rows_of(self, node: LineageNode) -> Iterator[GraphRow]:
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


def graph_rows(nodes: Sequence[LineageNode], head: CheckpointName | None) -> Iterator[GraphRow]:
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
