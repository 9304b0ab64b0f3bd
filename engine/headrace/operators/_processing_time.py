"""Operators by processing time: the time of a micro-batch stands in for the event time of its records.

An operator is written once, for event time. By processing time it sees, in a micro-batch of time T:

    event time                            processing time
    event time of a record                T
    watermark before the record           T - 1: no later micro-batch has an earlier time
    timer at t, when a watermark says     timer at t + 1: it fires at the start of the first micro-batch from
    that nothing up to t can come         t + 1 on, before its records
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

import msgspec

from headrace.api.batches import Bundle
from headrace.api.functions import Context, KeyedCoProcessFunction, KeyedFunction, TimeDomain
from headrace.api.records import RowKind

F = TypeVar("F", bound=KeyedFunction)

_NONE: Final[Mapping[str, Any]] = MappingProxyType({})
_NEVER: Final = 1 << 62

_kind_of = attrgetter("kind")


def timed_name(name: str, time: TimeDomain) -> str:
    """Return the name of a state: one by processing time never reads times of events."""
    return name if time is TimeDomain.EVENT_TIME else f"{name}_by_processing_time"


class _TimedContext:
    """Context of a record or timer by processing time; it holds the timers, too."""

    __slots__ = ("_ctx", "timestamp", "watermark")

    def __init__(self, ctx: Context, timestamp: int, watermark: int) -> None:
        self._ctx = ctx
        self.timestamp = timestamp
        self.watermark = watermark

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def timers(self) -> _TimedContext:
        return self

    def register_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        self._ctx.timers.register_processing_time(timestamp + 1, namespace)

    def delete_event_time(self, timestamp: int, /, namespace: str = "") -> None:
        self._ctx.timers.delete_processing_time(timestamp + 1, namespace)

    def register_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        self._ctx.timers.register_processing_time(timestamp, namespace)

    def delete_processing_time(self, timestamp: int, /, namespace: str = "") -> None:
        self._ctx.timers.delete_processing_time(timestamp, namespace)

    def collect(
        self, record: msgspec.Struct, /, kind: RowKind = RowKind.INSERT, *, timestamp: int | None = None
    ) -> None:
        self._ctx.collect(record, kind, timestamp=self.timestamp if timestamp is None else timestamp)


def _of_record(ctx: Context) -> Context:
    """Return the context of a record. Raises `ValueError` for a retraction."""
    _check_kind(ctx.row_kind)
    now = ctx.processing_time
    return cast("Context", _TimedContext(ctx, now, now - 1))


def _check_kind(kind: RowKind) -> None:
    if kind.is_retraction:
        msg = f"processing time cannot take a record back, and this one is {kind.symbol}: {_WAY_OUT}"
        raise ValueError(msg)


class _InProcessingTime:
    """Base class of the classes below: what fires, and what `headrace explain` shows."""

    takes_timers = False
    takes_columns = False

    def first_timer(self, _timestamp: int, /) -> int:
        """Return a time that no watermark reaches: the operator has no timers of event time, so bundles may wait for all records."""
        return _NEVER

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Take a bundle at the time of its micro-batch. Raises `ValueError` for a retraction."""
        if any(map(_kind_of, bundle.records)):
            for record in bundle.walk(bundle.records):
                _check_kind(RowKind(record.kind))
        now = ctx.processing_time
        await super().process_bundle(bundle.at(now), cast("Context", _TimedContext(ctx, now, now - 1)))  # type: ignore[misc]

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Fire the timer that the operator has set for the millisecond before."""
        at = timestamp - 1
        await super().on_timer(at, cast("Context", _TimedContext(ctx, at, at)))  # type: ignore[misc]

    def side_types(self) -> dict[str, type[msgspec.Struct]]:
        """Return no side outputs: no record is late."""
        return {}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        shown = super().described()  # type: ignore[misc]
        for name in ("allowed_lateness", "late_records"):
            shown.pop(name, None)
        freed = shown["state_freed"].replace("the watermark", "the processing time of a micro-batch")
        kept = shown["state_kept"].replace("event time", "processing time")
        return {**shown, "time": "processing time of the micro-batch", "state_kept": kept, "state_freed": freed}


class _OneInput(_InProcessingTime):
    """Makes an operator of one input work by processing time."""

    async def process(self, record: Any, ctx: Context, /) -> None:
        """Take a record at the time of its micro-batch. Raises `ValueError` for a retraction."""
        await super().process(record, _of_record(ctx))  # type: ignore[misc]


class _TwoInputs(_InProcessingTime):
    """Makes an operator of two inputs work by processing time."""

    async def process1(self, record: Any, ctx: Context, /) -> None:
        """Take a left record at the time of its micro-batch. Raises `ValueError` for a retraction."""
        await super().process1(record, _of_record(ctx))  # type: ignore[misc]

    async def process2(self, record: Any, ctx: Context, /) -> None:
        """Take a right record at the time of its micro-batch. Raises `ValueError` for a retraction."""
        await super().process2(record, _of_record(ctx))  # type: ignore[misc]


def in_time(kind: type[F], time: TimeDomain, attributes: Mapping[str, Any] = _NONE) -> type[F]:
    """Return the class of an operator, written for event time, that goes by `time`, with further `attributes`, such as states."""
    inputs = _TwoInputs if issubclass(kind, KeyedCoProcessFunction) else _OneInput
    bases = (kind,) if time is TimeDomain.EVENT_TIME else (inputs, kind)
    return type(kind.__name__, bases, dict(attributes))


_WAY_OUT = (
    "it comes in another micro-batch than the record that it takes back, so in another window: use event time, or additions(), "
    "which makes each version of a record a new one"
)


def check_takes_nothing_back(*, retracting: bool) -> None:
    """Raise `ValueError` for a stream that may retract records."""
    if retracting:
        msg = f"processing time needs a stream that takes nothing back, and this one may have -U or -D: {_WAY_OUT}"
        raise ValueError(msg)
