"""Tumbling, hopping, cumulative and calendar windows, as merged slices.

Windows share slices. So a record is added to the accumulator of one slice, and not to one for each window; a window
merges its slices when it fires.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.api.batches import (
    Bundle,
    BundledRecord,
    BundleFunction,
    ColumnFunction,
    ColumnResults,
    DueColumns,
    FiredColumns,
    KeyedColumns,
    TimerBundle,
)
from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import ColumnReads
from headrace.api.functions import Context, TimeDomain
from headrace.api.options import Trigger, WindowFunction
from headrace.api.records import RowKind, Struct
from headrace.api.states import AggregatingState, ReducingState, ValueState
from headrace.operators._accumulators import BundledChanges, Change, sign_of
from headrace.operators._event_time import check_in_calendar
from headrace.operators._normalize import IN_WINDOW, unmatched
from headrace.operators._processing_time import in_time, timed_name
from headrace.operators._slice_times import Sliced, SliceTimes
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
from headrace.operators._window_pieces import NO_PIECES, DividedParts, moves_of, stays
from headrace.operators._window_results import (
    BOUNDS,
    EARLY,
    WINDOW_END,
    WindowResult,
    aggregate_function,
    check_can_retract,
    check_kind,
    next_step,
    state_name,
    unique_by_bounds,
)

if TYPE_CHECKING:
    from headrace.operators._fired_windows import FiredWindows
    from headrace.operators._running_fields import Flags
    from headrace.operators._slice_columns import SliceColumns

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)

FREE = "free "
"""Prefix of the namespace of a timer that frees a slice; the slice's number follows. It sorts after the windows' namespaces."""

_kind_of = attrgetter("kind")
_time_of = attrgetter("timestamp")


class SlicedAggregation(WindowFunction[In, Out], BundleFunction, ColumnFunction):
    """Results of windows that consist of slices.

    The state stores a slice in the namespace of its number. An event-time timer at the last timestamp of each window
    makes it fire; a timer in a separate namespace frees a slice when no window needs it any more. With early results,
    a timer for each open window, in a namespace with the window's end, emits its result so far, or `rows` counts those
    since the last one. `emitted` holds that result until the window fires.
    """

    slices: AggregatingState[Change, Any, Any]
    emitted: ValueState[Any]
    rows: ReducingState[int]

    def __init__(self, windows: Sliced, result: WindowResult, *, lateness: int, early: Early, retracting: bool) -> None:
        """Take the windows and their result; lengths are in ms."""
        self._windows = windows
        self._times = SliceTimes(windows)
        self._shares_slices = len(windows.ends_of(windows.slice_of(0))) > 1
        self._window_result = result
        self._divided = None if result.pieces is None else DividedParts(result, result.pieces)
        self._lateness = lateness
        self._early = early
        self._refusing = result.retraction_refused_by()
        self._purges, self._rows = purges(early), rows_of(early)
        self.emits_panes = self._purges
        self._corrects_early = early is not None and not self._purges
        self.retracts = lateness > 0 or self._corrects_early or retracting

    def column_reads(self) -> ColumnReads:
        """Return what the results of the windows read. A correction that changes nothing is none."""
        reads = self._window_result.column_reads()
        return reads.of_changes() if self.retracts else reads

    def unique_keys(self, fields: tuple[str, ...], _: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return the key with the window's end, and with its start unless windows share it, if the result has them."""
        if self._purges:
            return ()
        ends = self._windows.ends_of(self._windows.slice_of(0))
        share_starts = len({*map(self._windows.start_of, ends)}) < len(ends)
        return unique_by_bounds(self._window_result, fields, [WINDOW_END] if share_starts else BOUNDS)

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add a record to its slice. Corrects windows that have fired already.

        A retraction that matches nothing goes to the quarantine. Raises `ValueError` for a retraction where a field
        cannot remove a record, and for a window outside the calendar.
        """
        check_kind(ctx.row_kind, self._refusing)
        sign = sign_of(ctx.row_kind)
        start = self._times.slice_of(ctx.timestamp)
        ends = self._times.ends_of(start)
        if self._over_at(ends[-1]) <= ctx.watermark:
            self.set_aside_late(record, ctx)
            return
        check_in_calendar(ctx.timestamp, self._times.start_of(ends[0]), ends[-1], self._lateness)
        slice_ = self.slices.namespace(str(start))
        stored = await slice_.get()
        divided, pieces = self._divided, NO_PIECES
        if divided is not None and stored is not None and not stays(stored, 1, retracts=sign < 0):
            stored, pieces = await divided.prepare(self.slices, str(start), stored, retracts=sign < 0)
        change = Change(record, ctx.timestamp, sign, pieces.values())
        if sign < 0 and not self._window_result.may_hold(change, stored):
            ctx.quarantine(unmatched(ctx.row_kind, IN_WINDOW))
            return
        fired = [end for end in ends if end - 1 <= ctx.watermark < self._over_at(end)]
        before = [await self._result(end, ctx) for end in fired]
        if stored is None:
            self._register(start, ctx)
        await slice_.add(change)
        if pieces and divided is not None:
            await divided.end(self.slices, str(start), pieces)
        for end, result in zip(fired, before, strict=True):
            self._window_result.emit(ctx, result, await self._result(end, ctx), at=end - 1)
        if self._early is not None:
            open_ends = [end for end in ends if end - 1 > ctx.watermark]
            self._register_early(open_ends, ctx)
            await self._count_rows(open_ends, ctx)

    @property
    def takes_bundles(self) -> bool:
        """Return whether records may come in bundles: not where they are counted, and each may emit a result."""
        return self._rows is None

    def first_timer(self, timestamp: int, /) -> int | None:
        """Return the last timestamp of a record's first window; None with early results, whose next one depends on the watermark."""
        return self._times.ends_of(self._times.slice_of(timestamp))[0] - 1 if self._early is None else None

    @cached_property
    def _columns(self) -> SliceColumns:
        from headrace.operators._slice_columns import SliceColumns

        fires = self.fires_columns
        return SliceColumns(self._times, self._window_result, self._timers_of, self._lateness, fires=fires)

    @property
    def takes_columns(self) -> bool:
        """Return whether records may come as columns: not where their windows may have early results."""
        return self._early is None and self._window_result.takes_columns

    def taken_singly(self, columns: KeyedColumns, /) -> Flags | None:
        """Return for each key whether it has a retraction, or a record behind the end of its first window; None if none has."""
        return self._columns.taken_singly(columns)

    def in_namespaces(self, columns: KeyedColumns, /) -> KeyedColumns:
        """Return the records by key and slice."""
        return self._columns.in_slices(columns)

    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Add records to their slices; return None if they have to be added one by one."""
        return self._columns.results(columns)

    @cached_property
    def _fired_windows(self) -> FiredWindows | None:
        from headrace.operators._fired_windows import FiredWindows

        return FiredWindows.of(self._times, self._window_result) if self.takes_timers else None

    @property
    def fires_columns(self) -> bool:
        """Return whether windows of many keys may fire together: where those of one may, and columns can merge the result."""
        return self._fired_windows is not None

    def fire_columns(self, due: DueColumns, /) -> FiredColumns | None:
        """Return the results of windows, and the slices that no later window has; None if they have to fire key by key."""
        windows = self._fired_windows
        return None if windows is None else windows.fired(due)

    async def process_bundle(self, bundle: Bundle, ctx: Context, /) -> None:
        """Add records to their slices, with one read and one write for each slice. No window of theirs has fired: none is late."""
        if any(map(_kind_of, bundle.records)):
            for record in bundle.walk(bundle.records):
                check_kind(RowKind(record.kind), self._refusing)
        by_slice = self._by_slice(bundle.records)
        known, divided = await self._known(by_slice), self._divided
        for start, all_records in by_slice.items():
            records = all_records if str(start) in known else self._from_first_addition(bundle, all_records)
            if not records:
                continue
            bundle.work_on(records[0])
            ends = self._times.ends_of(start)
            check_in_calendar(ctx.timestamp, self._times.start_of(ends[0]), ends[-1], self._lateness)
            if (name := str(start)) not in known:
                self._register(start, ctx)
            retracts = divided is not None and any(map(_kind_of, records))
            if divided is None or stays(known.get(name), len(records), retracts=retracts):
                await self.slices.namespace(name).add_all(BundledChanges(bundle, records))
            else:
                await divided.add_all(self.slices, name, bundle, records, retracts=retracts)
            self._register_early(ends, ctx)

    @staticmethod
    def _from_first_addition(bundle: Bundle, records: Sequence[BundledRecord]) -> Sequence[BundledRecord]:
        """Return the records of a new slice without the retractions before the first addition, which match nothing."""
        if not records[0].kind:
            return records
        additions = (place for place, record in enumerate(records) if not RowKind(record.kind).is_retraction)
        first = next(additions, len(records))
        for record in bundle.walk(records[:first]):
            bundle.quarantine(unmatched(RowKind(record.kind), IN_WINDOW))
        return records[first:]

    async def _known(self, starts: Collection[int]) -> Mapping[str, Any]:
        """Return those slices that the key has, by name."""
        names = tuple(map(str, starts))
        if len(names) > 1 or self._shares_slices:
            return await self.slices.get_namespaces(names)
        part = await self.slices.namespace(names[0]).get()  # sooner than reading all of the key
        return {} if part is None else {names[0]: part}

    def _by_slice(self, records: Sequence[BundledRecord]) -> dict[int, Sequence[BundledRecord]]:
        """Return the records of each slice, in the order of the first ones."""
        slice_of, times = self._times.slice_of, [*map(_time_of, records)]
        first = slice_of(min(times))
        if first == slice_of(max(times)):  # nearly always
            return {first: records}
        by_slice: dict[int, list[BundledRecord]] = {}
        for record, at in zip(records, times, strict=True):
            by_slice.setdefault(slice_of(at), []).append(record)
        return {**by_slice}

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit a window's result, or its early result, or free a slice."""
        if ctx.namespace.startswith((EARLY, EVERY)):
            await self._emit_early(int(ctx.namespace.removeprefix(EARLY).removeprefix(EVERY)), ctx)
            return
        if ctx.namespace:
            await self._free(int(ctx.namespace.removeprefix(FREE)), ctx)
            return
        end = timestamp + 1
        parts = await self._parts(end)
        before = await self._end_early(end, ctx)
        self._window_result.emit(ctx, before, self._merged(parts.values(), end, ctx.key), at=timestamp)
        for name in self._times.last_names_of(end):
            if name in parts and self._lateness:
                await self._free(int(name), ctx)
            elif name in parts:
                await self._clear(name, parts[name])

    @property
    def takes_timers(self) -> bool:
        """Return whether the windows that end at one watermark may fire together: not where results may be corrected, or come early."""
        return not self._lateness and self._early is None

    def read_by_timer(self, timestamp: int, /) -> str | None:
        """Return the name of a window's slice, if it has only one."""
        return None if self._shares_slices else self._times.names_of(timestamp + 1)[0]

    async def on_timers(self, bundle: TimerBundle, ctx: Context, /) -> None:
        """Emit the results of windows, with one read of their slices, and free the slices that no later window has."""
        names_of, key = self._times.names_of, ctx.key
        windows = [names_of(timer.timestamp + 1) for timer in bundle.timers]
        names = windows[0] if len(windows) == 1 else tuple(dict.fromkeys(chain(*windows)))
        rows = await self.slices.get_namespaces(names)
        parts = rows if self._divided is None else await self._divided.wholes(self.slices, rows)
        for timer, window in zip(bundle.walk(), windows, strict=True):
            end = timer.timestamp + 1
            result = self._merged([parts[name] for name in window if name in parts], end, key)
            self._window_result.emit(ctx, None, result, at=timer.timestamp)
            for name in self._times.last_names_of(end):
                if (part := parts.pop(name, None)) is not None:
                    await self._clear(name, part)

    def _register(self, start: int, ctx: Context) -> None:
        """Register the timers of a new slice. A timer that fires at the end of the input could not register those of windows that have fired."""
        for at, namespace in self._timers_of(start):
            if at > ctx.watermark:
                ctx.timers.register_event_time(at, namespace)

    def _timers_of(self, start: int) -> list[tuple[int, str]]:
        """Return the times (ms) and the namespaces of the timers of a slice: those of its windows, and the one that frees it."""
        ends = self._times.ends_of(start)
        timers = [(end - 1, "") for end in ends]
        if self._lateness:
            timers.append((self._over_at(ends[-1]), f"{FREE}{start}"))
        return timers

    # ------------------------------------------------------------------------------------------------ early results

    def _register_early(self, ends: Sequence[int], ctx: Context) -> None:
        """Register the next early result of each window, of which none has fired."""
        early = self._early
        for end in ends:
            if isinstance(early, int):
                at = next_step(self._times.start_of(end), end, early, ctx.watermark)
                if at is not None:
                    ctx.timers.register_event_time(at, f"{EARLY}{end}")
            elif early is not None and early.step is not None:
                ctx.timers.register_processing_time(end_of_step(early.step, ctx.processing_time), f"{EVERY}{end}")

    async def _count_rows(self, ends: Sequence[int], ctx: Context) -> None:
        """Count a row of each window, of which none has fired, and emit the result of a window that has enough of them."""
        for end in ends:
            if self._rows is not None and await has_enough_rows(self.rows.namespace(str(end)), self._rows):
                await self._emit_early(end, ctx)

    async def _emit_early(self, end: int, ctx: Context) -> None:
        if end - 1 <= ctx.watermark:
            return  # the window fires at this watermark, too
        now = await self._result(end, ctx)
        if self._purges:
            self._window_result.emit(ctx, None, now, at=end - 1)
            for name, row in (await self._stored_rows(end)).items():
                await self._clear(name, row)
            return
        emitted = self.emitted.namespace(str(end))
        before = await emitted.value()
        if not are_identical(before, now):
            self._window_result.emit(ctx, before, now, at=end - 1)
            await emitted.update(now)

    async def _end_early(self, end: int, ctx: Context) -> Any:
        """Return the early result of a window that fires, which its result replaces; remove it, and what waits for the next one."""
        if self._rows is not None:
            await self.rows.namespace(str(end)).clear()
        elif isinstance(self._early, Trigger) and self._early.step is not None:
            # A timer that is still there was set for the next end of a step.
            ctx.timers.delete_processing_time(end_of_step(self._early.step, ctx.processing_time), f"{EVERY}{end}")
        if not self._corrects_early:
            return None
        emitted = self.emitted.namespace(str(end))
        before = await emitted.value()
        await emitted.clear()
        return before

    # ----------------------------------------------------------------------------------------------------- results

    async def _free(self, start: int, ctx: Context) -> None:
        """Free a slice, or register the timer again: the lateness may have changed since the timer was registered."""
        over_at = self._over_at(self._times.ends_of(start)[-1])
        if over_at <= ctx.timestamp:
            await self._clear(str(start), await self.slices.namespace(str(start)).get())
        else:
            ctx.timers.register_event_time(over_at, f"{FREE}{start}")

    def _over_at(self, end: int) -> int:
        """Return the timestamp from which a window takes no more records (ms)."""
        return end - 1 + self._lateness

    async def _result(self, end: int, ctx: Context) -> Any:
        """Return the result of a window; None if it has no records."""
        return self._merged((await self._parts(end)).values(), end, ctx.key)

    async def _parts(self, end: int) -> dict[str, Any]:
        """Return the stored slices of a window, by name, the earliest first."""
        rows = await self._stored_rows(end)
        return rows if self._divided is None else await self._divided.wholes(self.slices, rows)

    async def _stored_rows(self, end: int) -> dict[str, Any]:
        """Return the stored rows of a window's slices, without their pieces, by name, the earliest first."""
        return await self.slices.get_namespaces(self._times.names_of(end))

    async def _clear(self, name: str, part: Any) -> None:
        """Remove a slice."""
        if moved := moves_of(part):  # maybe by an earlier version of the result, which had other aggregates
            await DividedParts.clear_pieces(self.slices, name, moved)
        await self.slices.namespace(name).clear()

    def _merged(self, parts: Collection[Any], end: int, key: Any) -> Any:
        """Return the result of a window that consists of these slices."""
        if not parts:
            return None
        first, *others = parts
        whole = self._window_result.merge(self._window_result.create(), first) if others else first
        for part in others:
            whole = self._window_result.merge(whole, part)
        return self._window_result.result(whole, key, self._times.start_of(end), end)

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        early = {} if self._early is None else {"early_results": shown_early(self._early)}
        kept = "a row for each key and slice, a timer for each key and open window"
        if self._corrects_early:
            kept += "; for early results, one more row and timer for each key and open window"
        return {
            "windows": str(self._windows),
            **self._window_result.described(),
            **early,
            "allowed_lateness": timedelta(milliseconds=self._lateness),
            "late_records": "go to side output 'late'" if self.emits_late else "are dropped",
            "state_kept": kept,
            "state_freed": "when the watermark passes the end of a slice's last window"
            + (" by allowed_lateness" if self._lateness else ""),
        }


def sliced_aggregation(
    windows: Sliced,
    result: WindowResult,
    /,
    *,
    lateness: int,
    early: Early,
    retracting: bool,
    time: TimeDomain = TimeDomain.EVENT_TIME,
) -> WindowFunction[Any, Any]:
    """Return the function that makes results of windows. Lengths are in ms.

    Raises `ValueError` where the input may retract records, and the result cannot.
    """
    if retracting:
        check_can_retract(result)
    takes, gives = result.takes, result.gives

    name = timed_name(state_name(windows.name, early), time)

    class Aggregation(SlicedAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        slices = AggregatingState(name, aggregate_function(result))

    kind = in_time(Aggregation, time, early_states(name, early, result.result_type))
    return kind(windows, result, lateness=lateness, early=early, retracting=retracting)
