"""A job's graph for people: as a tree for the terminal, and as a Mermaid flowchart for documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.api import AsyncWait, Pipeline, SinkNode, SourceNode
from headrace.api.graph import Input, StatelessStep
from headrace.cli._explain import state_options
from headrace.execution.options import AsyncStateOptions
from headrace.names import counted

if TYPE_CHECKING:
    from rich.tree import Tree

_SHAPES: tuple[tuple[Any, str], ...] = (
    (SourceNode, '[/"{}"/]'),
    (SinkNode, '[("{}")]'),
    (AsyncWait, '{{{{"{}"}}}}'),
    (StatelessStep, '("{}")'),
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
    """Return kind and name. The name of a step begins with its kind, or equals it."""
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
