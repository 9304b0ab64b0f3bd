"""User functions: what the engine calls, and what they may call."""

from __future__ import annotations

import abc
import enum
import inspect
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from headrace.api._records import RowKind

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


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
        """Call `on_timer(timestamp)` for this key once the watermark reaches `timestamp` (ms)."""
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
    """What a process function knows and may do while one record or timer of one key runs."""

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

    def collect(self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT) -> None:
        """Emit a record downstream, in the order of these calls."""
        ...

    def output(self, name: str, record: msgspec.Struct, /) -> None:
        """Emit a record to the side output `name`, which the pipeline must declare."""
        ...


class KeyedProcessFunction(abc.ABC, Generic[In, Out]):
    """Per-key logic with state and timers.

    One instance serves all keys of a task: keep nothing about a key in attributes, only in state.
    An exception fails the micro-batch, which then leaves nothing behind.

    Written as `async def`, state calls answer with a `StateFuture`, and while one waits, records of other keys go on.
    Written as plain `def` (both methods then), state calls answer with the value itself, and everything waits for each. The
    results are the same.
    """

    @abc.abstractmethod
    async def process(self, record: In, ctx: Context, /) -> None:
        """Handle one record. Records of a key arrive one after the other, in arrival order."""

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Handle a timer of the current key whose time the watermark, or processing time, has reached.

        `ctx.time_domain` says which of the two.
        """


def is_blocking(function: KeyedProcessFunction[Any, Any]) -> bool:
    """Whether the function is written as plain `def`.

    Raises `TypeError` when `process` is and `on_timer` isn't, or the other way round, and when one of them has a `yield`.
    """
    for method in (function.process, function.on_timer):
        if inspect.isgeneratorfunction(method) or inspect.isasyncgenfunction(method):
            msg = f"{method.__name__}() of {type(function).__name__} has a yield: emit with ctx.collect()"
            raise TypeError(msg)
    blocking = not inspect.iscoroutinefunction(function.process)
    has_timers = type(function).on_timer is not KeyedProcessFunction.on_timer
    if has_timers and blocking is inspect.iscoroutinefunction(function.on_timer):
        msg = f"process() and on_timer() of {type(function).__name__} must both be 'async def', or both plain 'def'"
        raise TypeError(msg)
    return blocking


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
        """What the answer depends on, where the operator has `cache=LookupCache(...)`: the record unless overridden.

        It must be hashable (a frozen struct is).
        """
        return record
