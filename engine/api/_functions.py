"""User functions: what the engine calls, and what they may call."""

from __future__ import annotations

import abc
import enum
import inspect
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from engine.api._records import RowKind

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

    Times are milliseconds since the epoch. A key's timers of one domain fire in order of time; an event-time and a
    processing-time timer for the same moment are two timers.
    """

    def register_event_time(self, timestamp: int, /) -> None:
        """Call `on_timer(timestamp)` for this key once the watermark reaches `timestamp` (ms)."""
        ...

    def delete_event_time(self, timestamp: int, /) -> None:
        """Take a timer of this key back; nothing happens if there is none."""
        ...

    def register_processing_time(self, timestamp: int, /) -> None:
        """Call `on_timer(timestamp)` for this key once processing time reaches `timestamp` (ms).

        That is at the start of the first later micro-batch whose processing time has reached it, before its records; or
        right after the current record or timer, if it has reached it already. When that is depends on when runs
        happen, and so do results that depend on it.
        """
        ...

    def delete_processing_time(self, timestamp: int, /) -> None:
        """Take a processing-time timer of this key back; nothing happens if there is none."""
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

    Raises `TypeError` when `process` is and `on_timer` isn't, or the other way round.
    """
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
