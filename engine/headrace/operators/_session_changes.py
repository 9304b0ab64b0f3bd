"""Sessions of records that may be taken back: a record that goes can shorten a session, or divide it.

The records of a session are kept until it is over, and its result is made of those that are left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from headrace.api.functions import Context
from headrace.api.options import WindowFunction
from headrace.api.records import Struct
from headrace.api.states import MapState
from headrace.operators._accumulators import Change
from headrace.operators._event_time import check_in_calendar
from headrace.operators._normalize import IN_WINDOW, unmatched
from headrace.operators._over_rows import time_text
from headrace.operators._sessions import Live, SessionAggregation, Span
from headrace.operators._value_types import place_among
from headrace.operators._window_results import WindowResult

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

Results = dict[Span, Any]
"""Results of sessions."""


class Kept(Struct, frozen=True):
    """Records of one event time (ms), in order of arrival. The class of an aggregation adds the `records`."""

    at: int


class ChangedSessions(SessionAggregation[In, Out]):
    """Aggregates over sessions of a stream that takes records back.

    `sessions` holds *stretches*: sessions of all records, also of those that were taken back. So a record that is replaced (`-U`,
    `+U`) leaves its stretch as it is, and the sessions of the records that are left lie within it. They are emitted when the
    watermark passes the end of the stretch, and corrected by later changes.

    `kept_rows` holds the records of each time, in order of arrival; its namespaces are pieces of time as long as the gap. Times in one
    piece differ by less than the gap, so they belong to one stretch.
    """

    kept_rows: MapState[str, Any]

    def __init__(self, shown: str, result: WindowResult, kept: Any, *, gap: int, lateness: int) -> None:
        """Take the names and lengths: `shown` is for people, `kept` is the type of the rows, lengths are in ms."""
        super().__init__(shown, result, None, gap=gap, lateness=lateness, early=None)
        self._kept = kept

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add or remove a record. Corrects emitted results. A retraction that matches nothing goes to the quarantine."""
        joined = self._joined(ctx.timestamp, await self._spans())
        if ctx.row_kind.is_retraction:
            await self._take_back(record, joined, ctx)
        else:
            await self._add(record, joined, ctx)

    async def _add(self, record: In, joined: Sequence[Live], ctx: Context) -> None:
        at = ctx.timestamp
        stretch = self._session_with(at, joined)
        whole = stretch.span
        if self._over_at(whole) <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        check_in_calendar(at, whole.start, whole.end, self._lateness)
        before = {span: result for old in joined for span, result in (await self._emitted_in(old, ctx)).items()}
        await self._merge(stretch, joined, ctx)
        await self._put_records(at, [*await self._records_at(at), record])
        self._correct(before, await self._emitted_in(stretch, ctx), ctx)

    async def _take_back(self, record: In, joined: Sequence[Live], ctx: Context) -> None:
        at = ctx.timestamp
        if self._over_at(self._session_with(at, joined).span) <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        records = await self._records_at(at)
        place = place_among(records, record)
        if place is None:
            ctx.quarantine(unmatched(ctx.row_kind, IN_WINDOW))
            return
        stretch = next(live for live in joined if live.span.start <= at < live.span.end)
        before = await self._emitted_in(stretch, ctx)
        await self._put_records(at, [*records[:place], *records[place + 1 :]])
        self._correct(before, await self._emitted_in(stretch, ctx), ctx)

    @property
    def takes_bundles(self) -> bool:
        """Return False: each record is put by itself."""
        return False

    @property
    def takes_columns(self) -> bool:
        """Return False: each record is put by itself."""
        return False

    async def _fire(self, session: Live, ctx: Context) -> None:
        """Emit the results of the sessions in a stretch."""
        self._correct({}, await self._sessions_in(session, ctx), ctx)

    # --------------------------------------------------------------------------------------------------------- rows

    def _piece_of(self, at: int) -> int:
        return at // self._gap

    def _piece(self, number: int) -> MapState[str, Any]:
        return self.kept_rows.namespace(str(number))

    def _pieces(self, span: Span) -> Iterator[MapState[str, Any]]:
        """Yield the rows of a stretch, piece by piece."""
        last = span.end - self._gap
        return map(self._piece, range(self._piece_of(span.start), self._piece_of(last) + 1))

    async def _records_at(self, at: int) -> Sequence[Any]:
        """Return the records of a time, in order of arrival."""
        kept = await self._piece(self._piece_of(at)).get(time_text(at))
        return () if kept is None else kept.records

    async def _put_records(self, at: int, records: list[Any]) -> None:
        piece = self._piece(self._piece_of(at))
        await (piece.put(time_text(at), self._kept(at=at, records=records)) if records else piece.remove(time_text(at)))

    async def _forget(self, session: Live) -> None:
        for piece in self._pieces(session.span):
            await piece.clear()

    async def _merge_parts(self, name: str, others: Sequence[str]) -> None:
        """Do nothing: rows have their places by their times."""

    # ----------------------------------------------------------------------------------------------------- sessions

    async def _sessions_in(self, stretch: Live, ctx: Context) -> Results:
        """Return the results of the sessions in a stretch."""
        results, part, start, end = Results(), None, 0, 0
        for piece in self._pieces(stretch.span):
            async for kept in piece.values():
                if part is None or kept.at >= end:
                    self._end(results, part, Span(start, end), ctx)
                    part, start = self._window_result.create(), kept.at
                for record in kept.records:
                    part = self._window_result.add(Change(record, kept.at), part)
                end = kept.at + self._gap
        self._end(results, part, Span(start, end), ctx)
        return results

    def _end(self, results: Results, part: Any, span: Span, ctx: Context) -> None:
        if part is not None:
            results[span] = self._window_result.result(part, ctx.key, span.start, span.end)

    async def _emitted_in(self, stretch: Live, ctx: Context) -> Results:
        """Return the emitted results of a stretch: those of all its sessions, once it has fired."""
        return await self._sessions_in(stretch, ctx) if self._has_fired(stretch.span, ctx) else {}

    def _correct(self, before: Results, after: Results, ctx: Context) -> None:
        """Emit the change from some results to others: first the sessions that are gone."""
        for span in sorted(before.keys() | after.keys(), key=lambda span: (span in after, span.start)):
            self._window_result.emit(ctx, before.get(span), after.get(span), at=span.end - 1)

    def _rows_kept(self) -> str:
        return "a row and a timer for each key and open session, and a row for the records of each time"


def changed_sessions(
    name: str, result: WindowResult, /, *, shown: str, gap: int, lateness: int
) -> WindowFunction[Any, Any]:
    """Return the function that makes results of sessions of a stream that takes records back. Names of its states begin with `name`. Lengths are in ms."""
    takes, gives = result.takes, result.gives
    kept: Any = msgspec.defstruct(f"Kept{takes.__name__}", [("records", list[takes])], bases=(Kept,), frozen=True)  # type: ignore[valid-type]  # known when it is called

    class Aggregation(ChangedSessions[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        sessions = MapState(f"{name}_changed", str, Span)
        kept_rows = MapState(f"{name}_rows", str, kept)

    return Aggregation(shown, result, kept, gap=gap, lateness=lateness)
