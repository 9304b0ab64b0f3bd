"""User functions: what the engine calls, and what they may call."""

from __future__ import annotations

import abc
import enum
import inspect
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, get_args, get_origin

import msgspec

from headrace.api.records import RowKind

In = TypeVar("In", bound=msgspec.Struct)
In1 = TypeVar("In1", bound=msgspec.Struct)
In2 = TypeVar("In2", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)
Broadcast = TypeVar("Broadcast", bound=msgspec.Struct)

BROADCAST_METHOD = "process_broadcast"


class TimeDomain(enum.StrEnum):
    """Which clock makes a timer fire."""

    EVENT_TIME = "event_time"
    """The watermark."""

    PROCESSING_TIME = "processing_time"
    """The wall clock, as the driver has read it for the micro-batch."""


class Timers(Protocol):
    """Timers of the current key (FLIP-425, "Timers"). Registering one twice is registering it once.

    Times are milliseconds since the epoch. A key's timers of one domain fire in order of time, those of one moment in order of
    their namespaces. An event-time and a processing-time timer for the same moment are two timers, and so are timers in
    different namespaces.

    A `namespace` is any text without a zero character, such as the name of a window, else `ValueError`; `on_timer` finds it in
    `ctx.namespace`. Registering and deleting cost the same, however many timers a key has.
    """

    def register_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once the watermark reaches `timestamp` (ms).

        In a timer that fires at the end of the input this does nothing.
        """
        ...

    def delete_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Take a timer of this key and namespace back; nothing happens if there is none."""
        ...

    def register_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Call `on_timer(timestamp)` for this key once processing time reaches `timestamp` (ms).

        That is at the start of the first later micro-batch whose processing time has reached it, before its records; or
        right after the current record or timer, if it has reached it already. When that is depends on when runs
        happen, and so do results that depend on it.
        """
        ...

    def delete_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        """Take a processing-time timer of this key and namespace back; nothing happens if there is none."""
        ...


class Context(Protocol):
    """Tells a process function about the record or timer that runs, takes what it emits, and has the timers of its key."""

    @property
    def key(self) -> Any:
        """The key of the record or timer."""
        ...

    @property
    def timestamp(self) -> int:
        """The event time of the record or timer (ms): it renews state, and what is emitted carries it.

        In a processing-time timer that is the moment right after the watermark, or 0 before the first watermark.
        """
        ...

    @property
    def watermark(self) -> int:
        """The last watermark before this record in arrival order (ms)."""
        ...

    @property
    def processing_time(self) -> int:
        """The wall clock as the driver has read it for this micro-batch (ms): the same in all tasks, retries included."""
        ...

    @property
    def time_domain(self) -> TimeDomain | None:
        """Which clock made the timer fire; None while a record is processed."""
        ...

    @property
    def namespace(self) -> str:
        """The namespace that the timer was registered in; empty where none was given, and while a record is processed."""
        ...

    @property
    def row_kind(self) -> RowKind:
        """The record's row kind; `INSERT` in `on_timer` and for sources without one."""
        ...

    @property
    def timers(self) -> Timers:
        """The timers of this key."""
        ...

    def collect(
        self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT, *, timestamp: int | None = None
    ) -> None:
        """Emit a record downstream, in the order of these calls, with the event time `timestamp` (ms), or that of this context."""
        ...

    def output(self, name: str, record: msgspec.Struct, /) -> None:
        """Emit a record to the side output `name`, which the pipeline must declare."""
        ...

    def quarantine(self, reason: str, /) -> None:
        """Set the record that is processed aside in the job's quarantine, with the reason. What was emitted stays emitted.

        For input that nothing can be made of. Raises `RuntimeError` in a timer, which has no record.
        """
        ...


class BroadcastContext(Protocol):
    """Tells the code of a broadcast record about it. There is no key, nothing can be emitted, and no timer registered."""

    @property
    def timestamp(self) -> int:
        """The event time of the record (ms)."""
        ...

    @property
    def watermark(self) -> int:
        """The last watermark before this record in arrival order (ms)."""
        ...

    @property
    def processing_time(self) -> int:
        """As `Context.processing_time`."""
        ...

    @property
    def row_kind(self) -> RowKind:
        """The record's row kind."""
        ...


class KeyedFunction:
    """Base class of the functions that have state and timers by key."""

    _inputs: ClassVar[tuple[str, ...]]
    """The methods that take in records, by input."""

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Handle a timer of the current key whose time the watermark, or processing time, has reached.

        `ctx.time_domain` says which of the two.
        """


class KeyedProcessFunction(KeyedFunction, abc.ABC, Generic[In, Out]):
    """Per-key logic with state and timers.

    One instance serves all keys of a task: keep nothing about a key in attributes, only in state.
    An exception fails the micro-batch, which then leaves nothing behind.

    Written as `async def`, state calls answer with a `StateFuture`, and while one waits, records of other keys go on.
    Written as plain `def` (both methods then), state calls answer with the value itself, and everything waits for each. The
    results are the same.
    """

    _inputs = ("process",)

    @abc.abstractmethod
    async def process(self, record: In, ctx: Context, /) -> None:
        """Handle one record. Records of a key arrive one after the other, in arrival order."""


class KeyedCoProcessFunction(KeyedFunction, abc.ABC, Generic[In1, In2, Out]):
    """Per-key logic over two inputs, which share state and timers.

        class Paid(KeyedCoProcessFunction[Order, Payment, Line]):
            order = ValueState("order", Order)

            async def process1(self, order, ctx, /): ...
            async def process2(self, payment, ctx, /): ...

    Records of a key arrive one after the other, in the arrival order of both inputs together. All methods are `async def`, or
    all are plain `def`; else as for `KeyedProcessFunction`.
    """

    _inputs = ("process1", "process2")

    @abc.abstractmethod
    async def process1(self, record: In1, ctx: Context, /) -> None:
        """Handle one record of the first input."""

    @abc.abstractmethod
    async def process2(self, record: In2, ctx: Context, /) -> None:
        """Handle one record of the second input."""


class KeyedBroadcastFunction(KeyedFunction, abc.ABC, Generic[In, Broadcast, Out]):
    """Per-key logic that looks at broadcast state, such as rules or prices, which records of a second input change.

        class Prices(KeyedBroadcastFunction[Order, Price, Line]):
            prices = BroadcastState("prices", str, int)

            async def process(self, order, ctx, /):
                ctx.collect(Line(order.id, self.prices.get(order.item)))

            def process_broadcast(self, price, ctx, /):
                self.prices.put(price.item, price.cents)

    Every task takes in all broadcast records, each at its place in arrival order: all records before it are done with the old
    state, all records after it see the new one. So `process_broadcast` must depend on nothing but the record and broadcast
    state. Else as for `KeyedProcessFunction`.
    """

    _inputs = ("process", BROADCAST_METHOD)

    @abc.abstractmethod
    async def process(self, record: In, ctx: Context, /) -> None:
        """Handle one record of a key. It may read broadcast state, not change it."""

    @abc.abstractmethod
    def process_broadcast(self, record: Broadcast, ctx: BroadcastContext, /) -> None:
        """Change broadcast state. This is a plain `def`; it has no key, emits nothing and registers no timer."""


def input_methods(function: KeyedFunction) -> tuple[str, ...]:
    """Return the names of the methods that take in records: one for each input, in order."""
    return function._inputs  # noqa: SLF001 - of the classes above


def has_timers(function: KeyedFunction) -> bool:
    """Return whether the function handles timers. The method that it inherits does nothing, and need not be a coroutine."""
    return type(function).on_timer is not KeyedFunction.on_timer


def is_blocking(function: KeyedFunction) -> bool:
    """Return whether the function is written as plain `def`.

    Raises `TypeError` when some of its methods are and others aren't, when one of them has a `yield`, and for a
    `process_broadcast` that is no plain `def`.
    """
    names = [*input_methods(function), "on_timer"]
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
    """Return names of methods as a sentence has them: `process1(), process2() and on_timer()`."""
    *others, last = (f"{name}()" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


class AsyncFunction(abc.ABC, Generic[In, Out]):
    """A call to the outside world for each record (Flink Async I/O).

    One instance serves a task, on one asyncio loop. `open` comes before the first call, `close`
    after the last one, also when the task fails.
    """

    async def open(self, services: dict[str, str], /) -> None:
        """Make clients. `services` maps the names in the job's configuration to URLs."""

    async def close(self) -> None:
        """Close what `open` made."""

    @abc.abstractmethod
    async def invoke(self, record: In, /) -> list[Out]:
        """Answer with the records to emit for `record`: none, one or many.

        Runs concurrently with other records up to the operator's capacity. An exception goes
        through the retry strategy; the row kind of `record` is that of its results.
        """

    async def invoke_many(self, records: list[In], /) -> list[list[Out]]:
        """Answer for several records with one call: a list for each, in their order.

        Called in place of `invoke` where the operator has `batch=Batching(...)`. An exception fails all of `records`, and each
        then goes through the retry strategy by itself; one in place of a list fails that record alone. Unless overridden it
        raises `NotImplementedError`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no invoke_many(), which batch=... asks for: {records!r:.100}"
        )

    async def timeout(self, record: In, /) -> list[Out]:
        """Answer for a record whose time is up: called once, and its outcome is final (Flink, `timeout`).

        Unless overridden it raises `TimeoutError`, and the operator's `on_failure` says what becomes of the record. What it
        emits instead is emitted; it should not call the service.
        """
        raise TimeoutError(f"no answer in time for {record!r:.300}")

    def default(self, record: In, error: Exception, /) -> list[Out]:
        """Answer for a record that was given up on, where the operator has `on_failure=OnFailure.DEFAULT`.

        `error` is the last one. Unless overridden it raises `NotImplementedError`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no default(), which on_failure=DEFAULT asks for"
        ) from error

    def cache_key(self, record: In, /) -> Hashable:
        """Return the value that the answer depends on, where the operator has `cache=LookupCache(...)`: the record unless overridden.

        It must be hashable (a frozen struct is).
        """
        return record


def function_types(
    function: AsyncFunction[Any, Any] | KeyedFunction,
) -> tuple[tuple[type[msgspec.Struct], ...], type[msgspec.Struct]]:
    """Return the record types of a function's inputs, and that of its output, as its class names them.

    These are `(In,), Out` of an `AsyncFunction[In, Out]` or `KeyedProcessFunction[In, Out]`, `(In1, In2), Out` of a
    `KeyedCoProcessFunction[In1, In2, Out]`, and `(In, Broadcast), Out` of a `KeyedBroadcastFunction[In, Broadcast, Out]`.

    Raises `TypeError` when the class was derived without naming them.
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
    """Yield the type arguments of the function classes that a class is derived from, the nearest first."""
    for cls in function.__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, AsyncFunction | KeyedFunction):
                yield get_args(base)
