"""The hot objects of a record, in Python: what each record makes, reads and writes, and the loop over records.

`_objects.c` defines the same types in C. Each is a base: classes of the other packages derive from it, and add what is not hot.
What a base cannot do at once, it leaves to a method of the derived class that it declares here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from struct import Struct
from types import CodeType, CoroutineType
from typing import Any, Generic, TypeAlias, TypeVar, cast

T = TypeVar("T")

_FIRST = bytes(4)
"""End of the place of an element's first output."""

_HEADER = Struct(">qq")

Call: TypeAlias = "CoroutineType[Any, Any, None]"
Class: TypeAlias = type[Any]


class RunningTask:
    """A task that runs user code."""

    __slots__ = ("context",)

    context: Any
    """Context of the record whose code runs now."""


class StateFuture(Generic[T]):
    """Future of a state call."""

    __slots__ = ("_followers", "_owner", "_source", "_task", "answer", "done")

    _followers: list[Any]
    _owner: object
    _source: Any
    _task: Any
    answer: T
    """Answer of a complete future."""
    done: bool

    def __await__(self) -> Generator[Any, None, T]:
        """Return the answer; suspend until it has arrived, and all callbacks chained so far have run."""
        if not self.done or self._task.context.callbacks:
            yield self
        return self.answer


class Cell:
    """One entry of state: its decoded value, its TTL stamp (ms), and whether backend and cache differ.

    `value` is None if there is none. `stored` is None until it is known whether the backend has the entry. `own_ttl` is
    the entry's own lifetime (ms), 0 for the state's.
    """

    __slots__ = ("dirty", "own_ttl", "stamp", "stored", "value")

    def __init__(self, value: Any, stamp: int, own_ttl: int = 0, *, stored: bool | None, dirty: bool = False) -> None:
        self.value = value
        self.stamp = stamp
        self.own_ttl = own_ttl
        self.stored = stored
        self.dirty = dirty

    @staticmethod
    def all_of(stored: Iterable[bytes | None], decode: Callable[[bytes], Any], /) -> list[Cell]:
        """Return a cell of each of a backend's values: stamp and own lifetime, 8 bytes each, and what `decode` takes. None is no value."""
        return [_cell_of(value, decode) for value in stored]


def _cell_of(stored: bytes | None, decode: Callable[[bytes], Any]) -> Cell:
    if stored is None:
        return Cell(None, 0, stored=False)
    if len(stored) < _HEADER.size:
        msg = f"{stored!r} is no stored value"
        raise ValueError(msg)
    stamp, own_ttl = _HEADER.unpack_from(stored)
    return Cell(decode(stored[_HEADER.size :]), stamp, own_ttl, stored=True)


class RecordContext:
    """A record, or a timer, on its way through the controller."""

    __slots__ = (
        "awaited",
        "call",
        "callbacks",
        "due_in",
        "epoch",
        "key_json",
        "overdue",
        "owns_key",
        "record",
        "references",
    )

    awaited: Any
    """Future that the code waits for, while `call` is set."""

    def __init__(self, key_json: bytes, record: Any) -> None:
        """Make the context of `record`, whose key is `key_json`."""
        self.key_json = key_json
        self.record = record
        self.references = 0
        self.owns_key = False
        self.epoch: Any = None
        self.due_in: Any = None
        """The epoch in which a timer counts, as long as it does not count; None: the one that is open then."""
        self.call: Call | None = None
        self.callbacks: deque[Any] | None = None
        self.overdue: list[Any] | None = None
        """Heap of overdue timers, which run right after it, before anything else of its key (`KeyedWork.after`)."""


class Outputs:
    """Emitted records of one operator and task."""

    __slots__ = ("_emitted", "_insert", "main", "type")

    main: list[Any]
    type: Class | None
    """Type of records that are emitted as they are; None where code may change them."""

    def __init__(self, emitted: Class, insert: int) -> None:
        """Take the class of emitted records, a tuple of place, time, kind and record, and the kind of records for which code names none."""
        self._emitted = emitted
        self._insert = insert

    def taken(self, record: Any, kind: Any) -> Any:
        """Return what the main output takes for a record of another type. Raises `TypeError` if it takes none of that type."""
        raise NotImplementedError

    def time_of(self, timestamp: int) -> int:
        """Return the time of a record that code gave (ms). Raises an error if it cannot be stored."""
        raise NotImplementedError


class ProcessContext(RecordContext):
    """A record or timer of a keyed process, at its place in arrival order."""

    __slots__ = (
        "_outputs",
        "_timers",
        "expired_until",
        "function",
        "index",
        "order",
        "row_kind",
        "timer",
        "timestamp",
        "watermark",
    )

    order: bytes
    timestamp: int
    watermark: int
    expired_until: int

    def __init__(  # noqa: PLR0917 - by position: names cost time, once per record
        self,
        outputs: Any,
        timers: Any,
        key_json: bytes,
        function: Callable[..., Any] | None,
        record: Any,
        timer: Any = None,
    ) -> None:
        """Make a context without a place."""
        # Without super(): once per record, that call alone is a tenth of the framework's cost.
        self.key_json = key_json
        self.record = record
        self.references = 0
        self.owns_key = False
        self.epoch = self.due_in = None
        self.call = None
        self.callbacks = None
        self.overdue = None
        self.function = function
        self.timer = timer
        self._outputs = outputs
        self._timers = timers
        self.row_kind = outputs._insert  # noqa: SLF001 - its own kind
        self.index = 0

    def collect(self, record: Any, /, kind: Any = None, timestamp: int | None = None) -> None:
        """Emit a record downstream, as it is now.

        Raises `TypeError` for a record of another type than the output's, `ValueError` for a row kind that it does not declare.
        """
        outputs = self._outputs
        if kind is None:
            kind = outputs._insert  # noqa: SLF001 - its own kind
        if type(record) is not outputs.type:
            record = outputs.taken(record, kind)
        at = self.timestamp if timestamp is None else outputs.time_of(timestamp)
        index = self.index
        # As `records.order.output_order`. Most records emit once: a call less saves a twentieth of the framework's cost.
        order = self.order + (_FIRST if index == 0 else index.to_bytes(4))
        self.index = index + 1
        outputs.main.append(tuple.__new__(outputs._emitted, (order, at, kind, record)))  # noqa: SLF001 - its own kind


class ValueCells:
    """Cached entries of a state with one entry for each key: reads and writes of a value that is cached need nothing else."""

    __slots__ = (
        "_add",
        "_ahead",
        "_cells",
        "_decode",
        "_done",
        "_get_result",
        "_loading",
        "_task",
        "_ttl",
        "blocking",
        "hits",
    )

    _add: Callable[[Any, Any], Any]
    """Adds a value to an accumulator."""
    _ahead: dict[bytes, bytes | None]
    """What the backend has for entries that code will probably come upon, by their names."""
    _decode: Callable[[bytes], Any]
    """Returns the value of its JSON."""
    _get_result: Callable[[Any], Any]
    """Returns the result of an accumulator."""
    _cells: dict[bytes, Cell]
    """Cells by the names of entries: the key, and for a namespace a zero byte and its name."""
    _done: Any
    """Answer of calls that answer None. Others are futures of the same class."""
    _loading: dict[int, Any]
    """Calls that wait, by the `id` of their code's context."""
    _task: Any
    _ttl: Any
    blocking: bool
    """Whether the code is a plain `def`: its calls return the value itself."""
    hits: int
    """Reads answered from memory so far."""

    def value(self) -> Any:
        """Read the key's value; `None` if there is none or it has expired."""
        context = self._task.context
        cell = self._cell(context.key_json)
        if cell is None or not context.owns_key or (self._loading and id(context) in self._loading):
            return self.read_value()
        value = cell.value if self._ttl is None else self.alive(context, cell)
        if self.blocking:
            return value
        self.hits += 1
        return self._done if value is None else type(self._done)(value, self._task)

    def update(self, value: Any, /, ttl: Any = None) -> Any:
        """Set the key's value; None is the same as `clear`."""
        context = self._task.context
        cell = self._cell(context.key_json)
        is_usual = context.owns_key and ttl is None and value is not None
        if cell is None or not is_usual or (self._loading and id(context) in self._loading):
            return self.write_value(value, ttl)
        if self._ttl is None:  # `set` is inlined: the call takes 0.03 us
            cell.value, cell.stamp, cell.own_ttl, cell.dirty = value, context.timestamp, 0, True
        else:
            self.set(context, cell, value)
        return None if self.blocking else self._done

    def _cell(self, name: bytes) -> Cell | None:
        """Return the cell of an entry that is cached, or was read ahead; None if there is none, or its value does not fit the declared type."""
        cell = self._cells.get(name)
        if cell is None and name in self._ahead:
            with suppress(Exception):  # the store reads it again, and raises the error that names it
                cell = self._cells[name] = _cell_of(self._ahead[name], self._decode)
                del self._ahead[name]
        return cell

    def may_act(self, access: Any) -> bool:
        """Return whether a call of the code at `access` may act at once: the key is its own, and no earlier call of it waits."""
        raise NotImplementedError

    def read_value(self) -> Any:
        """Read the key's value, which need not be cached."""
        raise NotImplementedError

    def write_value(self, value: Any, ttl: Any) -> Any:
        """Set the key's value, which need not be cached, with a lifetime of its own; None is the same as `clear`."""
        raise NotImplementedError

    def alive(self, access: Any, cell: Cell) -> Any:
        """Return the value of a state with TTL; None if it is expired and invisible."""
        raise NotImplementedError

    def set(self, access: Any, cell: Cell, value: Any) -> None:
        """Set a value of a state with TTL."""
        raise NotImplementedError


class CachedHandle:
    """Handle of accumulators in one namespace: adds to a cached one, and reads its result."""

    __slots__ = ("_store", "_suffix")

    _store: Any
    _suffix: bytes
    """End of the names of entries in the namespace."""

    def add(self, value: Any, /, ttl: Any = None) -> Any:
        """Add `value` to the accumulator. Raises `ValueError` for None."""
        store = self._store
        context = store._task.context  # noqa: SLF001 - its own store
        cell = None if value is None or ttl is not None else self._cell(store, context)
        if cell is None:
            return self.add_value(value, ttl)
        store.hits += 1
        accumulator = store._add(value, cell.value)  # noqa: SLF001 - its own store
        if accumulator is not None:  # None removes the entry
            cell.stamp = context.timestamp
        cell.value, cell.own_ttl, cell.dirty = accumulator, 0, True
        return store.answer(None)

    def get(self) -> Any:
        """Read the result; `None` if nothing was added, or it has expired."""
        store = self._store
        cell = self._cell(store, store._task.context)  # noqa: SLF001 - its own store
        if cell is None:
            return self.read_result()
        store.hits += 1
        return store.answer(store._get_result(cell.value))  # noqa: SLF001 - its own store

    def _cell(self, store: Any, context: Any) -> Cell | None:
        """Return the cell of an accumulator that the code may use at once; None if it has to ask the store."""
        cell: Cell | None = store._cell(context.key_json + self._suffix)  # noqa: SLF001 - its own store
        is_ready = cell is not None and cell.value is not None and store._ttl is None  # noqa: SLF001
        return cell if is_ready and store.may_act(context) else None

    def add_value(self, value: Any, ttl: Any) -> Any:
        """Add to an accumulator that need not be cached."""
        raise NotImplementedError

    def read_result(self) -> Any:
        """Read the result of an accumulator that need not be cached."""
        raise NotImplementedError


class RecordLoop:
    """Runs the code of one record after the other, until one has to wait for a request, a callback or a timer.

    Nothing else is in flight meanwhile. `contexts` is the class of contexts, `inputs` the function for each input, `kinds` the kind of
    rows for each number. Where `due` is not empty, `before` returns what runs before a record. `not_plain` returns the error for
    what a plain function has returned; None where functions return coroutines.
    """

    __slots__ = (
        "_before",
        "_contexts",
        "_due",
        "_inputs",
        "_kinds",
        "_not_plain",
        "_outputs",
        "_task",
        "_timers",
        "late",
    )

    def __init__(  # noqa: PLR0917 - by position, as in C
        self,
        task: Any,
        contexts: type[Any],
        outputs: Outputs,
        timers: Any,
        inputs: tuple[Callable[..., Any], ...],
        kinds: tuple[Any, ...],
        due: Collection[Any],
        before: Callable[[Any], Any],
        not_plain: Callable[[Any], BaseException] | None,
    ) -> None:
        """Bind the loop to its task."""
        self._task = task
        self._contexts = contexts
        self._outputs = outputs
        self._timers = timers
        self._inputs = inputs
        self._kinds = kinds
        self._due = due
        self._before = before
        self._not_plain = not_plain
        self.late = 0
        """Number of records that arrived at or behind the watermark."""

    def run(self, elements: Iterator[Sequence[Any]], watermark: int, /) -> tuple[Call, object] | None:
        """Run records until one has to wait: return the coroutine to resume, and what it awaits.

        Return None if there are no more records, or if the last one waits for a timer or for the end of its requests and callbacks.
        """
        loop = cast("Call", self._run(elements, watermark))
        try:
            awaited = loop.send(None)
        except StopIteration:
            return None
        # The loop ends with a record that has waited, also for a future of user code.
        if self._task.context.callbacks is None:
            self._task.context.callbacks = deque()
        return loop, awaited

    async def _run(self, elements: Iterator[Sequence[Any]], watermark: int) -> None:
        """Run records. A coroutine that is awaited here ends without a `StopIteration`, which saves the most."""
        task, due, before, not_plain = self._task, self._due, self._before, self._not_plain
        contexts, outputs, timers, inputs, kinds = (
            self._contexts,
            self._outputs,
            self._timers,
            self._inputs,
            self._kinds,
        )
        for order, timestamp, kind, key_json, record, input_ in elements:
            self.late += timestamp <= watermark
            function = inputs[input_]
            context = task.context = contexts(outputs, timers, key_json, function, record)
            context.order = order
            context.timestamp = timestamp
            context.watermark = context.expired_until = watermark
            context.row_kind = kinds[kind]
            context.owns_key = True
            if due and (earlier := before(context)) is not None:
                task.run_behind(earlier, context)
                return
            context.references = 1
            call = function(record, context)
            if call is not None:
                if not_plain is not None:
                    raise not_plain(call)
                await call
            if context.epoch is not None or context.callbacks is not None or context.overdue:
                task.end_of_code(context)
                return
            context.references = 0


LOOP_CODE: CodeType | None = RecordLoop._run.__code__  # noqa: SLF001 - of this module
"""Code of the coroutine that `RecordLoop.run` returns in place of a record's own; None where it returns that."""
