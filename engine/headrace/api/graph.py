"""Nodes of a graph, the streams between them, and the base class of the package's keyed functions.

The file has the operators on a key's history: the sink upsert materializer (FLIP-544) with first value, last value and
deduplication, and lag. Then come the operators of a graph, as frozen descriptions that are not bound to tables yet, and
their streams. `OperatorFunction` has the methods that the graph, `explain` and side outputs call.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, ClassVar, Final, NamedTuple, cast

import msgspec

from headrace.api.changelog import INSERTS, UPSERTS_OF_UNKNOWN_KEY, ChangelogMode, StreamChanges
from headrace.api.column_reads import TIME, ColumnReads, DeclaredReads, Kind, Reads, copied, fields_read, read_by_user
from headrace.api.functions import AsyncFunction, KeyedFunction, function_types
from headrace.api.records import RowKind
from headrace.api.services import AsyncRetryStrategy, Batching, CircuitBreaker, LookupCache, OnFailure, RecoveryOption
from headrace.api.states import BroadcastState, MapState
from headrace.api.ttl import OnGap, StateTtl, TtlTime, UpdateType, Visibility
from headrace.options import Strategy


class Emit(enum.Enum):
    """Changes that a materializer emits: every one, or one per key and micro-batch."""

    EVERY_CHANGE = "every_change"
    NET_CHANGE = "net_change"


class OnConflict(enum.Enum):
    """Resolution of several rows that claim one primary key (FLIP-558).

    All but `KEEP_HISTORY` decide when the watermark has reached the rows: by then, retractions that came late have
    removed their rows. They remove dropped rows from the history; a later retraction of a dropped row is reported as
    unmatched.
    """

    KEEP_HISTORY = "keep_history"
    """The last row is shown. When it is retracted, the row before it is shown again."""

    DO_NOTHING = "do_nothing"
    """The first row stays; later ones are dropped."""

    ERROR = "error"
    """The run fails; the error names the rows."""

    DEDUPLICATE = "deduplicate"
    """The row that was added or replaced last stays; earlier ones are dropped, and never return."""


class Keep(enum.Enum):
    """Row of a key that an operator shows."""

    FIRST = "first"
    """The earliest arrival among the rows that were not retracted."""

    LAST = "last"
    """The latest arrival among the rows that were not retracted."""


@dataclass(frozen=True, slots=True)
class UpsertMaterialize:
    """A sink upsert materializer (FLIP-544); with `keep`, also first value, last value and deduplication by a key.

    Raises `ValueError` for `Keep.FIRST` with a conflict policy, and for a `ttl` that rows of a history cannot have.
    """

    name: str
    primary_key: tuple[str, ...]
    upsert_key: tuple[str, ...] | None
    strategy: Strategy
    emit: Emit
    ttl: StateTtl | None = None
    on_conflict: OnConflict = OnConflict.KEEP_HISTORY
    force: bool = False
    keep: Keep = Keep.LAST

    def __post_init__(self) -> None:
        """Refuse a TTL that rows of a history cannot have, and two contradicting rules for the row to show."""
        if self.keep is Keep.FIRST and self.on_conflict not in {OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING}:
            msg = f"'{self.name}' cannot keep the first row and {self.on_conflict.value} on conflict"
            raise ValueError(msg)
        if self.ttl is None:
            return
        if self.ttl.time is TtlTime.PROCESSING and self.on_conflict is not OnConflict.KEEP_HISTORY:
            msg = f"'{self.name}': on_conflict goes by the watermark, so its ttl must be in event time"
            raise ValueError(msg)
        if self.ttl.update is not UpdateType.ON_CREATE_AND_WRITE:
            msg = f"ttl of '{self.name}': a row lives from its insertion, so `update` must be ON_CREATE_AND_WRITE"
            raise ValueError(msg)
        if self.ttl.visibility is not Visibility.NEVER_RETURN_EXPIRED:
            msg = f"ttl of '{self.name}': a dead row is never seen, so `visibility` must be NEVER_RETURN_EXPIRED"
            raise ValueError(msg)
        if self.ttl.time is TtlTime.EVENT and not self.ttl.expires_by_watermark:
            msg = f"ttl of '{self.name}': a row inserted in event time dies by the watermark, so `expiry` must be WATERMARK"
            raise ValueError(msg)
        if self.ttl.on_gap is not OnGap.EXPIRE:
            msg = f"ttl of '{self.name}': a pause prolongs no row's life, so `on_gap` must be EXPIRE"
            raise ValueError(msg)

    @property
    def is_needed(self) -> bool:
        """Return whether the operator keeps a history.

        It needs none where the upsert key is the primary key: then all changes of a key come from one place, in order,
        and the last one counts: a retraction deletes the key. `force`, a TTL and a policy for conflicts keep it anyway.
        """
        if self.force or self.ttl is not None or self.on_conflict is not OnConflict.KEEP_HISTORY:
            return True
        return self.upsert_key is None or {*self.upsert_key} != {*self.primary_key}

    def inferred_key(self, changes: StreamChanges) -> tuple[str, ...] | None:
        """Return the upsert key that the changes themselves have; None where rows are to be found as a whole.

        It is the key of upserts. Else it is the primary key, if that is unique in the changes, or if no row is ever taken back, so
        that the sink needs no history; unless something else asks for one, or a log of every change would get other rows.
        """
        if changes.mode.is_upsert:
            return changes.mode.key or None
        asks_for_history = self.force or self.ttl is not None or self.on_conflict is not OnConflict.KEEP_HISTORY
        if asks_for_history or self.emit is Emit.EVERY_CHANGE:
            return None
        if changes.mode.is_insert and changes.is_known:
            return self.primary_key
        return next((self.primary_key for key in changes.unique if {*key} == {*self.primary_key}), None)

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """Return the fields by which the input is keyed: each combination of their values has one history."""
        return self.primary_key

    @property
    def may_show_another(self) -> bool:
        """Return whether the sink may hold a row that is neither first nor last: one that was replaced in place."""
        if self.shows_first or self.on_conflict is OnConflict.DEDUPLICATE or not self.upsert_key:
            return False
        return not {*self.upsert_key} <= {*self.keyed_by}

    @property
    def shows_first(self) -> bool:
        """Return whether the first row of a key is shown, not the last."""
        return self.keep is Keep.FIRST or self.on_conflict is OnConflict.DO_NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class LagNode(UpsertMaterialize):
    """Each row with an earlier one of its partition, with support for retractions. `partition_by` keys the history.

    Raises `ValueError` as `UpsertMaterialize` does.
    """

    partition_by: tuple[str, ...]
    record: type[msgspec.Struct]
    function: Callable[[Any, Any], msgspec.Struct]
    offset: int = 1
    reads: DeclaredReads | None = None

    @property
    def keyed_by(self) -> tuple[str, ...]:
        """Return the fields by which the input is keyed: each combination of their values has one history."""
        return self.partition_by


SYMBOLS: Final = tuple((kind.symbol, kind) for kind in RowKind)
"""Symbols of row kinds, as the column `row_kind` of a source has them unless the pipeline says otherwise."""

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
    reads: DeclaredReads | None = None
    """Fields that the function reads; None: it may read every field."""

    def __str__(self) -> str:
        """Return the fields, or the function's name."""
        return ", ".join(self.fields) if self.function is None else name_of(self.function)

    def column_reads(self, takes: type[msgspec.Struct], kind: Kind, number: int = 0) -> Reads:
        """Return what the key of records of type `takes` reads, in the input `number`."""
        if self.function is None:
            return fields_read(self.fields, kind, number=number)
        names = None if self.reads is None else self.reads.fields
        reads = read_by_user(name_of(self.function), kind, [takes], names)
        return frozenset(reader._replace(input=number) for reader in reads)


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Source of records."""

    name: str
    record: type[msgspec.Struct]
    event_time: str
    order_by: tuple[str, ...]
    row_kind: str | None
    out_of_orderness: timedelta
    transform: SparkTransform | None = None
    """In a plan: Spark's transform over the rows, before records are made of them. `record` is then the transform's result type."""
    needed_of_deletions: tuple[str, ...] | None = None
    """In a plan: fields that a `-D` must hold, where no reader of the source needs the whole row; None: all."""
    keys: tuple[tuple[str, ...], ...] | None = None
    """In a plan: fields of the keys by which its readers take its rows; None: a reader takes rows without a key, or computes it."""
    rename: tuple[tuple[str, str], ...] = ()
    """In a plan: fields, and the names that the job's file gives them in the source."""
    kinds: tuple[tuple[str, RowKind], ...] = SYMBOLS
    """Values of `row_kind` as text, and the kinds that they stand for."""

    @property
    def changelog_mode(self) -> ChangelogMode:
        """Return what the changes of the rows mean: without a value that stands for `-U`, updates come without their old rows."""
        kinds = {kind for _, kind in self.kinds}
        if self.row_kind is None or kinds == {RowKind.INSERT}:
            return ChangelogMode.INSERT
        lacks_old_rows = RowKind.UPDATE_AFTER in kinds and RowKind.UPDATE_BEFORE not in kinds
        return UPSERTS_OF_UNKNOWN_KEY if lacks_old_rows else ChangelogMode.RETRACT

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """Return fields with the names of their columns, where the record does not name them: results of Spark's transform have the fields' own."""
        return self.rename if self.transform is None else tuple((name, name) for name in self.record.__struct_fields__)

    @property
    def stored(self) -> SourceNode:
        """Return the source as it is stored: without Spark's transform, if it has one."""
        return (
            self
            if self.transform is None
            else replace(self, record=self.transform.takes, order_by=(), transform=None, keys=None)
        )


@dataclass(frozen=True, slots=True)
class SparkTransform:
    """A transform that Spark runs over the rows of a source: SQL, or a function of a DataFrame."""

    takes: type[msgspec.Struct]
    record: type[msgspec.Struct]
    query: str | None = None
    function: Callable[..., Any] | None = None
    tables: tuple[str, ...] = ()
    """Names of the dimension tables that it reads besides the source."""

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return "sql" if self.function is None else f"spark {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Map:
    """One output record for each record."""

    function: Callable[[Any], msgspec.Struct]
    record: type[msgspec.Struct]
    keeps: tuple[str, ...] = ()
    """Fields that a result has with the values of its record."""
    reads: DeclaredReads | None = None

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return f"map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class Filter:
    """Records for which a predicate is true."""

    predicate: Callable[[Any], object]
    deletes: bool = False
    """True: updates come without their old rows, so a refused row deletes its key."""
    reads: DeclaredReads | None = None

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return f"filter {name_of(self.predicate)}"


@dataclass(frozen=True, slots=True)
class FlatMap:
    """Any number of output records for each record."""

    function: Callable[[Any], Iterable[msgspec.Struct]]
    record: type[msgspec.Struct]
    keeps: tuple[str, ...] = ()
    """Fields that a result has with the values of its record."""
    reads: DeclaredReads | None = None

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return f"flat_map {name_of(self.function)}"


@dataclass(frozen=True, slots=True)
class DropUpdateBefore:
    """Changes without the rows before updates (row kind -U). `key` identifies a row; empty: the known unique key."""

    key: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return "drop_update_before"


@dataclass(frozen=True, slots=True)
class Additions:
    """Inserts and updates as new rows (`+I`), without the rows before updates and the deletions."""

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
        return "additions"


@dataclass(frozen=True, slots=True)
class AssignEventTime:
    """Records with another event time. The watermark stays that of their sources."""

    time: str | Callable[[Any], int]

    @property
    def name(self) -> str:
        """Return the transform's name in errors."""
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
    reads: DeclaredReads | None = None


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
    reads: DeclaredReads | None = None


@dataclass(frozen=True, slots=True)
class SinkNode:
    """End of a stream."""

    name: str


StatelessTransform = Map | Filter | FlatMap | DropUpdateBefore | Additions | AssignEventTime | Union | SparkTransform
Operator = SourceNode | StatelessTransform | AsyncWait | Process | UpsertMaterialize | SinkNode


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


def transform_over(source: Node, nodes: Iterable[Node]) -> Node | None:
    """Return Spark's transform over a source among the nodes of its graph; None without one."""
    users = (
        node
        for node in nodes
        if any(node_input.node is source and node_input.side is None for node_input in node.inputs)
    )
    return next((user for user in users if isinstance(user.operator, SparkTransform)), None)


def name_of(function: Callable[..., Any]) -> str:
    """Return a function's name, for people."""
    return getattr(function, "__name__", type(function).__name__)


NULL_KEY: Final = [None]
"""`ctx.key` of a record whose key is null, for a function that takes such records. No other record has it: a tuple with a null is a null key."""


class OperatorFunction:
    """A keyed function of `headrace.operators`: a base class beside `KeyedProcessFunction` or `KeyedCoProcessFunction`.

    `retracts` says that the function may retract records that it emitted: it then emits `-U` and `+U`, or `-D`.
    `declared` holds the names of the side outputs that the pipeline takes; records for other side outputs are dropped.
    """

    KIND: ClassVar[str]
    """Name of the function in `headrace explain`."""
    TAKER: ClassVar[str]
    """Method of the stream that makes the function, for errors."""

    retracts: bool = False
    declared: frozenset[str] = frozenset()
    deletes_inserts: bool = False
    """Whether the function may emit `-D` though its inputs have inserts alone."""
    takes_upserts: tuple[int, ...] = ()
    """Numbers of the inputs whose updates may come without their old rows."""
    takes_null_keys: tuple[int, ...] = ()
    """Numbers of the inputs whose records come also with a null key, as `NULL_KEY`. Those of other inputs go to the quarantine."""
    needs_keys_of_deletions: bool = False
    """Whether the function reads nothing of a `-D` but its key, and the fields `read_of_deletions`."""
    read_of_deletions: tuple[str, ...] = ()
    emits_panes: bool = False
    """True: a result has only a part of the records of its window, and no field tells the parts apart."""
    has_row_of_each_key: bool = False
    """True: the result has one row for each key of the stream, whose fields hold the key under their names."""
    key_kind: ClassVar[Kind] = Kind.GROUP_BY
    """How the keys of the inputs are read."""

    def has_null_key(self, ctx: Any) -> bool:
        """Return whether the record or timer of `ctx` has a null key, which only a function that `takes_null_keys` gets."""
        return bool(self.takes_null_keys) and ctx.key == NULL_KEY

    def changes(self, name: str, keys: Sequence[Any], taken: Sequence[StreamChanges], /) -> StreamChanges:
        """Return the changes of the output of the operator `name`, by the keys (`KeyBy`) and the changes of its inputs.

        Raises `ValueError` where the result could not be right.
        """
        mode = ChangelogMode.RETRACT if self.retracts else ChangelogMode.INSERT
        may_delete = self.retracts and (self.deletes_inserts or any(not own.mode.is_insert for own in taken))
        unique = self.unique_keys(keys[0].fields, taken[0])
        return StreamChanges(mode, unique=unique, dated_back_by=name if may_delete else None)

    def unique_keys(self, fields: tuple[str, ...], _taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the unique keys of the result, by the fields of the stream's key and the changes of the first input."""
        key = self.key_of_rows(fields) if self.has_row_of_each_key else ()
        return (key,) if key else ()

    def key_of_rows(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of the stream's key, if the result has all of them; else none."""
        gives = function_types(cast("Any", self))[1]
        return fields if {*fields} <= {*gives.__struct_fields__} else ()

    def fields_of_deletions(self, _number: int, /) -> tuple[str, ...] | None:
        """Return the fields beside the key that the function reads of a `-D` of an input; None if it reads all."""
        return self.read_of_deletions if self.needs_keys_of_deletions else None

    def column_reads(self) -> ColumnReads:
        """Return what the results read of the inputs, apart from their keys. Raises `NotImplementedError` unless overridden."""
        raise NotImplementedError

    def reads_as_taken(self, *rows: Reads) -> ColumnReads:
        """Return what is read where results are records of the first input, with their times, chosen by what the `rows` read."""
        takes = function_types(cast("Any", self))[0][0]
        return ColumnReads(copied([*takes.__struct_fields__, TIME]), frozenset().union(*rows))

    def late_sides(self) -> dict[str, int]:
        """Return the side outputs of late records, with the number of the input that they come from."""
        return {side: int(side.endswith("_right")) for side in self.side_types() if side.startswith("late")}

    def set_aside_late(self, record: msgspec.Struct, ctx: Any, side: str = "late") -> None:
        """Send a record that is too late to the side output `side`, if the pipeline takes it, else drop it; count it in any case."""
        is_taken = side in self.declared
        if is_taken:
            ctx.output(side, record, kind=ctx.row_kind)
        ctx.count_too_late(dropped=not is_taken)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations.

        Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError

    def side_types(self) -> dict[str, type[msgspec.Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {}

    def declare_side(self, operator: str, name: str, record: object) -> None:
        """Emit records to the side output `name` from now on. `operator` is the name of the operator, for errors.

        Raises `ValueError` for a side output that the function does not have, `TypeError` for another type of records.
        """
        sides = self.side_types()
        if name not in sides:
            shown = " and ".join(f"'{side}'" for side in sides) or "none"
            has = f"one, {shown}" if len(sides) == 1 else shown
            msg = f"{self.TAKER} '{operator}' has no side output '{name}': it has {has}"
            raise ValueError(msg)
        if record is not sides[name]:
            msg = f"side output '{name}' of '{operator}' has records of type {sides[name].__name__}, not {record!r:.60}"
            raise TypeError(msg)
        self.declared |= {name}


class ToldEvent(NamedTuple):
    """Stored event of a key, as a function tells of it: its place, what it did to the versions of the row, and the row's fields; None for a deletion."""

    place: str
    what: str
    fields: dict[str, Any] | None


class VersionedFunction(OperatorFunction):
    """A function that stores the events of each key by their places, in `events`, and makes versions of a row of them.

    `truncates` holds the events that empty the table, by their places; None where there are none.
    """

    events: MapState[str, Any]
    truncates: BroadcastState[str, Any] | None = None

    def told(self, stored: Mapping[str, Any], truncates: Collection[str], /) -> list[ToldEvent]:
        """Return what the stored events of a key did, in the order of their places. `truncates` are the places of all truncates.

        Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError

    def may_be(self, record: Any, place: str, stored: Any) -> bool:
        """Return whether an event that comes in may be the stored one of a place. Raises `NotImplementedError` unless overridden."""
        raise NotImplementedError
