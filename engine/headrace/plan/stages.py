"""From a graph to stages: a stage runs between two shuffles.

Each source and each keyed operator begins a stage. Transforms without state (map, filter, ...) and the async calls behind a
source run in the stage before them, so a stage ends in a tree: its records flow through transforms to other stages and
sinks. The calls behind a *shared* source are made later than the rest of its stage: plain stages, which need none of their
results, come first.

    orders ── filter ─┬─────────────── sink large_orders          stage orders: filter, two uses
                      └─ key_by ── totals ── sink totals          stage totals
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import msgspec

from headrace.api.changelog import INSERTS, StreamChanges
from headrace.api.graph import AsyncWait, KeyBy, Process, SourceNode, StatelessTransform, UpsertMaterialize

Keyed = Process | UpsertMaterialize | AsyncWait


@dataclass(frozen=True, slots=True)
class ToStage:
    """End of a flow at a keyed operator: its input `number`, keyed by `key`; without a key, all of its tasks get the records.

    A record whose key is null goes to the quarantine, unless the operator `takes_null_keys`.
    """

    stage: str
    number: int
    key: KeyBy | None
    takes_null_keys: bool = False


@dataclass(frozen=True, slots=True)
class ToSink:
    """End of a flow at a sink."""

    sink: str


@dataclass(frozen=True, slots=True)
class Through:
    """A transform within a stage, and the flow of its outputs."""

    transform: StatelessTransform | AsyncWait
    flow: Flow


@dataclass(frozen=True, slots=True)
class Use:
    """One use of a stream. `edge` distinguishes its records from those of other uses where they meet again; None for the only use."""

    edge: int | None
    to: ToStage | ToSink | Through


@dataclass(frozen=True, slots=True)
class Flow:
    """A stream within a stage: the type of its records, their uses, and what their changes mean. Each use gets all records."""

    record: type[msgspec.Struct]
    uses: tuple[Use, ...]
    changes: StreamChanges = INSERTS


@dataclass(frozen=True, slots=True)
class SourceStage:
    """Stage of a source: reads it, and runs all transforms before the next shuffle."""

    source: SourceNode
    flow: Flow

    @property
    def name(self) -> str:
        """Return the source's name."""
        return self.source.name


@dataclass(frozen=True, slots=True)
class KeyedStage:
    """Stage of one keyed operator. `takes` are the types of its inputs; `flows` its outputs: None is the main one, others by name.

    `number` is its rank: an operator that feeds another has a lower one. `sources` are all sources that reach it,
    `after` all keyed operators and async waits before it.
    """

    operator: Keyed
    number: int
    takes: tuple[type[msgspec.Struct], ...]
    keys: tuple[KeyBy | None, ...]
    flows: dict[str | None, Flow]
    sources: tuple[str, ...]
    after: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the operator's name."""
        return self.operator.name

    @property
    def record(self) -> type[msgspec.Struct]:
        """Return the type of the main output's records."""
        return self.flows[None].record


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Records of a sink, and the primary key that merges them (empty: append-only)."""

    name: str
    record: type[msgspec.Struct]
    primary_key: tuple[str, ...] = ()
    names: tuple[tuple[str, str], ...] = ()
    """Fields, and the names of their columns that the job's file gives them."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages of a pipeline: those of its sources as declared, keyed ones by rank."""

    name: str
    source_stages: tuple[SourceStage, ...]
    keyed: tuple[KeyedStage, ...]
    sinks: dict[str, SinkPlan] = field(default_factory=dict)

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """Return the sources, as declared."""
        return tuple(stage.source for stage in self.source_stages)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Return groups of sources that meet in a keyed operator, and so share one arrival order; others are alone."""
        groups = [{source.name} for source in self.sources]
        for stage in self.keyed:
            meeting = [group for group in groups if group & {*stage.sources}]
            groups = [group for group in groups if group not in meeting] + [set().union(*meeting)]
        names = [source.name for source in self.sources]
        ordered = (tuple(name for name in names if name in group) for group in groups)
        return tuple(sorted(ordered, key=lambda group: names.index(group[0])))

    def group_of(self, stage: str) -> tuple[str, ...]:
        """Return the sources whose arrival order a stage, or a source, has."""
        source = next((keyed.sources[0] for keyed in self.keyed if keyed.name == stage), stage)
        return next(group for group in self.groups if source in group)

    def plain_and_others(self) -> tuple[list[KeyedStage], list[KeyedStage]]:
        """Return the plain keyed stages, which call no service and get no results of calls, and the other ones; both by rank."""
        waits = {wait.name for wait in waits_of(self)}
        plain: list[KeyedStage] = []
        others: list[KeyedStage] = []
        for stage in self.keyed:
            (plain if waits.isdisjoint((stage.name, *stage.after)) else others).append(stage)
        return plain, others

    def is_shared(self, source: SourceStage) -> bool:
        """Return whether a source has async waits, and feeds a plain stage as well."""
        if not waits_in(source.flow):
            return False
        plain, _ = self.plain_and_others()
        feeds = {use.to.stage for use in walk(source.flow) if isinstance(use.to, ToStage)}
        return any(stage.name in feeds for stage in plain)

    def timelines(self) -> dict[str, str]:
        """Return the first source of each operator's timeline, including async waits behind a source."""
        timelines = {
            wait.name: self.group_of(source_stage.name)[0]
            for source_stage in self.source_stages
            for wait in waits_in(source_stage.flow)
        }
        return timelines | {stage.name: self.group_of(stage.name)[0] for stage in self.keyed}

    def ranks(self) -> dict[str, int]:
        """Return the ranks of keyed operators. With edges they order held records, so a plan must not change them while rows are held."""
        return {stage.name: stage.number for stage in self.keyed}

    def edges(self) -> dict[str, int]:
        """Return the numbers of streams that are used more than once. With ranks they order held records.

        orders#0->large      0    first use of the source's stream; it leads to the sink large
        orders#1#0->totals   0    first use of what the second one gives
        orders#1#1->joined/2 1    the second input of joined
        """
        numbers: dict[str, int] = {}
        for source in self.source_stages:
            numbers |= self._edges(source.name, source.flow)
        for stage in self.keyed:
            for side, flow in stage.flows.items():
                numbers |= self._edges(stage.name if side is None else f"{stage.name}.{side}", flow)
        return numbers

    def _edges(self, path: str, flow: Flow) -> dict[str, int]:
        numbers: dict[str, int] = {}
        for use in flow.uses:
            follows = path
            if use.edge is not None:
                follows = f"{path}#{use.edge}"
                numbers[f"{follows}->{','.join(dict.fromkeys(self._ends(use)))}"] = use.edge
            if isinstance(use.to, Through):
                numbers |= self._edges(follows, use.to.flow)
        return numbers

    def _ends(self, use: Use) -> Iterator[str]:
        """Yield the sinks and the inputs of stages that a use leads to."""
        if isinstance(use.to, Through):
            for following in use.to.flow.uses:
                yield from self._ends(following)
        elif isinstance(use.to, ToSink):
            yield use.to.sink
        else:
            has_inputs = len(self.stage(use.to.stage).takes) > 1
            yield f"{use.to.stage}/{use.to.number + 1}" if has_inputs else use.to.stage

    def sinks_behind(self, stage: str) -> set[str]:
        """Return the sinks that a keyed operator's results may reach, also through other operators."""
        uses = [use.to for flow in self.stage(stage).flows.values() for use in walk(flow)]
        further = [self.sinks_behind(to.stage) for to in uses if isinstance(to, ToStage)]
        return {to.sink for to in uses if isinstance(to, ToSink)}.union(*further)

    def stage(self, name: str) -> KeyedStage:
        """Return the stage of a keyed operator."""
        return next(stage for stage in self.keyed if stage.name == name)


def walk(flow: Flow) -> Iterator[Use]:
    """Yield all uses in a flow, transforms before their followers."""
    for use in flow.uses:
        yield use
        if isinstance(use.to, Through):
            yield from walk(use.to.flow)


def transforms_of(flow: Flow) -> list[StatelessTransform | AsyncWait]:
    """Return the transforms of a flow."""
    return [use.to.transform for use in walk(flow) if isinstance(use.to, Through)]


def waits_in(flow: Flow) -> list[AsyncWait]:
    """Return the async waits of a flow, in the order in which records pass them."""
    return [transform for transform in transforms_of(flow) if isinstance(transform, AsyncWait)]


def flows_into_waits(flow: Flow) -> Iterator[tuple[AsyncWait, Flow]]:
    """Yield the first async waits on the ways of a flow, each with the flow of the records that it takes, for this use alone."""
    for use in flow.uses:
        if not isinstance(use.to, Through):
            continue
        if isinstance(use.to.transform, AsyncWait):
            yield use.to.transform, replace(flow, uses=(Use(None, use.to),))
        else:
            yield from flows_into_waits(use.to.flow)


def waits_of(plan: Plan) -> list[AsyncWait]:
    """Return all async waits of a plan, in the order in which records pass them."""
    ahead = [wait for stage in plan.source_stages for wait in waits_in(stage.flow)]
    return [
        *ahead,
        *(stage.operator for stage in plan.keyed if isinstance(stage.operator, AsyncWait)),
    ]
