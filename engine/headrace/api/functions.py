"""User functions, the contexts that they get, and the blocks that they declare."""

from __future__ import annotations

import abc
import enum
import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, get_args, get_origin

import msgspec

from headrace.api.changelog import ChangelogMode
from headrace.api.records import RowKind
from headrace.api.states import AggregatingState, ReducingState, ValueState
from headrace.names import check_name

In = TypeVar("In", bound=msgspec.Struct)
In1 = TypeVar("In1", bound=msgspec.Struct)
In2 = TypeVar("In2", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)
Broadcast = TypeVar("Broadcast", bound=msgspec.Struct)

BROADCAST_METHOD = "process_broadcast"
VISIT_METHOD = "visit"


class TimeDomain(enum.StrEnum):
    """Clock that makes a timer fire."""

    EVENT_TIME = "event_time"
    """The watermark."""

    PROCESSING_TIME = "processing_time"
    """The wall clock, as the driver read it for the micro-batch."""


class Timers(Protocol):
    """Timers of the current key (FLIP-425, "Timers"). Registering a timer twice has the effect of registering it once.

    Times are milliseconds since the epoch. Timers of a key and domain fire in order of time, and timers of one timestamp
    in order of their namespaces. An event-time and a processing-time timer for the same time are two timers, and so
    are timers in different namespaces.

    A `namespace` is any text without a zero character, such as the name of a window; `on_timer` reads it in
    `ctx.namespace`. Registering and deleting cost the same, however many timers a key has. All methods raise
    `ValueError` for another text.
    """

    def register_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once the watermark reaches `timestamp` (ms).

        A timer that fires at the end of the input cannot register further ones: there this does nothing.
        """
        ...

    def delete_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Delete a timer of this key and namespace; do nothing if there is none."""
        ...

    def register_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once processing time reaches `timestamp` (ms).

        It fires at the start of the first later micro-batch whose processing time has reached `timestamp`, before its
        records; or right after the current record or timer, if processing time has reached it already. Both depend on
        when runs happen, and so do results that depend on such a timer.
        """
        ...

    def delete_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Delete a processing-time timer of this key and namespace; do nothing if there is none."""
        ...


class Context(Protocol):
    """Describes the record or timer that runs, takes the records that it emits, and holds the timers of its key."""

    @property
    def key(self) -> Any:
        """Return the key of the record or timer, as JSON has it.

        Several parts are a list; a day and a decimal are their texts, such as `2026-01-31` and `1.50`, and bytes base64.
        """
        ...

    @property
    def timestamp(self) -> int:
        """Return the event time of the record or timer (ms): state is stamped with it, and emitted records carry it.

        In a processing-time timer it is the timestamp right after the watermark, or 0 before the first watermark.
        """
        ...

    @property
    def watermark(self) -> int:
        """Return the last watermark before this record in arrival order (ms); in an event-time timer, the timer's time."""
        ...

    @property
    def processing_time(self) -> int:
        """Return the wall clock as the driver read it for this micro-batch (ms): the same in all tasks and retries."""
        ...

    @property
    def time_domain(self) -> TimeDomain | None:
        """Return the clock that made the timer fire; None while a record is processed."""
        ...

    @property
    def namespace(self) -> str:
        """Return the namespace in which the timer was registered; empty without one, and while a record is processed."""
        ...

    @property
    def row_kind(self) -> RowKind:
        """Return the record's row kind; `INSERT` in `on_timer` and for sources without row kinds."""
        ...

    @property
    def timers(self) -> Timers:
        """Return the timers of this key."""
        ...

    def collect(
        self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT, *, timestamp: int | None = None
    ) -> None:
        """Emit a record downstream as it is now, in the order of these calls.

        `timestamp` is its event time (ms), by default this context's. Later changes of the record have no effect: a record whose type
        is not frozen, or holds a list or the like, is copied.
        """
        ...

    def output(self, name: str, record: msgspec.Struct, /) -> None:
        """Emit a record to the side output `name`, which the pipeline must declare, as it is now."""
        ...

    def quarantine(self, reason: str, /) -> None:
        """Move the current record to the job's quarantine, with the reason. Records emitted before stay emitted.

        Call it for input that cannot be processed. Raises `RuntimeError` in a timer, which has no record.
        """
        ...


class BroadcastContext(Protocol):
    """Describes the broadcast record that runs. It has no key, emits nothing, and registers no timers: `visit` does, for each key."""

    @property
    def timestamp(self) -> int:
        """Return the event time of the record (ms)."""
        ...

    @property
    def watermark(self) -> int:
        """Return the last watermark before this record in arrival order (ms)."""
        ...

    @property
    def processing_time(self) -> int:
        """Return the wall clock as the driver read it for this micro-batch (ms), as `Context.processing_time`."""
        ...

    @property
    def row_kind(self) -> RowKind:
        """Return the record's row kind."""
        ...

    def visit_keys(self, state: ValueState[Any] | ReducingState[Any] | AggregatingState[Any, Any, Any], /) -> None:
        """Call `visit` with this record for each key that has a value in `state`, before any later record (Flink, `applyToKeyedState`).

        The keys are those right behind `process_broadcast`. Finding them reads all state of the operator, so this is for records that
        are rare. Called for several states, it visits a key once. Raises `TypeError` for another kind of state, and `NotImplementedError` unless the function
        has a `visit`.
        """
        ...

    def quarantine(self, reason: str, /) -> None:
        """Move the record to the job's quarantine, with the reason. Changes of broadcast state before stay.

        Raises `TypeError` or `ValueError` for a reason that is no text, or is not UTF-8.
        """
        ...


class KeyedFunction:
    """Base class of functions that have keyed state and timers."""

    _inputs: ClassVar[tuple[str, ...]]
    """Names of the methods that take records, by input."""
    _emits: ClassVar[ChangelogMode | None] = None
    """Mode of what the function emits, where `process(emits=...)` declares none."""

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Handle a timer of the current key. Called when the watermark, or processing time, reaches `timestamp` (ms).

        `ctx.time_domain` names the clock. By default this does nothing.
        """


class KeyedProcessFunction(KeyedFunction, abc.ABC, Generic[In, Out]):
    """Per-key logic with state and timers.

    One instance serves all keys of a task: keep data of a key in state only, never in attributes.
    An exception fails the micro-batch, of which nothing is committed.

    In a function of `async def` methods, state calls return a `StateFuture`, and other keys' records run while one
    waits. In a function of plain `def` methods, state calls return the value itself, and all records wait for each
    call. Both methods must be of the same kind. Results are the same.
    """

    _inputs = ("process",)

    @abc.abstractmethod
    async def process(self, record: In, ctx: Context, /) -> None:
        """Handle one record. The records of a key arrive one after the other, in arrival order."""


class KeyedCoProcessFunction(KeyedFunction, abc.ABC, Generic[In1, In2, Out]):
    """Per-key logic over two inputs, which share state and timers.

        class Paid(KeyedCoProcessFunction[Order, Payment, Line]):
            order = ValueState("order", Order)

            async def process1(self, order, ctx, /): ...
            async def process2(self, payment, ctx, /): ...

    The records of a key arrive one after the other, in the arrival order of both inputs together. All methods are
    `async def`, or all are plain `def`; otherwise as `KeyedProcessFunction`.
    """

    _inputs = ("process1", "process2")

    @abc.abstractmethod
    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Handle one record of the first input."""

    @abc.abstractmethod
    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Handle one record of the second input."""


class KeyedBroadcastFunction(KeyedFunction, abc.ABC, Generic[In, Broadcast, Out]):
    """Per-key logic that reads broadcast state, such as rules or prices, which records of a second input change.

        class Prices(KeyedBroadcastFunction[Order, Price, Line]):
            prices = BroadcastState("prices", str, int)

            async def process(self, order, ctx, /):
                ctx.collect(Line(order.id, self.prices.get(order.item)))

            def process_broadcast(self, price, ctx, /):
                self.prices.put(price.item, price.cents)

    Every task receives all broadcast records, each at its place in arrival order: all records before it are processed
    with the old state, all records after it with the new one. So `process_broadcast` must depend only on the record and
    broadcast state. Where a record concerns keys that get no records, it calls `ctx.visit_keys(state)`. Otherwise as `KeyedProcessFunction`.
    """

    _inputs = ("process", BROADCAST_METHOD)

    @abc.abstractmethod
    async def process(self, record: In, ctx: Context, /) -> None:
        """Handle one record of a key. It may read broadcast state, but not change it."""

    @abc.abstractmethod
    def process_broadcast(self, record: Broadcast, ctx: BroadcastContext, /) -> None:
        """Change broadcast state. This is a plain `def`: it has no key, emits nothing and registers no timer."""

    async def visit(self, record: Broadcast, ctx: Context, /) -> None:
        """Handle a broadcast record for one key, with its state, timers and output. Called for the keys of `ctx.visit_keys(state)`.

        It is of the kind of `process`: `async def`, or plain `def`. Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError


def input_methods(function: KeyedFunction) -> tuple[str, ...]:
    """Return the names of the methods that take records: one for each input, in order."""
    return function._inputs  # noqa: SLF001 - of the classes above


def own_mode(function: KeyedFunction) -> ChangelogMode | None:
    """Return the mode that a function of the library gives for itself; None for functions of users."""
    return function._emits  # noqa: SLF001 - of the classes above


def has_timers(function: KeyedFunction) -> bool:
    """Return whether the function handles timers. The inherited method does nothing, and need not be a coroutine."""
    return type(function).on_timer is not KeyedFunction.on_timer


def has_visit(function: KeyedFunction) -> bool:
    """Return whether the function handles broadcast records for single keys."""
    return isinstance(function, KeyedBroadcastFunction) and type(function).visit is not KeyedBroadcastFunction.visit


def is_blocking(function: KeyedFunction) -> bool:
    """Return whether the function is written as plain `def`.

    Raises `TypeError` when some of its methods are plain and others are coroutines, when one of them has a `yield`, and
    for a `process_broadcast` that is not a plain `def`.
    """
    names = [*input_methods(function), *([VISIT_METHOD] if has_visit(function) else []), "on_timer"]
    for name in names:
        method = getattr(function, name)
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            msg = f"{name}() of {type(function).__name__} has a yield: emit with ctx.collect()"
            raise TypeError(msg)
    written = names if has_timers(function) else names[:-1]
    if BROADCAST_METHOD in written:
        written.remove(BROADCAST_METHOD)
        if inspect.iscoroutinefunction(getattr(function, BROADCAST_METHOD)):
            msg = f"{BROADCAST_METHOD}() of {type(function).__name__} must be a plain 'def': it has nothing to wait for"
            raise TypeError(msg)
    kinds = {inspect.iscoroutinefunction(getattr(function, name)) for name in written}
    if len(kinds) > 1:
        every = "all" if written[2:] else "both"
        msg = f"{listed_methods(written)} of {type(function).__name__} must {every} be 'async def', or {every} plain 'def'"
        raise TypeError(msg)
    return kinds == {False}


def listed_methods(names: Sequence[str]) -> str:
    """Return names of methods as they stand in a sentence: `process1(), process2() and on_timer()`."""
    *others, last = (f"{name}()" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


class AsyncFunction(abc.ABC, Generic[In, Out]):
    """A call to an external service for each record (Flink Async I/O).

    One instance serves a task, on one asyncio loop. `open` is called before the first record and `close` after the last
    one, also when the task fails.
    """

    deterministic: bool = False
    """Declares that equal records always have equal answers. Streams that may retract rows need it: `-U` calls again, and its
    answer must take back the row that the first answer made."""

    async def open(self, services: dict[str, str], /) -> None:
        """Create clients. `services` maps the names in the job's configuration to URLs."""

    async def close(self) -> None:
        """Close what `open` created."""

    @abc.abstractmethod
    async def invoke(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`: none, one or many.

        Runs concurrently with other records, up to the operator's capacity. An exception goes
        through the retry strategy. Results have the row kind of `record`.
        """

    async def invoke_many(self, records: list[In], /) -> list[list[Out]]:
        """Return the records to emit for several records, with one call: a list for each, in their order.

        Called in place of `invoke` where the operator has `batch=Batching(...)`. An exception fails all of `records`,
        and each then goes through the retry strategy by itself; an exception in place of a list fails that record
        alone. Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no invoke_many(), which batch=... asks for: {records!r:.100}"
        )

    async def timeout(self, record: In, /) -> list[Out]:
        """Return the records to emit for a record whose timeout has passed. Called once; its outcome is final (Flink, `timeout`).

        It should not call the service. Raises `TimeoutError` unless overridden; the operator's `on_failure` then says
        what happens to the record.
        """
        raise TimeoutError(f"no response in time for {record!r:.300}")

    def default(self, record: In, error: Exception, /) -> list[Out]:
        """Return the records to emit for a record that failed for good, where the operator has `on_failure=OnFailure.DEFAULT`.

        `error` is the last error. Raises `NotImplementedError` unless overridden.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no default(), which on_failure=DEFAULT asks for"
        ) from error

    def deleted(self, record: In, /) -> Out:
        """Return the record of a `-D`, in a stream of upserts: for a `-D`, which makes no call, and for a record without results.

        Only its key counts, but functions behind it see all fields. Unless overridden, fields have the values of the
        record's fields of the same names, or their defaults; a required field that the record lacks is refused when the
        pipeline is built.
        """
        gives = function_types(self)[1]
        fields = {name: getattr(record, name) for name in gives.__struct_fields__ if hasattr(record, name)}
        return cast("Out", gives(**fields))

    def cache_key(self, record: In, /) -> Hashable:
        """Return the value that identifies the answer, where the operator has `cache=LookupCache(...)`; by default the record.

        It must be hashable; a frozen struct is.
        """
        return record


def function_types(
    function: AsyncFunction[Any, Any] | KeyedFunction,
) -> tuple[tuple[type[msgspec.Struct], ...], type[msgspec.Struct]]:
    """Return the record types of a function's inputs and of its output, as its class names them.

    They are `(In,), Out` of an `AsyncFunction[In, Out]` or `KeyedProcessFunction[In, Out]`, `(In1, In2), Out` of a
    `KeyedCoProcessFunction[In1, In2, Out]`, and `(In, Broadcast), Out` of a `KeyedBroadcastFunction[In, Broadcast,
    Out]`.

    Raises `TypeError` when the class does not name them.
    """
    wanted = 1 + (1 if isinstance(function, AsyncFunction) else len(input_methods(function)))
    types: list[Any] = [None] * wanted
    for arguments in _type_arguments(type(function)):
        for place, argument in enumerate(arguments[:wanted]):
            if types[place] is None and isinstance(argument, type):
                types[place] = argument
    if None in types:
        like = "KeyedProcessFunction[Leg, Delay]"
        if isinstance(function, KeyedCoProcessFunction):
            like = "KeyedCoProcessFunction[Order, Payment, Line]"
        elif isinstance(function, KeyedBroadcastFunction):
            like = "KeyedBroadcastFunction[Order, Price, Line]"
        msg = f"{type(function).__name__} must name its types, as in {like}"
        raise TypeError(msg)
    *inputs, output = types
    return tuple(inputs), output


def _type_arguments(function: type) -> Iterator[tuple[Any, ...]]:
    """Yield the type arguments of a class's function base classes, the nearest first."""
    for cls in function.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, AsyncFunction | KeyedFunction):
                yield get_args(base)


F = TypeVar("F", bound=Callable[..., Any])


class BlockTask(Protocol):
    """A task that runs user code, with the context of the record that runs now."""

    @property
    def context(self) -> Any:
        """Return the current record's context."""
        ...


class Block(Generic[F]):
    """A method declared as a code block."""

    def __init__(self, block_id: str, method: F) -> None:
        """Hold a method and the name of its block; `declare` calls this."""
        self.block_id = block_id
        self.method = method

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Refuse a use outside of a task: in a task the engine puts a bound block in the instance."""
        if instance is None:
            return self
        msg = f"block '{self.block_id}' was used outside of process() or on_timer(): there is no record here"
        raise RuntimeError(msg)


class BoundBlock:
    """A block of one function in one task: called with an answer, it continues with the current record."""

    __slots__ = ("_function", "_method", "_task", "block_id")

    def __init__(self, block: Block[Any], function: object, task: BlockTask) -> None:
        """Bind a block."""
        self.block_id = block.block_id
        self._method = block.method
        self._function = function
        self._task = task

    def __call__(self, answer: Any, /) -> Any:
        """Run the block."""
        context = self._task.context
        return self._method(self._function, answer, context.record, context)


def declare(block_id: str, /) -> Callable[[F], Block[F]]:
    """Declare a method of a process function as a code block, which `then_accept` takes.

        async def process(self, sale, ctx, /):
            self.total.value().then_accept(self.add)

        @declare("add")
        def add(self, total, sale, ctx, /):
            self.total.update((total or 0) + sale.cents)

    When a run stops, it does not wait for records that wait for an answer. It stores the record and the block id, and
    the next run reads the state and continues in the block. So a block may use only its parameters. `block_id` is
    stored, so it must never change. A block may chain further blocks.

    Raises `ValueError` for a `block_id` that is not an identifier, and `TypeError` for a method that is not a plain
    `def`.
    """
    check_name(block_id)

    def wrap(method: F) -> Block[F]:
        if inspect.iscoroutinefunction(method):
            msg = f"block '{block_id}' must be a plain def: what it awaits could not be stored; chain a further block instead"
            raise TypeError(msg)
        return Block(block_id, method)

    return wrap
