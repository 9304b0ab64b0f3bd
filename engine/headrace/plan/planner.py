"""Splits a graph into stages, and refuses a graph that cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import cast

import msgspec

from headrace.api.changelog_inference import changes_of
from headrace.api.graph import (
    Additions,
    AssignEventTime,
    AsyncWait,
    DropUpdateBefore,
    Input,
    Node,
    OperatorFunction,
    Process,
    SinkNode,
    SourceNode,
    SparkTransform,
    StatelessTransform,
    Union,
    UpsertMaterialize,
    transform_over,
)
from headrace.api.types import output_type
from headrace.errors import ConfigError
from headrace.plan.stages import Flow, Keyed, KeyedStage, Plan, SinkPlan, SourceStage, Through, ToSink, ToStage, Use
from headrace.records.column_types import Column, columns_of
from headrace.stream.stream import Pipeline

MOST_EDGES = 250
"""Largest number of uses of one stream: an edge is one byte, whose last values belong to timers."""

MOST_STAGES = 250
"""Largest number of keyed operators: its number is a byte in the order of its timers, whose last values belong to processing time."""


def plan_stages(pipeline: Pipeline) -> Plan:
    """Split a pipeline into stages.

    Raises `ConfigError` that lists everything that prevents it from running, one problem a line: no source or sink, an
    unused stream, an async wait in a wrong place, two streams into one sink, a materializer without a sink of its own,
    an event time that may be missing, a field without a column.
    """
    if problems := problems_of(pipeline):
        raise ConfigError("\n".join(problems))
    return _Graph(pipeline).plan()


def problems_of(pipeline: Pipeline) -> list[str]:
    """Return everything that prevents a pipeline from being planned, in sentences."""
    problems = dict.fromkeys([*_Graph(pipeline).problems(), *_problems_of_records(pipeline)])
    return [f"pipeline '{pipeline.name}': {problem}" for problem in problems]


def sources_of(pipeline: Pipeline) -> tuple[SourceNode, ...]:
    """Return the sources of a pipeline as a plan has them: with Spark's transforms over them. The pipeline need not be runnable."""
    return _Graph(pipeline).sources()


class _Graph:
    """A pipeline's nodes, and the uses of their outputs."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._nodes = pipeline.nodes

    @cached_property
    def _uses(self) -> dict[tuple[Node, str | None], list[tuple[Node, int]]]:
        """Return, by output (node and side), the nodes that take it, each with the number of its input."""
        uses: dict[tuple[Node, str | None], list[tuple[Node, int]]] = {}
        for node in self._nodes:
            for number, node_input in enumerate(node.inputs):
                uses.setdefault((node_input.node, node_input.side), []).append((node, number))
        return uses

    # ---------------------------------------------------------------------------------------------------- problems

    def problems(self) -> Iterator[str]:
        """Yield the problems of the graph."""
        operators = self._pipeline.operators
        if not any(isinstance(operator, SourceNode) for operator in operators):
            yield "it has no source: begin with source()"
        if not any(isinstance(operator, SinkNode) for operator in operators):
            yield "it has no sink: end with sink()"
        if len(self._ranks) > MOST_STAGES:
            yield f"it has {len(self._ranks)} keyed operators, more than {MOST_STAGES}: divide it into two jobs"
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
                yield (
                    f"the stream of {name} is used {len(uses)} times, more than {MOST_EDGES}: "
                    "let several of them use a filter() of it"
                )
        if isinstance(operator, SourceNode):
            yield from _problems_of_time("event_time", operator.record, operator.event_time)
            yield from self._problems_of_transforms(node, operator)
        if isinstance(operator, AssignEventTime) and isinstance(operator.time, str):
            yield from _problems_of_time("assign_event_time", record_of(node.inputs[0]), operator.time)
        if isinstance(operator, AsyncWait) and operator.key is None:
            yield from self._problems_of_wait(node, operator)
        if isinstance(operator, UpsertMaterialize):
            followers = [follower.operator for follower, _ in self._uses.get((node, None), [])]
            if followers and not (len(followers) == 1 and isinstance(followers[0], SinkNode)):
                others = ", ".join(f"'{other.name}'" for other in followers)
                yield (
                    f"upsert_materialize() must be followed by one sink(), and by nothing else, but '{operator.name}' goes to "
                    f"{others}: take what these need from the stream before it"
                )

    def _problems_of_transforms(self, node: Node, source: SourceNode) -> Iterator[str]:
        users = [user.operator for user, _ in self._uses.get((node, None), [])]
        transforms = [user for user in users if isinstance(user, SparkTransform)]
        for transform in transforms:
            yield from _problems_of_time(
                f"event_time of {transform.name} over '{source.name}',", transform.record, source.event_time
            )
        if transforms and len(users) > 1:
            others = ", ".join(f"'{user.name}'" for user in users if user is not transforms[0])
            yield (
                f"source '{source.name}' goes to Spark's transform '{transforms[0].name}', and to {others} as well: a source with such a transform has "
                "no other use. Use the transform's stream there, or declare a second source over the same place"
            )

    def _problems_of_wait(self, node: Node, wait: AsyncWait) -> Iterator[str]:
        begins = self._begins[node]
        keyed = sorted(first.operator.name for first in begins if _is_keyed(first))
        if keyed:
            yield (
                f"async_wait '{wait.name}' comes behind {_listed(keyed)}: call async_wait() before the first keyed operator, or "
                "write key_by() before it, and mode=KEYED_ORDERED"
            )
        elif begins.total() > 1:
            yield f"async_wait '{wait.name}' gets several streams (of {_listed(begins)}): call async_wait() before union()"

    @cached_property
    def _begins(self) -> dict[Node, Counter[Node]]:
        """Return, by node, the nodes that begin the stages of its records, with the number of ways."""
        begins: dict[Node, Counter[Node]] = {}
        for node in self._nodes:
            begins[node] = Counter()
            for node_input in node.inputs:
                starts_here = isinstance(node_input.node.operator, SourceNode) or _is_keyed(node_input.node)
                begins[node] += Counter([node_input.node]) if starts_here else begins[node_input.node]
        return begins

    def _problems_of_sinks(self) -> Iterator[str]:
        names = [operator.name for operator in self._pipeline.operators if isinstance(operator, SinkNode)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            yield (
                f"each output needs a sink of its own, but several go to {_listed(twice)}: "
                "union() the streams first, or name another sink"
            )

    # -------------------------------------------------------------------------------------------------------- plan

    def plan(self) -> Plan:
        """Return the plan."""
        return Plan(
            self._pipeline.name,
            tuple(
                SourceStage(source, self._flow(transform or node))
                for source, (node, transform) in zip(self.sources(), self._sources.items(), strict=True)
            ),
            tuple(self._stage(node, number) for number, node in enumerate(self._ranks)),
            {node.operator.name: _sink(node) for node in self._nodes if isinstance(node.operator, SinkNode)},
        )

    @cached_property
    def _sources(self) -> dict[Node, Node | None]:
        """Return the sources, each with Spark's transform over it."""
        return {
            node: transform_over(node, self._nodes) for node in self._nodes if isinstance(node.operator, SourceNode)
        }

    def sources(self) -> tuple[SourceNode, ...]:
        """Return the sources as declared; `record` is the type of the rows after Spark's transform."""
        return tuple(self._source(node, transform) for node, transform in self._sources.items())

    def _source(self, node: Node, transform_node: Node | None) -> SourceNode:
        source = cast("SourceNode", node.operator)
        if transform_node is None:
            needed = self._needed_of_deletions(node, source)
            return replace(source, needed_of_deletions=needed, keys=self._keys(node))
        transform = cast("SparkTransform", transform_node.operator)
        return replace(source, record=transform.record, transform=transform, keys=self._keys(transform_node))

    def _keys(self, node: Node) -> tuple[tuple[str, ...], ...] | None:
        """Return the fields of the keys by which a stream is read, also as a part of a union; None if a reader needs no such key."""
        keys: list[tuple[str, ...]] = []
        for user, number in self._uses.get((node, None), []):
            key = user.inputs[number].key
            if isinstance(user.operator, Union):
                of_union = self._keys(user)
                if of_union is None:
                    return None
                keys += of_union
            elif key is None or not key.fields or number in _null_key_inputs(user):
                return None
            else:
                keys.append(key.fields)
        return tuple(keys)

    def _needed_of_deletions(self, node: Node, source: SourceNode) -> tuple[str, ...] | None:
        """Return the fields that a `-D` of a source must hold; None if a reader of the source reads all."""
        read = self._read_of_deletions(node)
        return None if read is None else tuple(sorted({source.event_time, *source.order_by, *read}))

    def _read_of_deletions(self, node: Node) -> set[str] | None:
        """Return the fields that the readers of a stream read of a `-D`; None if one of them reads all."""
        read = set[str]()
        for user, number in self._uses.get((node, None), []):
            if isinstance(user.operator, Additions):
                continue  # it drops them
            is_passed_on = isinstance(user.operator, DropUpdateBefore)
            of_user = self._read_of_deletions(user) if is_passed_on else _read_of_deletions(user, number)
            if of_user is None:
                return None
            read |= of_user
        return read

    @cached_property
    def _ranks(self) -> list[Node]:
        """Return the keyed operators: after their inputs, otherwise in the declared order."""
        depths: dict[Node, int] = {}
        for node in self._nodes:
            depths[node] = max(
                (depths[node_input.node] + _is_keyed(node_input.node) for node_input in node.inputs), default=0
            )
        return sorted((node for node in self._nodes if _is_keyed(node)), key=depths.__getitem__)

    def _stage(self, node: Node, number: int) -> KeyedStage:
        operator = cast("Keyed", node.operator)
        return KeyedStage(
            operator,
            number,
            tuple(record_of(node_input) for node_input in node.inputs),
            tuple(node_input.key for node_input in node.inputs),
            {side: self._flow(node, side) for side, _ in _outputs_of(operator)},
            tuple(
                previous.operator.name for previous in self._before[node] if isinstance(previous.operator, SourceNode)
            ),
            tuple(
                previous.operator.name
                for previous in self._before[node]
                if _is_keyed(previous) or isinstance(previous.operator, AsyncWait)
            ),
        )

    @cached_property
    def _before(self) -> dict[Node, dict[Node, None]]:
        """Return, by node, all nodes that its records may pass through, the first nodes first."""
        before: dict[Node, dict[Node, None]] = {}
        for node in self._nodes:
            before[node] = {}
            for node_input in node.inputs:
                before[node] |= before[node_input.node] | {node_input.node: None}
        return before

    def _flow(self, node: Node, side: str | None = None) -> Flow:
        uses = self._uses.get((node, side), [])
        several = len(uses) > 1
        return Flow(
            record_of(Input(node, side)),
            tuple(Use(edge if several else None, self._target(*use)) for edge, use in enumerate(uses)),
            changes_of(Input(node, side)),
        )

    def _target(self, node: Node, number: int) -> ToStage | ToSink | Through:
        operator = node.operator
        if isinstance(operator, SinkNode):
            return ToSink(operator.name)
        if _is_keyed(node):
            return ToStage(operator.name, number, node.inputs[number].key, number in _null_key_inputs(node))
        return Through(cast("StatelessTransform | AsyncWait", operator), self._flow(node))


def record_of(node_input: Input) -> type[msgspec.Struct]:
    """Return the type of the records of an output."""
    operator = node_input.node.operator
    if node_input.side is not None:
        return next(side.record for side in cast("Process", operator).side_outputs if side.name == node_input.side)
    if isinstance(operator, Process | AsyncWait):
        return output_type(operator.function)
    record: type[msgspec.Struct] | None = getattr(operator, "record", None)
    return record if record is not None else record_of(node_input.node.inputs[0])


def _is_keyed(node: Node) -> bool:
    operator = node.operator
    return isinstance(operator, Process | UpsertMaterialize) or (
        isinstance(operator, AsyncWait) and operator.key is not None
    )


def _null_key_inputs(node: Node) -> tuple[int, ...]:
    operator = node.operator
    if isinstance(operator, Process) and isinstance(operator.function, OperatorFunction):
        return operator.function.takes_null_keys
    return ()


def _read_of_deletions(node: Node, number: int) -> set[str] | None:
    """Return the fields that an operator reads of a `-D` of an input; None if it reads all."""
    operator, key = node.operator, node.inputs[number].key
    if key is None or not isinstance(operator, Process) or not isinstance(operator.function, OperatorFunction):
        return None
    read = operator.function.fields_of_deletions(number)
    return None if read is None else {*key.fields, *read}


def _outputs_of(operator: object) -> Iterator[tuple[str | None, str]]:
    """Yield the outputs of an operator: the side, and its name for people."""
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


def _problems_of_time(what: str, record: type[msgspec.Struct], name: str) -> Iterator[str]:
    try:
        column = next(column for column in columns_of(record) if column.name == name)
    except ConfigError:
        return  # reported for the record, for all its users
    if column.nullable or not column.is_time:
        yield (
            f"{what} '{name}' of {record.__name__} must be a Timestamp, and not optional (or a TimestampMicros, or a datetime with a zone)"
            f"{_spelled(column)}"
        )


def _spelled(column: Column) -> str:
    """Return how to declare a field of whole numbers as a time, as the end of a sentence; nothing for other fields."""
    if column.nullable or column.annotation is not int:
        return ""
    return (
        f". It is an int, which is no timestamp, and reads no column of timestamps: write '{column.name}: Timestamp' "
        "(from headrace import Timestamp), in Python an int of milliseconds since 1970 UTC"
    )


def _listed(names: Iterable[Node | str]) -> str:
    return ", ".join(f"'{name if isinstance(name, str) else name.operator.name}'" for name in names)


def _problems_of_records(pipeline: Pipeline) -> Iterator[str]:
    """Yield the problems of records that columns cannot hold."""
    outputs = [(node, side) for node in pipeline.nodes for side, _ in _outputs_of(node.operator)]
    for record in dict.fromkeys(record_of(Input(node, side)) for node, side in outputs):
        try:
            columns_of(record)
        except ConfigError as error:
            yield str(error)
