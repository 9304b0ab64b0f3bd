"""Aggregates over sessions: a record between two sessions makes one of them, with what both have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from headrace.api import AggregatingState, Context, MapState, Struct, WindowFunction
from headrace.operators._accumulators import Change
from headrace.operators._calendar import check_in_calendar
from headrace.operators._sliced_aggregation import FREE
from headrace.operators._window_result import WindowResult, aggregate_function

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class Span(Struct, frozen=True):
    """A session's first moment, and the first one after it (ms)."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Live:
    """A session that can take records, by the name of its accumulators."""

    name: str
    span: Span


class SessionAggregation(WindowFunction[In, Out]):
    """Aggregates over sessions.

    A session is called after the time of its first record to arrive (ms). `sessions` has the span of each one, `accumulators` what
    it adds up to, in the namespace of its name. An event-time timer in that namespace, at the session's last moment, makes it fire.
    """

    sessions: MapState[str, Span]
    accumulators: AggregatingState[Change, Any, Any]

    def __init__(self, shown: str, result: WindowResult, *, gap: int, lateness: int) -> None:
        """`shown` names the sessions for people; `gap` and `lateness` are in milliseconds."""
        self._shown = shown
        self._gap = gap
        self._made = result
        self._lateness = lateness
        self.retracts = lateness > 0

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add a record to its session, and make one of those that it joins. Results that were emitted are corrected."""
        if ctx.row_kind.is_retraction:
            msg = f"sessions cannot take a record back, and this one is {ctx.row_kind.symbol}"
            raise ValueError(msg)
        alone = Span(ctx.timestamp, ctx.timestamp + self._gap)
        joined = await self._joined(alone)
        whole = Span(
            min([alone.start, *(each.span.start for each in joined)]),
            max([alone.end, *(each.span.end for each in joined)]),
        )
        if self._over_at(whole) <= ctx.watermark:
            if self.emits_late:
                ctx.output(self.LATE, record)
            return
        check_in_calendar(ctx, whole.start, whole.end, self._lateness)
        fired = [each for each in joined if self._has_fired(each.span, ctx)]
        before = [(each.span.end - 1, await self._result(each, ctx)) for each in fired]
        session = _Live(joined[0].name if joined else str(ctx.timestamp), whole)
        await self._merge(session, joined, ctx)
        await self.accumulators.namespace(session.name).add(Change(record, ctx.timestamp))
        after = await self._result(session, ctx) if self._has_fired(whole, ctx) else None
        self._correct(before, (whole.end - 1, after), ctx)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit a session's result, or free it."""
        name = ctx.namespace.removeprefix(FREE)
        span = await self.sessions.get(name)
        if span is None:
            return
        if name == ctx.namespace:
            self._made.emit(ctx, None, await self._result(_Live(name, span), ctx), at=timestamp)
        if self._over_at(span) <= timestamp:
            await self.sessions.remove(name)
            await self.accumulators.namespace(name).clear()
        else:
            ctx.timers.register_event_time(self._over_at(span), f"{FREE}{name}")

    async def _joined(self, alone: Span) -> list[_Live]:
        """Return the sessions that a record joins, the earliest first."""
        found = [
            _Live(name, span)
            async for name, span in self.sessions.entries()
            if span.start < alone.end and alone.start < span.end
        ]
        return sorted(found, key=lambda live: live.span.start)

    async def _merge(self, session: _Live, joined: Sequence[_Live], ctx: Context) -> None:
        """Put a session in place of those that it is made of, with their accumulators and without their timers."""
        if len(joined) == 1 and joined[0] == session:
            return
        for each in joined:
            ctx.timers.delete_event_time(each.span.end - 1, each.name)
            ctx.timers.delete_event_time(self._over_at(each.span), f"{FREE}{each.name}")
        others = [each.name for each in joined[1:]]
        if others:
            await self.accumulators.merge_namespaces(session.name, others)
        for name in others:
            await self.sessions.remove(name)
        await self.sessions.put(session.name, session.span)
        if not self._has_fired(session.span, ctx):
            ctx.timers.register_event_time(session.span.end - 1, session.name)
        if self._lateness:
            ctx.timers.register_event_time(self._over_at(session.span), f"{FREE}{session.name}")

    def _correct(self, before: Sequence[tuple[int, Any]], after: tuple[int, Any], ctx: Context) -> None:
        """Take back what was emitted, and emit what is true now, if it is due. Results have their event times (ms) before them."""
        at, now = after
        if len(before) == 1:
            ((before_at, result),) = before
            self._made.emit(ctx, result, now, at=at, before_at=before_at)
            return
        for before_at, result in before:
            self._made.emit(ctx, result, None, at=before_at)
        self._made.emit(ctx, None, now, at=at)

    @staticmethod
    def _has_fired(span: Span, ctx: Context) -> bool:
        return span.end - 1 <= ctx.watermark

    def _over_at(self, span: Span) -> int:
        """Return the moment at which a session takes no more records (ms)."""
        return span.end - 1 + self._lateness

    async def _result(self, session: _Live, ctx: Context) -> Any:
        part = await self.accumulators.namespace(session.name).get()
        return self._made.result(part, ctx.key, session.span.start, session.span.end)

    def described(self) -> dict[str, Any]:
        """See `WindowFunction.described`."""
        return {
            "windows": self._shown,
            **self._made.described(),
            "allowed_lateness": timedelta(milliseconds=self._lateness),
            "late_records": "go to side output 'late'" if self.emits_late else "are dropped",
            "state_kept": "two rows and a timer for each key and open session",
            "state_freed": "when the watermark passes the end of the session"
            + (" by allowed_lateness" if self._lateness else ""),
        }


def session_aggregation(
    name: str, result: WindowResult, /, *, shown: str, gap: int, lateness: int
) -> WindowFunction[Any, Any]:
    """Return the function that makes results of sessions; its states begin with `name`. `gap` and `lateness` are in ms."""
    takes, gives = result.takes, result.gives

    class Aggregation(SessionAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        sessions = MapState(name, str, Span)
        accumulators = AggregatingState(f"{name}_accumulators", aggregate_function(result))

    return Aggregation(shown, result, gap=gap, lateness=lateness)
