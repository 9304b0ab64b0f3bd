"""Session windows, and those that a bundle begins.

Aggregates over sessions: a record between two sessions merges them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import msgspec

from headrace.api.batches import Bundle, BundledRecord, BundleFunction, ColumnFunction, ColumnResults, KeyedColumns
from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import ColumnReads
from headrace.api.functions import Context, TimeDomain
from headrace.api.options import Trigger, WindowFunction
from headrace.api.records import RowKind, Struct
from headrace.api.states import AggregatingState, MapState, ReducingState, ValueState
from headrace.operators._accumulators import BundledChanges, Change
from headrace.operators._event_time import FIRST_TIME, LAST_TIME, check_in_calendar
from headrace.operators._processing_time import in_time, timed_name
from headrace.operators._sliced_windows import FREE
from headrace.operators._triggers import (
    EVERY,
    Early,
    early_states,
    end_of_step,
    has_enough_rows,
    purges,
    rows_of,
    shown_early,
)
from headrace.operators._value_types import are_identical
from headrace.operators._window_pieces import DividedParts, merge_parts, moves_of, stays
from headrace.operators._window_results import (
    EARLY,
    WindowResult,
    aggregate_function,
    next_step,
    state_name,
    unique_by_bounds,
)

if TYPE_CHECKING:
    from headrace.operators._running_fields import Flags
    from headrace.operators._session_columns import SessionColumns, SessionedColumns


class NewSession:
    """Session of some records; `start` and `end` are those of its span (ms)."""

    __slots__ = ("end", "name", "records", "start")

    def __init__(self, start: int, end: int) -> None:
        """Start a session, which is named after its first record."""
        self.name = str(start)
        self.start, self.end = start, end
        self.records: list[BundledRecord] = []


def new_sessions(bundle: Bundle, gap: int) -> list[NewSession] | None:
    """Return the sessions of the records, in the order of their first ones; None if a record merges two. `gap` is in ms."""
    sessions: list[NewSession] = []
    for record in bundle.walk(bundle.records):
        if record.kind:
            check_kind(RowKind(record.kind))
        at, until = record.timestamp, record.timestamp + gap
        joined = None
        for session in sessions:
            if session.start < until and at < session.end:
                if joined is not None:
                    return None
                joined = session
        if joined is None:
            joined = NewSession(at, until)
            sessions.append(joined)
            check_in_calendar(at, at, until)
        elif at < joined.start or joined.end < until:
            joined.start, joined.end = min(at, joined.start), max(until, joined.end)
            check_in_calendar(at, joined.start, joined.end)
        joined.records.append(record)
    return sessions


def check_kind(kind: RowKind) -> None:
    """Raise `ValueError` for a retraction."""
    if kind.is_retraction:
        msg = (
            f"these sessions cannot take a record back, and this one is {kind.symbol}: declare that records may be taken back, as in "
            "process(..., emits=ChangelogMode.RETRACT)"
        )
        raise ValueError(msg)


In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class Span(Struct, frozen=True):
    """First timestamp of a session, and the first one after it (ms)."""

    start: int
    end: int


class Emitted(Struct, frozen=True):
    """Emitted result, and the span of its session at that time. The class of an aggregation adds the `result`."""

    span: Span

    @property
    def at(self) -> int:
        """Return the event time of the result (ms)."""
        return self.span.end - 1


class Live(NamedTuple):
    """Session that can take records; `name` is the namespace of its accumulators."""

    name: str
    span: Span


class _Latest:
    """The session that took the last record of a bundle. Most records join the session of the one before them, and no other."""

    __slots__ = ("_bounds", "_changed_by", "_gap", "_lateness", "_name", "_span", "records")

    def __init__(
        self, session: Live, spans: Mapping[str, Span], records: list[BundledRecord], gap: int, lateness: int
    ) -> None:
        """Take the session, all spans of the key, and the list of the session's records in the bundle."""
        self.records = records
        self._name, span = session
        self._span = span.start, span.end
        ends = (other.end for other in spans.values() if other.end <= span.start)
        starts = (other.start for other in spans.values() if other.start >= span.end)
        self._bounds = max(ends, default=FIRST_TIME), min(starts, default=LAST_TIME)
        self._changed_by: BundledRecord | None = None
        self._gap, self._lateness = gap, lateness

    def takes(self, record: BundledRecord) -> bool:
        """Add a record, and return true, if it joins this session alone."""
        (start, end), (first, last) = self._span, self._bounds
        at = record.timestamp
        until = at + self._gap
        if not (first <= at < end and start < until <= last):
            return False
        if at < start or end < until:
            start, end = min(start, at), max(end, until)
            check_in_calendar(at, start, end, self._lateness)
            self._span, self._changed_by = (start, end), record
        self.records.append(record)
        return True

    def note(self, spans: dict[str, Span], changed_by: dict[str, BundledRecord]) -> None:
        """Note the session's span, and the record that changed it, if one has."""
        if self._changed_by is not None:
            spans[self._name], changed_by[self._name] = Span(*self._span), self._changed_by


class SessionAggregation(WindowFunction[In, Out], BundleFunction, ColumnFunction):
    """Aggregates over sessions.

    A session is named after the time of its first record to arrive (ms). `sessions` holds the span of each session,
    `accumulators` its aggregates, in the namespace of its name. An event-time timer in that namespace, at the session's
    last timestamp, makes it fire. Until then, `emitted` holds its latest early result, and `rows` counts those since.
    """

    sessions: MapState[str, Span]
    accumulators: AggregatingState[Change, Any, Any]
    emitted: ValueState[Any]
    rows: ReducingState[int]

    def __init__(
        self, shown: str, result: WindowResult, emitted: Any, *, gap: int, lateness: int, early: Early
    ) -> None:
        """Take the names and lengths: `shown` is for people, `emitted` is the type of that state, lengths are in ms."""
        self._shown = shown
        self._gap = gap
        self._window_result = result
        self._divided = None if result.pieces is None else DividedParts(result, result.pieces)
        self._emitted = emitted
        self._lateness = lateness
        self._early = early
        self._purges, self._rows = purges(early), rows_of(early)
        self.emits_panes = self._purges
        self.retracts = lateness > 0 or (early is not None and not self._purges)

    def column_reads(self) -> ColumnReads:
        """Return what the results of the windows read. A correction that changes nothing is none."""
        reads = self._window_result.column_reads()
        return reads.of_changes() if self.retracts else reads

    def unique_keys(self, fields: tuple[str, ...], _: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the key with the window's start, and with its end, if the result has them."""
        return () if self._purges else unique_by_bounds(self._window_result, fields)

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add a record to its session, and merge the sessions that it joins. Corrects emitted results."""
        check_kind(ctx.row_kind)
        at = ctx.timestamp
        joined = self._joined(at, await self._spans())
        session = self._session_with(at, joined)
        whole = session.span
        if self._over_at(whole) <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        check_in_calendar(at, whole.start, whole.end, self._lateness)
        before = await self._emitted_of(joined, ctx) if self.retracts else []
        await self._merge(session, joined, ctx)
        await self._add_one(session.name, Change(record, at))
        if self.retracts:
            self._replace(before, await self._result(session, ctx) if self._has_fired(whole, ctx) else None, ctx)
        if self._early is not None and not self._has_fired(whole, ctx):
            self._register_early(session, ctx)
            if self._rows is not None and await has_enough_rows(self.rows.namespace(session.name), self._rows):
                await self._emit_so_far(session, ctx)

    @cached_property
    def _columns(self) -> SessionColumns:
        from headrace.operators._session_columns import SessionColumns

        return SessionColumns(self._gap, self._window_result, Span)

    @property
    def takes_columns(self) -> bool:
        """Return whether records may come as columns: not where a record may correct a result."""
        return not self.retracts and self._early is None and self._window_result.takes_columns

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether it has a retraction, or a record whose time the watermark before it has passed; None if none has."""
        return self._columns.taken_singly(columns)

    def in_namespaces(self, columns: KeyedColumns, /) -> KeyedColumns | None:
        """Return the records by key and session; None if too many merges come behind one another."""
        return self._columns.in_sessions(columns)

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Add records to their sessions; return None if they have to be added one by one."""
        return self._columns.results(cast("SessionedColumns", columns))

    @property
    def takes_bundles(self) -> bool:
        """Return whether records may come in bundles: not with early results, which each record may retract."""
        return self._early is None

    @property
    def takes_single_records(self) -> bool:
        """Return whether a record may come alone: it does where the watermark behind it may end its session."""
        return not self._lateness

    def first_timer(self, timestamp: int, /) -> int:
        """Return the last timestamp of the session of a record that joins no other."""
        return timestamp + self._gap - 1

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Add records to their sessions, with one read of all sessions and one write for each. None of these has fired: no record is late."""
        stored = await self._spans()
        if stored or not self._take_new(bundle, ctx):
            await self._take_stored(bundle, stored, ctx)

    async def _take_stored(self, bundle: Bundle, stored: Mapping[str, Span], ctx: Context) -> None:
        spans, changed_by = dict(stored), dict[str, BundledRecord]()
        waiting: dict[str, list[BundledRecord]] = {}
        latest: _Latest | None = None
        for record in bundle.walk(bundle.records):
            if record.kind:
                check_kind(RowKind(record.kind))
            if latest is not None:
                if latest.takes(record):
                    continue
                latest.note(spans, changed_by)
            joined = self._joined(record.timestamp, spans)
            name, span = self._session_with(record.timestamp, joined)
            check_in_calendar(record.timestamp, span.start, span.end, self._lateness)
            if others := [old.name for old in joined[1:]]:
                await self._merge_waiting(name, others, waiting, bundle)
                bundle.work_on(record)
                await self._merge_rows(name, others)
                for other in others:
                    del spans[other]
            if spans.get(name) != span:
                spans[name], changed_by[name] = span, record
            latest = _Latest(Live(name, span), spans, waiting.setdefault(name, []), self._gap, self._lateness)
            latest.records.append(record)
        if latest is not None:
            latest.note(spans, changed_by)
        for name, records in waiting.items():
            await self._add_all(name, records, bundle)
        await self._write(stored, spans, changed_by, bundle, ctx)

    def _take_new(self, bundle: Bundle, ctx: Context) -> bool:
        """Emit the sessions of a key without state that the next watermark ends, and let the records of the others wait.

        So a session that begins and ends while records wait is never stored. Returns false, and does nothing, where this
        does not give the same: with lateness, where state outlives a session, and where a record merges sessions.
        """
        watermark = bundle.next_watermark
        if watermark is None or self._lateness or (sessions := new_sessions(bundle, self._gap)) is None:
            return False
        open_ = [session for session in sessions if session.end - 1 > watermark]
        if open_:
            if not bundle.may_wait:
                return False
            records = [record for session in open_ for record in session.records]
            if len(open_) > 1:
                records.sort(key=_order_of)
            bundle.wait(records, min(session.end for session in open_) - 1)
        result, key = self._window_result, ctx.key
        ended = [
            (session, result.add_together(BundledChanges(bundle, session.records), result.create()))
            for session in sessions
            if session.end - 1 <= watermark
        ]
        for session, part in ended:
            at = session.end - 1
            bundle.work_on_timer(at, session.name)
            result.emit(ctx, None, result.result(part, key, session.start, session.end), at=at)
        return True

    async def _merge_waiting(
        self, name: str, others: Sequence[str], waiting: dict[str, list[BundledRecord]], bundle: Bundle
    ) -> None:
        """Add what waits for sessions that are about to merge, in the order in which single records are added."""
        for added in (name, *others):
            await self._add_all(added, waiting.pop(added, ()), bundle)

    async def _write(
        self,
        stored: Mapping[str, Span],
        spans: Mapping[str, Span],
        changed_by: Mapping[str, BundledRecord],
        bundle: Bundle,
        ctx: Context,
    ) -> None:
        """Write the sessions that a bundle has changed, at the time of the record that did it."""
        await self._remove_replaced(stored, spans, ctx)
        for name, record in changed_by.items():
            if name in spans:
                bundle.work_on(record)
                await self._put(Live(name, spans[name]), ctx)

    async def _remove_replaced(self, stored: Mapping[str, Span], spans: Mapping[str, Span], ctx: Context) -> None:
        """Remove stored sessions that were merged into others, and the timers of those whose span has changed."""
        for name, span in stored.items():
            if spans.get(name) != span:
                self._delete_timers(Live(name, span), ctx)
            if name not in spans:
                await self.sessions.remove(name)

    async def _add_one(self, name: str, change: Change) -> None:
        part = self.accumulators.namespace(name)
        row = None if self._divided is None else await part.get()
        if self._divided is not None and row is not None and not stays(row, 1):
            await self._divided.prepare(self.accumulators, name, row, retracts=False)
        await part.add(change)

    async def _add_all(self, name: str, records: Sequence[BundledRecord], bundle: Bundle) -> None:
        part = self.accumulators.namespace(name)
        if records and (self._divided is None or stays(await part.get(), len(records))):
            await part.add_all(BundledChanges(bundle, records))
        elif records and self._divided is not None:
            await self._divided.add_all(self.accumulators, name, bundle, records)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit a session's result, or its early result, or free it."""
        name = ctx.namespace.removeprefix(FREE).removeprefix(EARLY).removeprefix(EVERY)
        span = await self.sessions.get(name)
        if span is None:
            return  # the session was freed, or merged into another
        if name == ctx.namespace and timestamp != span.end - 1:
            return  # the job had another gap, or lateness: it was the end of a session that had the same name then
        session = Live(name, span)
        if ctx.namespace.startswith(EARLY):
            await self._emit_early(session, timestamp, ctx)
            return
        if ctx.namespace.startswith(EVERY):
            await self._emit_so_far(session, ctx)
            return
        if name == ctx.namespace:
            await self._fire(session, ctx)
        if self._over_at(span) <= timestamp:
            await self.sessions.remove(name)
            await self._forget(session)
        else:
            ctx.timers.register_event_time(self._over_at(span), f"{FREE}{name}")

    async def _fire(self, session: Live, ctx: Context) -> None:
        """Emit a session's result at its end."""
        before = await self._end_early(session, ctx)
        self._replace(before, await self._result(session, ctx), ctx)

    async def _forget(self, session: Live) -> None:
        """Free what is stored of a session's records."""
        part = self.accumulators.namespace(session.name)
        if moved := moves_of(await part.get()):
            await DividedParts.clear_pieces(self.accumulators, session.name, moved)
        await part.clear()

    # ------------------------------------------------------------------------------------------------ early results

    def _register_early(self, session: Live, ctx: Context) -> None:
        """Register the next early result of a session that has not fired. Its start may have moved, and all steps with it."""
        early = self._early
        if isinstance(early, int):
            at = next_step(session.span.start, session.span.end, early, ctx.watermark)
            if at is not None:
                ctx.timers.register_event_time(at, f"{EARLY}{session.name}")
        elif early is not None and early.step is not None:
            ctx.timers.register_processing_time(end_of_step(early.step, ctx.processing_time), f"{EVERY}{session.name}")

    async def _emit_early(self, session: Live, timestamp: int, ctx: Context) -> None:
        """Emit a session's early result, at the end of a step.

        A session that has grown also does so at its former end: operators downstream can still retract the earlier
        result then.
        """
        if self._has_fired(session.span, ctx):
            return  # its final result follows at this watermark
        emitted = self.emitted.namespace(session.name)
        before = await emitted.value()
        is_step = isinstance(self._early, int) and (timestamp + 1 - session.span.start) % self._early == 0
        if not is_step and (before is None or before.at != timestamp):
            return  # the session began at another timestamp when the timer was registered
        await self._emit_so_far(session, ctx)

    async def _emit_so_far(self, session: Live, ctx: Context) -> None:
        """Emit a session's result so far in place of its early result, or, if results purge it, beside the ones before."""
        if self._has_fired(session.span, ctx):
            return  # its final result follows at this watermark
        now = await self._result(session, ctx)
        if self._purges:
            self._replace([], now, ctx)
            await self._forget(session)
            return
        emitted = self.emitted.namespace(session.name)
        before = await emitted.value()
        if are_identical(before, now):
            return
        self._replace([] if before is None else [before], now, ctx)
        await emitted.update(now)
        ctx.timers.register_event_time(now.at, f"{EARLY}{session.name}")

    async def _end_early(self, session: Live, ctx: Context) -> list[Any]:
        """Return the early result of a session that fires, if it has one; remove it, and what waits for the next one."""
        if self._rows is not None:
            await self.rows.namespace(session.name).clear()
        elif isinstance(self._early, Trigger) and self._early.step is not None:
            # A timer that is still there was set for the next end of a step.
            at = end_of_step(self._early.step, ctx.processing_time)
            ctx.timers.delete_processing_time(at, f"{EVERY}{session.name}")
        return [] if self._early is None or self._purges else await self._taken_early([session])

    # ----------------------------------------------------------------------------------------------------- sessions

    async def _spans(self) -> dict[str, Span]:
        """Return the spans of the key's sessions, by name."""
        return {name: span async for name, span in self.sessions.entries()}

    def _joined(self, at: int, spans: Mapping[str, Span]) -> list[Live]:
        """Return the sessions that a record at `at` joins, the earliest first."""
        end = at + self._gap
        joined = [Live(name, span) for name, span in spans.items() if span.start < end and at < span.end]
        if len(joined) > 1:
            joined.sort(key=lambda live: live.span.start)
        return joined

    def _session_with(self, at: int, joined: Sequence[Live]) -> Live:
        """Return the session of a record at `at` that joins these sessions, which are in order and do not overlap."""
        end = at + self._gap
        if not joined:
            return Live(str(at), Span(at, end))
        first, last = joined[0], joined[-1].span
        return Live(first.name, Span(min(at, first.span.start), max(end, last.end)))

    async def _merge(self, session: Live, joined: Sequence[Live], ctx: Context) -> None:
        """Replace sessions by the session that they merge into: move their accumulators, delete their timers."""
        if len(joined) == 1 and joined[0] == session:
            return
        for old in joined:
            self._delete_timers(old, ctx)
        others = [old.name for old in joined[1:]]
        if others:
            await self._merge_parts(session.name, others)
        for name in others:
            await self.sessions.remove(name)
        await self._put(session, ctx)

    async def _merge_parts(self, name: str, others: Sequence[str]) -> None:
        """Move what is stored of the records of other sessions to the session `name`."""
        await self._merge_rows(name, others)
        if self._rows is not None:
            await self.rows.merge_namespaces(name, others)

    async def _merge_rows(self, name: str, others: Sequence[str]) -> None:
        if self._divided is not None:
            await self._divided.merge(self.accumulators, name, others)
            return
        rows = await self.accumulators.get_namespaces((name, *others))
        await merge_parts(self.accumulators, name, others, rows)

    async def _put(self, session: Live, ctx: Context) -> None:
        """Write a session, and register its timers."""
        await self.sessions.put(session.name, session.span)
        if not self._has_fired(session.span, ctx):
            ctx.timers.register_event_time(session.span.end - 1, session.name)
        if self._lateness:
            ctx.timers.register_event_time(self._over_at(session.span), f"{FREE}{session.name}")

    def _delete_timers(self, session: Live, ctx: Context) -> None:
        ctx.timers.delete_event_time(session.span.end - 1, session.name)
        if self._lateness:
            ctx.timers.delete_event_time(self._over_at(session.span), f"{FREE}{session.name}")

    async def _emitted_of(self, joined: Sequence[Live], ctx: Context) -> list[Any]:
        """Return the results that a record retracts: those of fired sessions, and early ones where several sessions merge."""
        fired = [await self._result(session, ctx) for session in joined if self._has_fired(session.span, ctx)]
        if len(joined) == 1 or self._early is None:
            return fired
        return fired + await self._taken_early(
            [session for session in joined if not self._has_fired(session.span, ctx)]
        )

    async def _taken_early(self, sessions: Sequence[Live]) -> list[Any]:
        """Return the early results of sessions, and remove them."""
        taken = []
        for session in sessions:
            emitted = self.emitted.namespace(session.name)
            early = await emitted.value()
            if early is not None:
                taken.append(early)
                await emitted.clear()
        return taken

    def _replace(self, before: Sequence[Any], after: Any, ctx: Context) -> None:
        """Retract results, and emit the current one, if it is due.

        A session with another span is another row: a table by key and window must lose the previous row.
        """
        if len(before) == 1 and after is not None and before[0].span == after.span:
            self._window_result.emit(ctx, before[0].result, after.result, at=after.at)
            return
        for retracted in before:
            self._window_result.emit(ctx, retracted.result, None, at=retracted.at)
        if after is not None:
            self._window_result.emit(ctx, None, after.result, at=after.at)

    @staticmethod
    def _has_fired(span: Span, ctx: Context) -> bool:
        return span.end - 1 <= ctx.watermark

    def _over_at(self, span: Span) -> int:
        """Return the timestamp from which a session takes no more records (ms)."""
        return span.end - 1 + self._lateness

    async def _result(self, session: Live, ctx: Context) -> Any:
        """Return the result of a session, in the type of the state `emitted`."""
        span = session.span
        part = await self.accumulators.namespace(session.name).get()
        if moves_of(part) and self._divided is not None:
            part = (await self._divided.wholes(self.accumulators, {session.name: part}))[session.name]
        return self._emitted(span=span, result=self._window_result.result(part, ctx.key, span.start, span.end))

    def _rows_kept(self) -> str:
        return "two rows and a timer for each key and open session"

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        early: dict[str, Any] = {}
        kept = self._rows_kept()
        if self._early is not None:
            early["early_results"] = shown_early(self._early)
        if self._early is not None and not self._purges:
            kept += "; two more timers, and a row with the early result"
        return {
            "windows": self._shown,
            **self._window_result.described(),
            **early,
            "allowed_lateness": timedelta(milliseconds=self._lateness),
            "late_records": "go to side output 'late'" if self.emits_late else "are dropped",
            "state_kept": kept,
            "state_freed": "when the watermark passes the end of the session"
            + (" by allowed_lateness" if self._lateness else ""),
        }


def session_aggregation(
    name: str,
    result: WindowResult,
    /,
    *,
    shown: str,
    gap: int,
    lateness: int,
    early: Early,
    time: TimeDomain = TimeDomain.EVENT_TIME,
) -> WindowFunction[Any, Any]:
    """Return the function that makes results of sessions. Names of its states begin with `name`. Lengths are in ms."""
    takes, gives = result.takes, result.gives
    emitted_type: Any = msgspec.defstruct(
        f"Emitted{gives.__name__}", [("result", result.result_type)], bases=(Emitted,), frozen=True
    )

    name = timed_name(state_name(name, early), time)

    class Aggregation(SessionAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        sessions = MapState(name, str, Span)
        accumulators = AggregatingState(f"{name}_accumulators", aggregate_function(result))

    kind = in_time(Aggregation, time, early_states(name, early, emitted_type))
    return kind(shown, result, emitted_type, gap=gap, lateness=lateness, early=early)


_order_of = attrgetter("order")
