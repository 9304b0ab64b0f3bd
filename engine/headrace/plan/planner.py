"""Cuts a graph into stages, and refuses one that cannot run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import cast, get_args

import msgspec
import pyarrow as pa

from headrace.api import AsyncWait, Pipeline, Process, SinkNode, SourceNode, UpsertMaterialize
from headrace.api._graph import Input, Node, StatelessStep
from headrace.api._pipeline import output_type
from headrace.errors import ConfigError
from headrace.plan.columns import columns_of
from headrace.plan.stages import Flow, Keyed, KeyedStage, Plan, SinkPlan, SourceStage, Through, ToSink, ToStage, Use

MOST_EDGES = 250
"""Uses of one stream: an edge is one byte, whose last values belong to timers."""


def plan_stages(pipeline: Pipeline) -> Plan:
    """Cut a pipeline into stages.

    Raises `ConfigError` that lists all that keeps it from running: no source or sink, a stream that nobody reads, an async wait
    where it cannot be, two streams into one sink, a materializer without a sink of its own, an event time that may be missing.
    """
    graph = _Graph(pipeline)
    _refuse(pipeline, [*graph.problems()])
    plan = graph.plan()
    _refuse(pipeline, [*_problems_of_stages(plan)])
    return plan


def _refuse(pipeline: Pipeline, problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError("\n".join(f"pipeline '{pipeline.name}': {problem}" for problem in problems))


class _Graph:
    """A pipeline's nodes, and who uses what of them."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._nodes = pipeline.nodes

    @cached_property
    def _uses(self) -> dict[tuple[Node, str | None], list[tuple[Node, int]]]:
        """By output (node and side): the nodes that take it, each with the number of its input there."""
        uses: dict[tuple[Node, str | None], list[tuple[Node, int]]] = {}
        for node in self._nodes:
            for number, one in enumerate(node.inputs):
                uses.setdefault((one.node, one.side), []).append((node, number))
        return uses

    # ---------------------------------------------------------------------------------------------------- problems

    def problems(self) -> Iterator[str]:
        """What is wrong with the graph as such."""
        operators = self._pipeline.operators
        if not any(isinstance(operator, SourceNode) for operator in operators):
            yield "it has no source: begin with source()"
        if not any(isinstance(operator, SinkNode) for operator in operators):
            yield "it has no sink: end with sink()"
        for node in self._nodes:
            yield from self._problems_of(node)
        yield from self._problems_of_sinks()

    def _problems_of(self, node: Node) -> Iterator[str]:
        operator = node.operator
        for side, name in _outputs_of(operator):
            uses = self._uses.get((node, side), [])
            if not uses:
                yield f"nobody reads the stream of {name}: give it a sink(), or take it out"
            if len(uses) > MOST_EDGES:
                yield f"the stream of {name} is used {len(uses)} times, more than {MOST_EDGES}"
        if isinstance(operator, SourceNode):
            yield from _problems_of_source(operator)
        if isinstance(operator, AsyncWait) and operator.key is None:
            yield from self._problems_of_wait(node, operator)
        if isinstance(operator, UpsertMaterialize):
            followers = [follower.operator for follower, _ in self._uses.get((node, None), [])]
            if followers and not (len(followers) == 1 and isinstance(followers[0], SinkNode)):
                yield f"upsert_materialize() must be followed by sink(), and by nothing else: '{operator.name}' is not"

    def _problems_of_wait(self, node: Node, wait: AsyncWait) -> Iterator[str]:
        paths = [*self._ways_to(node)]
        if any(isinstance(first.operator, get_args(Keyed)) for first in paths):
            yield (
                f"async_wait() must come before the first key_by(), and '{wait.name}' comes behind a keyed operator: "
                "write key_by() and mode=KEYED_ORDERED"
            )
        elif len(paths) > 1:
            names = ", ".join(sorted({first.operator.name for first in paths}))
            yield f"async_wait '{wait.name}' gets several streams (of {names}): call it before union()"

    def _ways_to(self, node: Node) -> Iterator[Node]:
        """The nodes that begin the stages from which records reach `node`, one for each way."""
        for one in node.inputs:
            if isinstance(one.node.operator, SourceNode) or _is_keyed(one.node):
                yield one.node
            else:
                yield from self._ways_to(one.node)

    def _problems_of_sinks(self) -> Iterator[str]:
        names = [operator.name for operator in self._pipeline.operators if isinstance(operator, SinkNode)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield (
                f"each output needs a sink of its own, but several go to {', '.join(twice)}: "
                "union() the streams first, or name another sink"
            )

    # -------------------------------------------------------------------------------------------------------- plan

    def plan(self) -> Plan:
        """The stages."""
        keyed = [node for node in self._nodes if _is_keyed(node)]
        ranked = sorted(keyed, key=self._depth)
        return Plan(
            self._pipeline.name,
            tuple(
                SourceStage(node.operator, self._flow(node))
                for node in self._nodes
                if isinstance(node.operator, SourceNode)
            ),
            tuple(self._stage(node, number) for number, node in enumerate(ranked)),
            {node.operator.name: _sink(node) for node in self._nodes if isinstance(node.operator, SinkNode)},
        )

    def _depth(self, node: Node) -> int:
        """How many keyed operators, at most, records pass on their way to a node; sorting by it keeps the declared order."""
        return max((self._depth(one.node) + _is_keyed(one.node) for one in node.inputs), default=0)

    def _stage(self, node: Node, number: int) -> KeyedStage:
        operator = cast("Keyed", node.operator)
        return KeyedStage(
            operator,
            number,
            tuple(record_of(one) for one in node.inputs),
            tuple(one.key for one in node.inputs),
            {side: self._flow(node, side) for side, _ in _outputs_of(operator)},
            tuple(dict.fromkeys(name for name in self._sources_of(node))),
            tuple(dict.fromkeys(self._calls_before(node))),
        )

    def _sources_of(self, node: Node) -> list[str]:
        if isinstance(node.operator, SourceNode):
            return [node.operator.name]
        return [name for one in node.inputs for name in self._sources_of(one.node)]

    def _calls_before(self, node: Node) -> Iterator[str]:
        """The keyed operators and async waits that records may pass on their way to a node."""
        for one in node.inputs:
            yield from self._calls_before(one.node)
            if _is_keyed(one.node) or isinstance(one.node.operator, AsyncWait):
                yield one.node.operator.name

    def _flow(self, node: Node, side: str | None = None) -> Flow:
        uses = self._uses.get((node, side), [])
        several = len(uses) > 1
        return Flow(
            record_of(Input(node, side)),
            tuple(Use(edge if several else None, self._target(*use)) for edge, use in enumerate(uses)),
        )

    def _target(self, node: Node, number: int) -> ToStage | ToSink | Through:
        operator = node.operator
        if isinstance(operator, SinkNode):
            return ToSink(operator.name)
        if _is_keyed(node):
            return ToStage(operator.name, number, node.inputs[number].key)
        return Through(cast("StatelessStep | AsyncWait", operator), self._flow(node))


def record_of(one: Input) -> type[msgspec.Struct]:
    """Return the type of the records that an output gives."""
    operator = one.node.operator
    if one.side is not None:
        return next(side.record for side in cast("Process", operator).side_outputs if side.name == one.side)
    if isinstance(operator, Process | AsyncWait):
        return output_type(operator.function)
    record: type[msgspec.Struct] | None = getattr(operator, "record", None)
    return record if record is not None else record_of(one.node.inputs[0])


def _is_keyed(node: Node) -> bool:
    operator = node.operator
    return isinstance(operator, Process | UpsertMaterialize) or (
        isinstance(operator, AsyncWait) and operator.key is not None
    )


def _outputs_of(operator: object) -> Iterator[tuple[str | None, str]]:
    """The outputs of an operator: the side, and what to call it."""
    if isinstance(operator, SinkNode):
        return
    name = cast("SourceNode", operator).name
    yield None, f"'{name}'"
    if isinstance(operator, Process):
        for side in operator.side_outputs:
            yield side.name, f"'{name}', side output '{side.name}'"


def _sink(node: Node) -> SinkPlan:
    operator = node.inputs[0].node.operator
    primary_key = operator.primary_key if isinstance(operator, UpsertMaterialize) else ()
    return SinkPlan(node.operator.name, record_of(node.inputs[0]), primary_key)


def _problems_of_source(source: SourceNode) -> Iterator[str]:
    try:
        column = next(column for column in columns_of(source.record) if column.name == source.event_time)
    except ConfigError as error:
        yield str(error)
        return
    if column.nullable or column.type != pa.int64():
        yield f"event_time '{source.event_time}' of {source.record.__name__} must be a Timestamp, and not optional"


def _problems_of_stages(plan: Plan) -> Iterator[str]:
    """What columns cannot carry."""
    flows = [stage.flow for stage in plan.source_stages]
    flows += [flow for stage in plan.keyed for flow in stage.flows.values()]
    records = dict.fromkeys(record for flow in flows for record in _records(flow))
    for record in records:
        try:
            columns_of(record)
        except ConfigError as error:
            yield str(error)


def _records(flow: Flow) -> Iterator[type[msgspec.Struct]]:
    yield flow.record
    for use in flow.uses:
        if isinstance(use.to, Through):
            yield from _records(use.to.flow)
