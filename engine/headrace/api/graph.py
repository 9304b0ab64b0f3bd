"""The operators of a graph: frozen descriptions, bound to nothing yet, and the streams between them.

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
from headrace.api.functions import AsyncFunction, KeyedFunction
from headrace.api.retry_strategies import AsyncRetryStrategy
from headrace.api.upsert_materialize import UpsertMaterialize

CHANGE_TYPE = "_change_type"
"""Column of a Delta table's change data feed: what a source that reads the feed has as `row_kind`."""


class OutputMode(enum.Enum):
    """The order in which results of async calls go on (Flink Async I/O; FLIP-425 for the keyed one)."""

    ORDERED = "ordered"
    """As the records came. Whatever comes after an element that waits, waits with it."""

    UNORDERED = "unordered"
    """Unordered in event time: between two watermarks an element that waits holds nobody up, but no result, and so
    nothing downstream, passes the next watermark before it."""

    UNORDERED_PROCESSING_TIME = "unordered_processing_time"
    """An element that waits holds nobody up, watermarks neither: it may come to operators downstream as a late one."""

    KEYED_ORDERED = "keyed_ordered"
    """After `key_by`: calls for a key are made one after the other, each when the one before it has its answer.
    Other keys overtake, up to the next watermark."""


@dataclass(frozen=True, slots=True)
class KeyBy:
    """How a stream is keyed: by fields, or by what a function makes of a record."""

    fields: tuple[str, ...] = ()
    function: Callable[[Any], Any] | None = None

    def __str__(self) -> str:
        """Return the fields, or the function's name."""
        return ", ".join(self.fields) if self.function is None else name_of(self.function)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Where records come from."""

    name: str
    record: type[msgspec.Struct]
    event_time: str
    order_by: tuple[str, ...]
    row_kind: str | None
    out_of_orderness: timedelta
    step: SparkStep | None = None
    """In a plan: what Spark does with the rows before records are made of them. `record` is then that of its result."""

    @property
    def stored(self) -> SourceNode:
        """The source as it is stored: before Spark's step, if it has one. Rows are as they lie there."""
        return self if self.step is None else replace(self, record=self.step.takes, order_by=(), step=None)


@dataclass(frozen=True, slots=True)
class SparkStep:
    """What Spark does with the rows of a source: SQL, or a function of a DataFrame."""

    takes: type[msgspec.Struct]
    record: type[msgspec.Struct]
    query: str | None = None
    function: Callable[..., Any] | None = None
    tables: tuple[str, ...] = ()
    """Names of the dimension tables that it reads besides the source."""

    @property
    def name(self) -> str:
        """Return what errors call the step."""
        return "sql" if self.function is None else f"spark {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Map:
    """One record for each record."""

    function: Callable[[Any], msgspec.Struct]
    record: type[msgspec.Struct]

    @property
    def name(self) -> str:
        """Return what errors call the step."""
        return f"map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Filter:
    """The records for which a predicate is true."""

    predicate: Callable[[Any], object]

    @property
    def name(self) -> str:
        """Return what errors call the step."""
        return f"filter {name_of(self.predicate)}"


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Any number of records for each record."""

    function: Callable[[Any], Iterable[msgspec.Struct]]
    record: type[msgspec.Struct]

    @property
    def name(self) -> str:
        """Return what errors call the step."""
        return f"flat_map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class AssignEventTime:
    """Records with another event time. The watermark stays that of their sources."""

    time: str | Callable[[Any], int]

    @property
    def name(self) -> str:
        """Return what errors call the step."""
        return f"assign_event_time {self.time if isinstance(self.time, str) else name_of(self.time)}"


@dataclass(frozen=True, slots=True)
class Union:
    """Several streams of one type as one."""

    name: str = "union"


@dataclass(frozen=True, slots=True)
class AsyncWait:
    """One call to the outside for each record."""

    name: str
    function: AsyncFunction[Any, Any]
    mode: OutputMode
    capacity: int
    timeout: timedelta
    retry: AsyncRetryStrategy
    park_after: timedelta | None = None
    recovery: RecoveryOption = RecoveryOption.COST_TIME
    on_failure: OnFailure = OnFailure.FAIL
    breaker: CircuitBreaker | None = None
    cache: LookupCache | None = None
    batch: Batching | None = None
    service: str | None = None
    key: KeyBy | None = None


@dataclass(frozen=True, slots=True)
class SideOutput:
    """A second output of a process function; `sink` is the append-only sink that takes it, if one does."""

    name: str
    record: type[msgspec.Struct]
    sink: str | None = None


@dataclass(frozen=True, slots=True)
class Process:
    """A keyed process function, of one input or two. `key` says how they are keyed, for people: the inputs know."""

    name: str
    key: str
    function: KeyedFunction
    side_outputs: tuple[SideOutput, ...] = ()


@dataclass(frozen=True, slots=True)
class SinkNode:
    """Where a stream goes."""

    name: str


StatelessStep = Map | Filter | FlatMap | AssignEventTime | Union | SparkStep
Operator = SourceNode | StatelessStep | AsyncWait | Process | UpsertMaterialize | SinkNode


@dataclass(frozen=True, slots=True, eq=False)
class Input:
    """One use of a stream: by which operator's output, keyed how."""

    node: Node
    side: str | None = None
    key: KeyBy | None = None
    is_broadcast: bool = False


@dataclass(slots=True, eq=False)
class Node:
    """An operator in a graph, and the streams that it takes."""

    operator: Operator
    inputs: tuple[Input, ...] = ()


def step_over(source: Node, nodes: Iterable[Node]) -> Node | None:
    """Return Spark's step over a source among the nodes of its graph; None if it has none."""
    users = (node for node in nodes if any(one.node is source and one.side is None for one in node.inputs))
    return next((user for user in users if isinstance(user.operator, SparkStep)), None)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called, for people."""
    return getattr(function, "__name__", type(function).__name__)
