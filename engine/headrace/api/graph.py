"""Operators of a graph: frozen descriptions that are not bound to tables yet, and the streams between them.

Sources, sinks and services are names here; `conf/jobs/*.yaml` binds them to paths and tables.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import msgspec

from headrace.api.async_io import Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api.changelog_mode import INSERTS, ChangelogMode, StreamChanges
from headrace.api.functions import AsyncFunction, KeyedFunction
from headrace.api.retry_strategies import AsyncRetryStrategy
from headrace.api.upsert_materialize import UpsertMaterialize

CHANGE_TYPE = "_change_type"
"""Column of a Delta table's change data feed. A source that reads the feed has it as `row_kind`."""


class OutputMode(enum.Enum):
    """Order in which results of async calls are emitted (Flink Async I/O; FLIP-425 for `KEYED_ORDERED`)."""

    ORDERED = "ordered"
    """In the order of the records. Everything behind a waiting element waits with it."""

    UNORDERED = "unordered"
    """Unordered between two watermarks: a waiting element blocks no other element, but no result,
    and so nothing downstream, passes the next watermark before it."""

    UNORDERED_PROCESSING_TIME = "unordered_processing_time"
    """A waiting element blocks nothing, watermarks neither: it may reach operators downstream as a late one."""

    KEYED_ORDERED = "keyed_ordered"
    """After `key_by`: calls for a key are made one at a time, each after the previous one has its answer.
    Other keys overtake, up to the next watermark."""


@dataclass(frozen=True, slots=True)
class KeyBy:
    """Key of a stream: fields, or the result of a function of a record."""

    fields: tuple[str, ...] = ()
    function: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        """Return the fields, or the function's name."""
        return ", ".join(self.fields) if self.function is None else name_of(self.function)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Source of records."""

    name: str
    record: type[msgspec.Struct]
    event_time: str
    order_by: tuple[str, ...]
    row_kind: str | None
    out_of_orderness: timedelta
    step: SparkStep | None = None
    """In a plan: Spark's step over the rows, before records are made of them. `record` is then the step's result type."""
    needed_of_deletions: tuple[str, ...] | None = None
    """In a plan: fields that a `-D` must hold, where only `normalize` reads the source; None: all."""

    @property
    def stored(self) -> SourceNode:
        """Return the source as it is stored: without Spark's step, if it has one."""
        return self if self.step is None else replace(self, record=self.step.takes, order_by=(), step=None)


@dataclass(frozen=True, slots=True)
class SparkStep:
    """A step that Spark runs over the rows of a source: SQL, or a function of a DataFrame."""

    takes: type[msgspec.Struct]
    record: type[msgspec.Struct]
    query: str | None = None
    function: Callable[..., Any] | None = None
    tables: tuple[str, ...] = ()
    """Names of the dimension tables that it reads besides the source."""

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return "sql" if self.function is None else f"spark {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Map:
    """One output record for each record."""

    function: Callable[[Any], msgspec.Struct]
    record: type[msgspec.Struct]
    keeps: tuple[str, ...] = ()
    """Fields that a result has with the values of its record."""

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return f"map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Records for which a predicate is true."""

    predicate: Callable[[Any], object]
    deletes: bool = False
    """True: updates come without their old rows, so a refused row deletes its key."""

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return f"filter {name_of(self.predicate)}"


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Any number of output records for each record."""

    function: Callable[[Any], Iterable[msgspec.Struct]]
    record: type[msgspec.Struct]
    keeps: tuple[str, ...] = ()
    """Fields that a result has with the values of its record."""

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return f"flat_map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class DropUpdateBefore:
    """Changes without the rows before updates (row kind -U). `key` identifies a row; empty: the known unique key."""

    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return "drop_update_before"


@dataclass(frozen=True, slots=True)
class AssignEventTime:
    """Records with another event time. The watermark stays that of their sources."""

    time: str | Callable[[Any], int]

    @property
    def name(self) -> str:
        """Return the step's name in errors."""
        return f"assign_event_time {self.time if isinstance(self.time, str) else name_of(self.time)}"


@dataclass(frozen=True, slots=True)
class Union:
    """Several streams of one type as one."""

    name: str = "union"


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """One call to an external service for each record."""

    name: str
    function: AsyncFunction[Any, Any]
    mode: OutputMode
    capacity: int
    timeout: timedelta | None
    """Over all attempts of one record; None: no limit."""
    retry: AsyncRetryStrategy
    park_after: timedelta | None = None
    recovery: RecoveryOption = RecoveryOption.COST_TIME
    on_failure: OnFailure = OnFailure.FAIL
    breaker: CircuitBreaker | None = None
    cache: LookupCache | None = None
    batch: Batching | None = None
    service: str | None = None
    key: KeyBy | None = None
    upsert_key: tuple[str, ...] = ()
    """Key of the stream's upserts; empty for other streams."""
    takes_inserts_alone: bool = False
    """True: nothing declares what the stream's changes mean, and a retraction must not call again."""


@dataclass(frozen=True, slots=True)
class SideOutput:
    """A second output of a process function; `sink` is the append-only sink that takes it, if there is one."""

    name: str
    record: type[msgspec.Struct]
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A keyed process function of one input or two. `key` describes their keys for people; the inputs hold them."""

    name: str
    key: str
    function: KeyedFunction
    side_outputs: tuple[SideOutput, ...] = ()
    emits: ChangelogMode | None = None
    """Mode of what a function of a user emits; None: not declared."""


@dataclass(frozen=True, slots=True)
class SinkNode:
    """End of a stream."""

    name: str


StatelessStep = Map | Filter | FlatMap | DropUpdateBefore | AssignEventTime | Union | SparkStep
Operator = SourceNode | StatelessStep | AsyncWait | Process | UpsertMaterialize | SinkNode


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """One use of a stream: the operator whose output it is, and its key."""

    node: Node
    side: str | None = None
    key: KeyBy | None = None
    is_broadcast: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """An operator in a graph, its input streams, and the changes of its main output."""

    operator: Operator
    inputs: tuple[Input, ...] = ()
    changes: StreamChanges = INSERTS


def step_over(source: Node, nodes: Iterable[Node]) -> Node | None:
    """Return Spark's step over a source among the nodes of its graph; None without one."""
    users = (
        node
        for node in nodes
        if any(node_input.node is source and node_input.side is None for node_input in node.inputs)
    )
    return next((user for user in users if isinstance(user.operator, SparkStep)), None)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for people."""
    return getattr(function, "__name__", type(function).__name__)
