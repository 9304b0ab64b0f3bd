"""Arguments of operators: options of an aggregate, kinds of joins, window joins, ranks, rows over a frame, and windows."""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import msgspec

from headrace.api.column_reads import TIME, ColumnReads, Kind, Reads, copied, fields_read, read_by_user
from headrace.api.functions import KeyedCoProcessFunction, KeyedProcessFunction, TimeDomain, function_types
from headrace.api.graph import Emit, KeyBy, OperatorFunction, name_of
from headrace.api.ttl import StateTtl


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOptions:
    """How the records of each key are aggregated: see `Stream.aggregate`."""

    key: KeyBy
    """The key of the records."""
    emit: Emit
    """When results are emitted."""
    retract: bool
    """True: a result that is replaced is emitted again as `-U`."""
    retracting: bool
    """True: the input may retract records."""
    ttl: StateTtl | None


class History(enum.Enum):
    """Rows of each key in the table of `Stream.apply_changes`: slowly changing dimensions of type 1 and 2."""

    SCD1 = "scd1"
    """The current row."""

    SCD2 = "scd2"
    """All versions, each with the part of the sequence in which it is valid."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRules:
    """How the changes of each key are applied: see `Stream.apply_changes`. Lengths are in ms; None: for ever."""

    key: tuple[str, ...]
    sequence_by: tuple[str, ...]
    deletes: Callable[[Any], object] | tuple[str, Any] | None
    truncates: bool = False
    """True: a second input has the events that empty the table."""
    history: History
    track: tuple[str, ...]
    ignore_nulls: bool
    tombstones: int | None
    corrections: int | None

    @property
    def has_versions(self) -> bool:
        """Return whether the table holds all versions of a key."""
        return self.history is History.SCD2

    @property
    def keeps_events(self) -> bool:
        """Return whether the events of a key are stored: their order decides more than which one is the last."""
        return self.has_versions or self.ignore_nulls


class JoinType(enum.Enum):
    """Records of a join that are in the result although nothing matches them, as in SQL."""

    INNER = "inner"
    """None: the result has only pairs."""

    LEFT = "left"
    """Records of the stream on which `join` was called."""

    RIGHT = "right"
    """Records of the other stream."""

    FULL = "full"
    """Records of both streams."""

    @property
    def keeps_left(self) -> bool:
        """Return whether a left record without a match is in the result."""
        return self in {JoinType.LEFT, JoinType.FULL}

    @property
    def keeps_right(self) -> bool:
        """Return whether a right record without a match is in the result."""
        return self in {JoinType.RIGHT, JoinType.FULL}


class NullKeys(enum.Enum):
    """Records with a null key, on a side of a join whose records are in the result although nothing matches them."""

    KEEP = "keep"
    """They match nothing, as in SQL: the result has them without a partner."""

    QUARANTINE = "quarantine"
    """They go to the quarantine, as everywhere else."""


def kept_null_keys(join: str, null_keys: object, how: JoinType) -> tuple[int, ...]:
    """Return the numbers of a join's inputs that get records with a null key. `join` names it. Raises `TypeError` unless `null_keys` is one of `NullKeys`."""
    if not isinstance(null_keys, NullKeys):
        msg = f"{join}: null_keys must be NullKeys.KEEP or NullKeys.QUARANTINE, not {null_keys!r:.60}"
        raise TypeError(msg)
    sides = (how.keeps_left, how.keeps_right)
    return tuple(side for side, is_kept in enumerate(sides) if is_kept) if null_keys is NullKeys.KEEP else ()


def check_how(join: str, how: object, allowed: Sequence[JoinType] = tuple(JoinType)) -> None:
    """Check the kind of a join, which `join` names. Raises `TypeError` for another type, `ValueError` for a kind not allowed."""
    if not isinstance(how, JoinType):
        msg = f"{join}: how must be a JoinType, such as JoinType.LEFT, not {how!r:.60}"
        raise TypeError(msg)
    if how not in allowed:
        msg = f"{join}: how must be {' or '.join(map(str, allowed))}, not {how}"
        raise ValueError(msg)


Results = Callable[[Sequence[Any], Sequence[Any]], Iterable[Any]]
"""Function from a key's left and right records in a window to their results; one of the two may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin:
    """A join in windows: the types of left records, right records and results, and the function that makes results.

    `kind` is its name for people.
    """

    left: type[msgspec.Struct]
    right: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    kind: str
    results: Results
    takes_null_keys: tuple[int, ...] = ()
    time: TimeDomain = TimeDomain.EVENT_TIME
    retracting: bool = False
    """True: one of the inputs may retract records."""

    @property
    def keeps_records(self) -> bool:
        """Return whether results are left records, each at most once in a window."""
        return self.results in {matched, unmatched}


def pairs(emit: Callable[[Any, Any], Any], how: JoinType) -> Results:
    """Return the results function of an inner or outer join: one result per pair, or per record of the only side that has any."""

    def results(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
        if lefts and rights:
            return (emit(left, right) for left in lefts for right in rights)
        if lefts and how.keeps_left:
            return (emit(left, None) for left in lefts)
        if rights and how.keeps_right:
            return (emit(None, right) for right in rights)
        return ()

    return results


def matched(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
    """Return the results of a semi join: the left records, if there are right ones."""
    return lefts if rights else ()


def unmatched(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
    """Return the results of an anti join: the left records, if there are no right ones."""
    return () if rights else lefts


@dataclass(frozen=True, slots=True)
class Ranks:
    """First `n` records by `by`.

    `by` is a field, or a plain function of the record. `result` is the type of the emitted records; None: the records
    themselves, without a rank. With `ties`, records whose value equals that of the n-th one belong to them. Raises `ValueError` unless `n` is a whole number of at least 1.
    """

    n: int
    by: str | Callable[[Any], Any]
    descending: bool = True
    result: type[msgspec.Struct] | None = None
    ties: bool = False

    def __post_init__(self) -> None:
        """Refuse an `n` that is not a whole number of at least 1."""
        if self.n < 1:
            msg = f"the number of records must be a whole number of at least 1, not {self.n!r:.60}"
            raise ValueError(msg)


class Late(enum.Enum):
    """Rows that arrive after the watermark has passed their event time: see `Stream.over`."""

    DROP = "drop"
    """They change nothing: they are dropped, or go to the side output `late`. Results are inserts."""

    CORRECT = "correct"
    """They take their place, and each result that changes is emitted again, as `-U` and `+U`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverOptions:
    """Frame of the rows of each key, and late rows: see `Stream.over`. Lengths are in ms.

    Without `rows` and `within`, a frame begins with the first row of the key.
    """

    key: KeyBy
    """The key of the records."""
    order_by: tuple[str, ...] = ()
    """Fields that order rows of equal event time."""
    rows: int | None = None
    """Number of rows of a frame, the current one included."""
    within: int | None = None
    """How long before its row a frame begins."""
    keep: int = 0
    """How long behind the watermark a late row corrects results; 0: no late row does."""
    ttl: StateTtl | None = None


In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class WindowFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """A keyed function that emits results for each window of a key.

    Records that are too late go to the side output `late`, where the pipeline declares it; else they are dropped.
    """

    KIND = "windows"
    TAKER = "aggregate"
    LATE: ClassVar[str] = "late"

    @property
    def emits_late(self) -> bool:
        """Return whether records that are too late go to the side output `late`."""
        return self.LATE in self.declared

    def side_types(self) -> dict[str, type[msgspec.Struct]]:
        """Return the side output `late`."""
        return {self.LATE: function_types(self)[0][0]}


In2 = TypeVar("In2", bound=msgspec.Struct)


class JoinFunction(KeyedCoProcessFunction[In, In2, Out], OperatorFunction):
    """A keyed function that joins the records of two inputs.

    `pair_reads` has what the columns of a pair's result read; None: results are records of the first input. Records match where
    `condition` is true.
    """

    key_kind = Kind.JOIN
    time_kind: ClassVar[Kind] = Kind.JOIN
    """How the times of both inputs are read."""
    pair_reads: Mapping[str, Reads] | None = None
    condition: Callable[[Any, Any], object] | None = None

    def column_reads(self) -> ColumnReads:
        """Return what the results read of both inputs."""
        takes = function_types(self)[0]
        columns = copied(takes[0].__struct_fields__) if self.pair_reads is None else self.pair_reads
        times = [fields_read([TIME], self.time_kind, number=number) for number in range(len(takes))]
        on = () if self.condition is None else read_by_user(name_of(self.condition), Kind.JOIN, takes)
        return ColumnReads(columns, frozenset().union(*times, on))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """When a window emits early results: what `every` and `after_rows` of `headrace.operators` return.

    Raises `ValueError` unless one of `step` and `rows` is given, a whole number of at least 1.
    """

    step: int | None = None
    """Step of processing time (ms)."""
    rows: int | None = None
    """Number of rows of the window."""
    purging: bool = False
    """True: each result has only the records since the one before it."""

    def __post_init__(self) -> None:
        """Check the step or the number."""
        given: list[object] = [value for value in (self.step, self.rows) if value is not None]
        if len(given) != 1 or type(given[0]) is not int or given[0] < 1:
            msg = f"a Trigger has either a step (ms) or a number of rows, at least 1, not {given}: make it with every() or after_rows()"
            raise ValueError(msg)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowOptions:
    """When windows of a keyed stream fire, and which late records they take."""

    key: KeyBy
    """The key of the records."""
    retracting: bool
    """True: the input may retract records."""
    time: TimeDomain = TimeDomain.EVENT_TIME
    """Clock of the windows."""
    allowed_lateness: timedelta = timedelta(0)
    """How long after its end a window takes late records."""
    early: timedelta | Trigger | None = None
    """Step of the windows' time after which a window emits its result so far, or another trigger; None: only at its end."""


class Windows(abc.ABC):
    """Groups the records of a key by time or by number: base class of `Tumbling`, `Hopping`, `Cumulative`, `Calendar`, `Session` and `CountWindow`."""

    has_bounds: ClassVar[bool] = True
    """Whether a window has a start and an end."""

    @abc.abstractmethod
    def aggregation(self, takes: type[In], gives: type[Out], options: WindowOptions, /) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window.

        Raises `ValueError` or `TypeError`, with the reason, for what cannot be aggregated.
        """

    @abc.abstractmethod
    def ranking(self, takes: type[In], ranks: Ranks, options: WindowOptions, /) -> WindowFunction[In, Any]:
        """Return the function that emits the first records of each key and window.

        Raises `ValueError` or `TypeError`, with the reason, for what cannot be ranked.
        """

    @abc.abstractmethod
    def joining(self, join: WindowJoin, /) -> JoinFunction[Any, Any, Any]:
        """Return the function that joins the records of two streams in each window.

        Raises `ValueError`, with the reason, for windows that cannot be joined.
        """
