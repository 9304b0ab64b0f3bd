"""First or last record of each key by event time (Flink: `RowTimeDeduplicateFunction`)."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from headrace.api import Context, KeyedProcessFunction, RowKind, StateTtl, Struct, ValueState
from headrace.api.operator_function import OperatorFunction
from headrace.operators._state_lives import freed_by

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class Kept(Struct, frozen=True):
    """Stored record of a key, and its event time (ms). `emitted` is true if it was emitted."""

    at: int
    record: Any
    emitted: bool


class FirstByTimeFunction(KeyedProcessFunction[In, Out], OperatorFunction):
    """First record of each key by event time; of several at one moment, the first to arrive.

    With `at_watermark` it is emitted when the watermark reaches its event time, and is final. Otherwise it is emitted
    at once, and retracted when an earlier record arrives.
    """

    KIND = "first by event time"
    TAKER = "first_by_time"
    has_row_of_each_key = True

    kept: ValueState[Any]

    def __init__(self, kept: Any, ttl: StateTtl | None, *, at_watermark: bool) -> None:
        """Take the type of the state, and its TTL."""
        self._kept = kept
        self._ttl = ttl
        self._at_watermark = at_watermark
        self.retracts = not at_watermark

    def replaces(self, at: int, kept_at: int) -> bool:
        """Return whether a new record with event time `at` replaces the stored one (ms)."""
        return at < kept_at

    async def process(self, record: In, ctx: Context, /) -> None:
        """Keep a record, or drop it. Raises `ValueError` for a retraction."""
        if ctx.row_kind.is_retraction:
            msg = f"{self.TAKER} cannot take a record back, and this one is {ctx.row_kind.symbol}: use top() with n=1 there"
            raise ValueError(msg)
        if self._at_watermark and ctx.timestamp <= ctx.watermark:
            self.set_aside_late(record, ctx)  # the first record up to the watermark is decided
            return
        kept = await self.kept.value()
        if kept is not None and ((kept.emitted and self._at_watermark) or not self.replaces(ctx.timestamp, kept.at)):
            return
        await self.kept.update(self._kept(at=ctx.timestamp, record=record, emitted=not self._at_watermark))
        if self._at_watermark:
            if kept is not None:
                ctx.timers.delete_event_time(kept.at)
            ctx.timers.register_event_time(ctx.timestamp)
        elif kept is None:
            ctx.collect(record)
        else:
            ctx.collect(kept.record, RowKind.UPDATE_BEFORE, timestamp=kept.at)
            ctx.collect(record, RowKind.UPDATE_AFTER)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the first record, which is now final."""
        kept = await self.kept.value()
        if kept is not None and kept.at == timestamp and not kept.emitted:
            await self.kept.update(self._kept(at=kept.at, record=kept.record, emitted=True))
            ctx.collect(kept.record)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        emits = "when the watermark reaches it" if self._at_watermark else "at once, and corrects"
        kept = "a row for each key, with one record" + (
            ", and a timer until it is emitted" if self._at_watermark else ""
        )
        return {"emits": emits, "state_kept": kept, "state_freed": freed_by(self._ttl)}


class LastByTimeFunction(FirstByTimeFunction[In, Out]):
    """Last record of each key by event time; of several at one moment, the last to arrive."""

    KIND = "last by event time"
    TAKER = "last_by_time"

    def replaces(self, at: int, kept_at: int) -> bool:
        """Return whether a new record with event time `at` replaces the stored one (ms)."""
        return at >= kept_at


def first_by_time(takes: type[In], *, ttl: StateTtl | None, at_watermark: bool) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.first_by_time`."""
    kept_type = _kept_type(takes)

    class First(FirstByTimeFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        kept = ValueState("first", kept_type, ttl=ttl)

    return First(kept_type, ttl, at_watermark=at_watermark)


def last_by_time(takes: type[In], *, ttl: StateTtl | None) -> KeyedProcessFunction[In, In]:
    """Return the function of `Stream.last_by_time`."""
    kept_type = _kept_type(takes)

    class Last(LastByTimeFunction[takes, takes]):  # type: ignore[valid-type]  # known when it is called
        kept = ValueState("last", kept_type, ttl=ttl)

    return Last(kept_type, ttl, at_watermark=False)


def _kept_type(takes: type[Struct]) -> Any:
    return msgspec.defstruct(
        f"Kept{takes.__name__}", [("at", int), ("record", takes), ("emitted", bool)], bases=(Kept,), frozen=True
    )
