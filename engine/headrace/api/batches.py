"""Functions that take many records with one call: bundles of a key, or columns.

A bundle has several records of one key (Flink: `MapBundleFunction`, mini-batch aggregation). Columns have all records
of a task in one micro-batch.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace.api.functions import Context

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


class BundledRecord(Protocol):
    """A record with its place in arrival order, its event time (ms), the number of its row kind, and that of its input."""

    @property
    def order(self) -> bytes:
        """Return the place in arrival order."""
        ...

    @property
    def record(self) -> Any:
        """Return the record."""
        ...

    @property
    def timestamp(self) -> int:
        """Return the event time (ms)."""
        ...

    @property
    def kind(self) -> int:
        """Return the number of the `RowKind`."""
        ...

    @property
    def input(self) -> int:
        """Return the number of the input that the record came by."""
        ...


class Bundle:
    """Records of one key in arrival order. None is late, and no timer of the key fires between them.

    There are at least two, or one where the function `takes_single_records`. `current` is the record that the function
    works on: state is stamped with its event time, what the function emits has its place in arrival order, and an error
    of the function names it.

    `next_watermark` is the watermark right behind the records (ms); None if more records may come before it.
    """

    __slots__ = ("_context", "current", "next_watermark", "records", "waiting")

    def __init__(self, records: Sequence[BundledRecord], context: Any, next_watermark: int | None) -> None:
        """Take the records and the engine's context, whose event time and place are those of the current record."""
        self.records = records
        self.next_watermark = next_watermark
        self.waiting: tuple[Sequence[BundledRecord], int] | None = None
        """Records that wait for a later bundle, and until when: see `wait`."""
        self._context = context
        self.work_on(records[0])

    def work_on(self, record: BundledRecord) -> None:
        """Make a record the current one. Its outputs, and its elements of lists, are numbered from 0."""
        self.current = record
        context = self._context
        context.timestamp, context.order, context.index = record.timestamp, record.order, 0

    def walk(self, records: Iterable[BundledRecord]) -> Iterator[BundledRecord]:
        """Yield some records of the bundle, each as the current one."""
        for record in records:
            self.work_on(record)
            yield record

    def quarantine(self, reason: str) -> None:
        """Move the current record to the job's quarantine, with the reason."""
        self._context.quarantine(reason)

    def work_on_timer(self, timestamp: int, namespace: str = "") -> None:
        """Go on as the code of a timer of the key that is due at `next_watermark`, as if the bundle had registered it.

        `ctx` has the timer's time, and what the function emits has its place. Called behind all work on records. No
        state may be used behind it.
        """
        self._context.work_on_timer(timestamp, namespace)

    @property
    def may_wait(self) -> bool:
        """Return whether records may `wait`: the next watermark is known, nothing else has run since the bundle came, and they have not waited often."""
        return self.next_watermark is not None and self._context.may_wait and not self._context.has_waited

    def wait(self, records: Sequence[BundledRecord], until: int) -> None:
        """Let some records, in arrival order, wait for a later bundle; called once, while they `may_wait`.

        The key has no timer before `until` (ms), and gets none from these records or later ones. The function must not
        have changed anything for them, and awaits nothing afterwards.
        """
        self.waiting = records, until

    def at(self, timestamp: int) -> Bundle:
        """Return the bundle with this event time (ms) in place of that of each record, and without a known next watermark.

        State is stamped with the records' own event times all the same.
        """
        return _BundleAt(self, timestamp)


class _RecordAt:
    """A record of a bundle at another event time; `original` is at its own."""

    __slots__ = ("input", "kind", "order", "original", "record", "timestamp")

    def __init__(self, record: BundledRecord, timestamp: int) -> None:
        self.original = record
        self.order, self.record, self.timestamp = record.order, record.record, timestamp
        self.kind, self.input = record.kind, record.input


class _BundleAt(Bundle):
    """A bundle whose records have another event time. The bundle that the engine has keeps its own ones, and works on them."""

    __slots__ = ("_bundle",)

    def __init__(self, bundle: Bundle, timestamp: int) -> None:
        self._bundle = bundle
        super().__init__([_RecordAt(record, timestamp) for record in bundle.records], bundle._context, None)  # noqa: SLF001 - of its base class

    def work_on(self, record: Any) -> None:
        self.current = record
        self._bundle.work_on(record.original)


class DueTimer(Protocol):
    """A timer with its time (ms)."""

    @property
    def timestamp(self) -> int:
        """Return the time (ms)."""
        ...


class TimerBundle(abc.ABC):
    """Timers of one key that one watermark fires, in order of time, all of event time and without a namespace."""

    timers: Sequence[DueTimer]

    @abc.abstractmethod
    def walk(self) -> Iterator[DueTimer]:
        """Yield the timers. What the function does next is done at the time and the place of the timer that it has got."""


class BundleFunction(abc.ABC):
    """A keyed function that also takes bundles: reads and writes of its state are shared by the records of a bundle.

    The engine bundles records of a key up to a watermark that fires a timer of the key, and as long as not too many records
    wait in all (`async_state.in_flight_records_limit`). Late records come singly, to `process`.

    State and output must be those of `process`, called for each record in turn. So a function that emits records, or
    adds elements to lists, works on each record once: both are numbered in the order of these calls. A function that
    has a state with TTL gets no bundles, since each record would renew lifetimes at its own time.
    """

    @property
    def takes_bundles(self) -> bool:
        """Return whether the function takes bundles; if not, all records come singly. By default it does."""
        return True

    def first_timer(self, timestamp: int, /) -> int | None:
        """Return a time before which a record at `timestamp` registers no event-time timer (both in ms).

        A later record has the same time, or a later one. None, the default, means that nothing is known, or that the
        watermark of a record matters: then no watermark lies between the records of a bundle. Otherwise the watermark
        of `ctx` is the last one before the first record.
        """
        del timestamp
        return None

    @property
    def waits_to_end(self) -> bool:
        """Return whether a bundle has all records of its key in a micro-batch, late ones included. By default it has not.

        Such a function has no timers, and depends on no watermark. All records of a task wait in memory.
        """
        return False

    @property
    def takes_single_records(self) -> bool:
        """Return whether a bundle may be a single record where its `next_watermark` is known. By default it may not."""
        return False

    @property
    def takes_timers(self) -> bool:
        """Return whether the function takes bundles of timers, too, with `on_timers`. By default it does not."""
        return False

    def read_by_timer(self, timestamp: int, /) -> str | None:
        """Return the namespace of the state of single values that a timer at `timestamp` (ms) reads, if known: it is read ahead."""
        del timestamp
        return None

    async def on_timers(self, bundle: TimerBundle, ctx: Context, /) -> None:
        """Do what `on_timer` would do for each timer of a bundle, but register no timer that is due."""
        raise NotImplementedError

    @abc.abstractmethod
    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Process the records of a bundle. The event time of `ctx` is that of the current record."""


class BundleAggregate(abc.ABC):
    """An `AggregateFunction` that adds the values of one call together."""

    @abc.abstractmethod
    def add_all(self, values: Iterable[Any], accumulator: Any, /) -> Any:
        """Return the accumulator with values added: the one that `add` would return after the last of them."""


def _nothing(places: Sequence[tuple[int, Any]]) -> list[Any]:
    return [None for _ in places]


@dataclass(frozen=True, slots=True)
class KeyedColumns:
    """Records in arrival order, as columns. `values` holds the function's state of each key before them; None without one."""

    records: pa.StructArray
    timestamps: pa.Int64Array
    """Event times (ms)."""
    kinds: pa.Int32Array
    """Numbers of the `RowKind`."""
    watermarks: npt.NDArray[np.int64]
    """For each record, the last watermark before it (ms)."""
    bundled: Callable[[], Iterator[Sequence[BundledRecord]]]
    """Function that yields the records as objects, some at a time."""
    objects: Callable[[pa.Int64Array], Iterator[Sequence[BundledRecord]]]
    """Function that yields some records as objects, given by their places, some at a time."""
    columns_of: Callable[[Sequence[Any]], pa.StructArray]
    """Function that returns other records in the form of `records`; None is a null."""
    keys: Sequence[bytes]
    """Different keys, as JSON, or different pairs of key and namespace. Each has at least one record."""
    key_numbers: pa.Int32Array
    """For each record, the place of its key in `keys`."""
    result_type: pa.StructType
    """Type of the emitted records as columns."""
    results_of: Callable[[Sequence[Any]], pa.StructArray]
    """Function that returns emitted records in the form of results. Raises `ValueError` for one that columns cannot store."""
    namespaces: Sequence[str] = ()
    """The namespace of each of the `keys`, where the state is in namespaces."""
    values: Sequence[Any] = ()
    last_watermark: int | None = None
    """The last watermark of the micro-batch (ms), where these are all of its records; None if more may come, or without any."""
    key_of: Callable[[bytes], Any] = bytes
    """Function that returns one of the `keys` as `ctx.key` has it."""
    entries: Sequence[Mapping[Any, Any]] = ()
    """Entries of the function's map of each key before the records, in order of their names, if it `reads_entries`."""
    read_entries: Callable[[Sequence[tuple[int, Any]]], list[Any]] = _nothing
    """Function that returns entries of the function's map before the records, each of one of the `keys`, given by its place there, and a name."""
    read: Callable[[Sequence[tuple[int, str]]], list[Any]] = _nothing
    """Function that returns further values of the state, each for one of the `keys`, given by its place there, in a namespace."""


@dataclass(frozen=True, slots=True)
class EmittedColumns:
    """Emitted records in the order of `collect`."""

    rows: pa.Int64Array
    """For each result, the place of the record, or of the timer, that it belongs to."""
    indices: pa.Int32Array
    """For each result, its number among those of the same record or timer, from 0 on."""
    timestamps: pa.Int64Array
    kinds: pa.Int32Array
    records: pa.StructArray


class ColumnTimer(NamedTuple):
    """Timer of event time for one of the `keys`, given by its place there."""

    key: int
    timestamp: int
    namespace: str = ""


class TimerColumns(NamedTuple):
    """Timers of event time without a namespace, as columns: the places of their keys among the `keys`, and their times (ms)."""

    key_numbers: npt.NDArray[np.int64]
    timestamps: npt.NDArray[np.int64]


class NamespaceColumns(NamedTuple):
    """Namespaces of some of the `keys`, as columns: the places of the keys, and the names. None is empty."""

    key_numbers: npt.NDArray[np.int64]
    names: pa.StringArray


@dataclass(frozen=True, slots=True)
class DueColumns:
    """Timers that watermarks of a micro-batch fire, behind all records of their keys, in the order of their places."""

    keys: Sequence[bytes]
    """Different keys, as JSON, in the order of their bytes."""
    timers: TimerColumns
    result_type: pa.StructType
    """Type of the emitted records as columns."""
    key_of: Callable[[bytes], Any]
    """Function that returns one of the `keys` as `ctx.key` has it."""
    read: Callable[[NamespaceColumns], list[Any]]
    """Function that returns the values of the state in some namespaces."""


class FiredTimer(NamedTuple):
    """Timer that the records register, and that a watermark of the micro-batch fires: `emit` emits what it emits. No timer is stored."""

    key: bytes
    timestamp: int
    namespace: str
    emit: Callable[[Context], None]


class ChangedEntry(NamedTuple):
    """Changed entry of the map of one of the `keys`, given by its place there."""

    key: int
    name: Any
    value: Any
    """None for an entry that is removed."""
    timestamp: int | None
    """Event time of the last record that wrote the entry (ms); None if none of these has."""


class ChangedValue(NamedTuple):
    """Changed value of the state that `KeyedColumns.read` has returned, for one of the `keys`, given by its place there, in a namespace."""

    key: int
    namespace: str
    value: Any
    """None for a value that is removed."""
    timestamp: int
    """Event time of the last record that wrote the value (ms)."""


@dataclass(frozen=True, slots=True)
class ColumnResults:
    """State of each key after the records, and what they emit, or the timers that they register."""

    values: Sequence[Any]
    """The value of each of the `keys`; None for one that is removed."""
    emitted: EmittedColumns | None = None
    """None where only timers emit something."""
    timers: Iterable[ColumnTimer] = ()
    deleted_timers: Iterable[ColumnTimer] = ()
    fired: Iterable[FiredTimer] = ()
    due: TimerColumns | None = None
    """Further timers, which the records register and the `last_watermark` fires: only where the function `fires_columns`. They may be stored."""
    entries: Iterable[ChangedEntry] = ()
    others: Iterable[ChangedValue] = ()
    timestamps: Sequence[int | None] | None = None
    """Event time of the last record that wrote each value (ms), None if none of these has. If left out: that of the key's last record."""
    left: npt.NDArray[np.bool_] | None = None
    """For each of the `keys`, whether its records have to be processed one by one: the results change and emit nothing of it. None if none has to."""


@dataclass(frozen=True, slots=True)
class FiredColumns:
    """Results of timers, and the values of the state that they remove, all of which have been read."""

    emitted: EmittedColumns
    removed: NamespaceColumns


class ColumnFunction(abc.ABC):
    """A keyed function with one state of single values, and at most one map outside of namespaces, that also takes columns.

    Records that are taken as columns emit nothing to side outputs. The engine gives it columns where no record is held and state is accessed asynchronously. `values` are those that have not expired
    before the key's first record; no other state may have a TTL, and each value that is set begins its lifetime anew. State and
    output must be those of `process`, or of `process_bundle`, for the same records. Timers fire behind all records, also
    those of watermarks between them.
    """

    @property
    @abc.abstractmethod
    def takes_columns(self) -> bool:
        """Return whether the function can take columns at all."""

    def taken_singly(self, columns: KeyedColumns, /) -> npt.NDArray[np.bool_] | None:
        """Return for each of the keys whether its records have to be processed one by one; None, the default, if none of them has to.

        `columns` have neither `values` nor `entries` yet. All other methods get only the records of the other keys.
        """
        del columns
        return None

    def in_namespaces(self, columns: KeyedColumns, /) -> KeyedColumns | None:
        """Return the records by key and namespace of their state, without `values`; None if they have to be processed one by one.

        By default the state is in no namespace.
        """
        return columns

    @abc.abstractmethod
    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the records; None if they have to be processed one by one. Changes nothing."""

    @property
    def reads_entries(self) -> bool:
        """Return whether columns need all entries of the function's map; if not, `read_entries` reads those that matter. By default they do."""
        return True

    @property
    def fires_columns(self) -> bool:
        """Return whether timers of event time without a namespace may fire together, with `fire_columns`. By default they may not."""
        return False

    def fire_columns(self, due: DueColumns, /) -> FiredColumns | None:
        """Return what timers of many keys do; None if they have to fire key by key. Changes nothing."""
        raise NotImplementedError
