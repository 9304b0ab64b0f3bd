"""Aggregates over tumbling, hopping and cumulative windows: a record is added to one slice, windows merge slices when they fire."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from headrace.api import AggregatingState, Context, RowKind, Struct, WindowFunction
from headrace.api.graph import KeyBy
from headrace.operators._accumulators import Change
from headrace.operators._result_record import ResultRecord, aggregate_function, sign_of
from headrace.operators._slices import Sliced, slices_between

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

FREE = "free "
"""The namespace of a timer that frees a slice begins with it; then comes the slice's start. It sorts behind that of windows."""


class SlicedAggregation(WindowFunction[In, Out]):
    """Aggregates over windows that are made of slices.

    The state holds the accumulators of a slice in the namespace of its start (ms). An event-time timer at the last moment of each
    window makes it fire; one in a namespace of its own frees a slice when no window can need it any more.
    """

    slices: AggregatingState[Change, Any, Any]

    def __init__(self, windows: Sliced, record: ResultRecord, lateness: int, *, retracting: bool) -> None:
        """`lateness` is in milliseconds."""
        self._windows = windows
        self._record = record
        self._lateness = lateness
        self._refusing = record.retraction_refused_by()
        self.retracts = lateness > 0 or retracting

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add a record to its slice. Windows that have fired already are corrected."""
        if ctx.row_kind.is_retraction and self._refusing:
            msg = f"{', '.join(self._refusing)} cannot take a record back, and this one is {ctx.row_kind.symbol}"
            raise ValueError(msg)
        start = self._windows.slice_of(ctx.timestamp)
        ends = self._windows.ends_of(start)
        if self._over_at(ends[-1]) <= ctx.watermark:
            if self.emits_late:
                ctx.output(self.LATE, record)
            return
        fired = [end for end in ends if end - 1 <= ctx.watermark < self._over_at(end)]
        before = [await self._result(end, ctx) for end in fired]
        slice_ = self.slices.namespace(str(start))
        if await slice_.get() is None:
            self._register(start, ends, ctx)
        await slice_.add(Change(record, ctx.timestamp, sign_of(ctx.row_kind)))
        for end, result in zip(fired, before, strict=True):
            emit_change(ctx, result, await self._result(end, ctx), at=end - 1)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit a window's result, or free a slice."""
        if ctx.namespace:
            await self._free(int(ctx.namespace.removeprefix(FREE)), ctx)
            return
        end = timestamp + 1
        parts = await self._parts(end)
        emit_change(ctx, None, self._merged(parts, end, ctx), at=timestamp)
        for start in parts:
            if self._windows.ends_of(start)[-1] == end:
                await self._free(start, ctx)

    def _register(self, start: int, ends: list[int], ctx: Context) -> None:
        """Register the timers that a new slice needs. A timer that fires at the end of the input could register none."""
        for end in ends:
            if end - 1 > ctx.watermark:
                ctx.timers.register_event_time(end - 1)
        if self._lateness:
            ctx.timers.register_event_time(self._over_at(ends[-1]), f"{FREE}{start}")

    async def _free(self, start: int, ctx: Context) -> None:
        """Free a slice, or come back when it is time to: when its timer was set, the lateness may have been another one."""
        over_at = self._over_at(self._windows.ends_of(start)[-1])
        if over_at <= ctx.timestamp:
            await self.slices.namespace(str(start)).clear()
        else:
            ctx.timers.register_event_time(over_at, f"{FREE}{start}")

    def _over_at(self, end: int) -> int:
        """Return the moment at which a window takes no more records (ms)."""
        return end - 1 + self._lateness

    async def _result(self, end: int, ctx: Context) -> Any:
        """Return the result of a window; None where it has no records."""
        return self._merged(await self._parts(end), end, ctx)

    async def _parts(self, end: int) -> dict[int, Any]:
        """Return the slices of a window that are there, by start, the earliest first."""
        starts = slices_between(self._windows, end)
        reads = [(start, self.slices.namespace(str(start)).get()) for start in starts]
        return {start: part for start, read in reads if (part := await read) is not None}

    def _merged(self, parts: dict[int, Any], end: int, ctx: Context) -> Any:
        """Return the result of a window of these slices."""
        if not parts:
            return None
        first, *others = parts.values()
        whole = self._record.merge(self._record.create(), first) if others else first
        for part in others:
            whole = self._record.merge(whole, part)
        return self._record.result(whole, ctx.key, self._windows.start_of(end), end)

    def described(self) -> dict[str, Any]:
        """See `WindowFunction.described`."""
        return {
            "windows": str(self._windows),
            "aggregates": self._record.described(),
            "allowed_lateness": timedelta(milliseconds=self._lateness),
            "late_records": "go to side output 'late'" if self.emits_late else "are dropped",
            "state_kept": "a row for each key and slice, a timer for each key and open window",
            "state_freed": "when the watermark passes the end of a slice's last window"
            + (" by allowed_lateness" if self._lateness else ""),
        }


def emit_change(ctx: Context, before: Any, after: Any, *, at: int, before_at: int | None = None) -> None:
    """Emit what has become of a result: nothing where it is the same; None is no result.

    `at` is the event time of the result (ms), `before_at` that of the one before it, if it is another. A result is taken back
    with the event time that it was emitted with, so windows downstream find it where they have put it.
    """
    before_at = at if before_at is None else before_at
    if before == after:
        return
    if before is None:
        ctx.collect(after, timestamp=at)
    elif after is None:
        ctx.collect(before, RowKind.DELETE, timestamp=before_at)
    else:
        ctx.collect(before, RowKind.UPDATE_BEFORE, timestamp=before_at)
        ctx.collect(after, RowKind.UPDATE_AFTER, timestamp=at)


def sliced_aggregation(
    windows: Sliced, takes: type[In], gives: type[Out], /, *, key: KeyBy, lateness: int, retracting: bool
) -> WindowFunction[In, Out]:
    """Return the function that aggregates `takes` over windows into `gives`.

    Raises `ValueError` where the input may take records back, and an aggregate cannot; else as `ResultRecord`.
    """
    record = ResultRecord(takes, gives, key)
    if retracting and (refusing := record.retraction_refused_by()):
        msg = (
            f"the stream may have -U and -D, and {', '.join(refusing)} cannot take a record back: use Count, CountDistinct, Sum "
            "and Avg, or a stream that takes nothing back"
        )
        raise ValueError(msg)

    class Aggregation(SlicedAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        slices = AggregatingState(windows.name, aggregate_function(record))

    return Aggregation(windows, record, lateness, retracting=retracting)
