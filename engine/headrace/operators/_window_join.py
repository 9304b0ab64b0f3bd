"""Join the records of two streams that have the same key and lie in the same window (Flink SQL: window join)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, TypeVar

from headrace.api.changelog import StreamChanges
from headrace.api.column_reads import Kind
from headrace.api.functions import Context, TimeDomain
from headrace.api.options import JoinFunction, WindowJoin
from headrace.api.records import Struct
from headrace.api.states import ListState
from headrace.operators._event_time import check_in_calendar
from headrace.operators._normalize import IN_WINDOW, unmatched
from headrace.operators._processing_time import check_takes_nothing_back, in_time, timed_name
from headrace.operators._slice_times import Sliced, last_slices
from headrace.operators._value_types import place_among

Left = TypeVar("Left", bound=Struct)
Right = TypeVar("Right", bound=Struct)
Out = TypeVar("Out", bound=Struct)


class WindowJoinFunction(JoinFunction[Left, Right, Out]):
    """Joins the records of two streams in each window, when the watermark reaches its end.

    A record is stored once, in the namespace of its slice. An event-time timer at the last timestamp of each
    window joins the records of its slices.
    """

    KIND = "window join"
    TAKER = "join"
    time_kind = Kind.WINDOW
    LATE_LEFT = "late_left"
    LATE_RIGHT = "late_right"

    left: ListState[Any]
    right: ListState[Any]

    def __init__(self, windows: Sliced, join: WindowJoin) -> None:
        """Take the windows; `join` makes the results."""
        self._windows = windows
        self._join = join
        self.takes_null_keys = join.takes_null_keys

    async def process1(self, record: Left, ctx: Context, /) -> None:
        """Store a left record, or take one back; one whose windows have all fired is late."""
        await self._take(self.left, self.LATE_LEFT, record, ctx)

    async def process2(self, record: Right, ctx: Context, /) -> None:
        """Store a right record, or take one back; one whose windows have all fired is late."""
        await self._take(self.right, self.LATE_RIGHT, record, ctx)

    async def _take(self, side: ListState[Any], late: str, record: Any, ctx: Context) -> None:
        start = self._windows.slice_of(ctx.timestamp)
        ends = self._windows.ends_of(start)
        if ends[-1] - 1 <= ctx.watermark:
            self.set_aside_late(record, ctx, late)
            return
        check_in_calendar(ctx.timestamp, self._windows.start_of(ends[0]), ends[-1])
        records = side.namespace(str(start))
        if ctx.row_kind.is_retraction:
            await self._take_back(records, record, ctx)
            return
        await records.add(record)
        for end in ends:
            if end - 1 > ctx.watermark:
                ctx.timers.register_event_time(end - 1)

    @staticmethod
    async def _take_back(records: ListState[Any], record: Any, ctx: Context) -> None:
        """Remove a record from those of its slice. One that is not there goes to the quarantine."""
        held = list(await records.get())
        place = place_among(held, record)
        if place is None:
            ctx.quarantine(unmatched(ctx.row_kind, IN_WINDOW))
            return
        del held[place]
        await (records.update(held) if held else records.clear())

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Join the records of the window that ends now, and free the slices that no later window needs."""
        end = timestamp + 1
        slices = self._windows.slices_of(end)
        lefts, rights = await self._records(self.left, slices), await self._records(self.right, slices)
        for result in self._results(lefts, rights, is_null=self.has_null_key(ctx)):
            ctx.collect(result)
        for slice_ in last_slices(slices, end, self._windows.ends_of):
            await self.left.namespace(str(slice_)).clear()
            await self.right.namespace(str(slice_)).clear()

    def _results(self, lefts: Sequence[Any], rights: Sequence[Any], *, is_null: bool) -> Iterable[Any]:
        """Return the results of a key in a window: records whose key `is_null` match nothing."""
        results = self._join.results
        return chain(results(lefts, ()), results((), rights)) if is_null else results(lefts, rights)

    @staticmethod
    async def _records(side: ListState[Any], slices: Iterable[int]) -> list[Any]:
        reads = [side.namespace(str(slice_)).get() for slice_ in slices]
        return [record for read in reads for record in await read]

    def unique_keys(self, _: tuple[str, ...], taken: StreamChanges, /) -> tuple[tuple[str, ...], ...]:
        """Return those of the left records where each is emitted at most once: with inserts, of which none is in two windows."""
        is_in_one = len(self._windows.ends_of(self._windows.slice_of(0))) == 1
        return taken.unique if self._join.keeps_records and taken.mode.is_insert and is_in_one else ()

    def side_types(self) -> dict[str, type[Struct]]:
        """Return the function's side outputs, and the types of their records."""
        return {self.LATE_LEFT: self._join.left, self.LATE_RIGHT: self._join.right}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        sides = " and ".join(f"'{name}'" for name in sorted(self.declared))
        return {
            "windows": str(self._windows),
            "join": self._join.kind,
            "late_records": f"go to side output {sides}" if sides else "are dropped",
            "state_kept": "a row for each record of an open window, a timer for each key and open window",
            "state_freed": "when the watermark passes the end of a slice's last window",
        }


def window_join(windows: Sliced, join: WindowJoin, /) -> JoinFunction[Any, Any, Any]:
    """Return the function of `WindowedStream.join`, `semi_join` and `anti_join`.

    Raises `ValueError` for windows of processing time over a stream that may retract records.
    """
    check_takes_nothing_back(retracting=join.time is TimeDomain.PROCESSING_TIME and join.retracting)
    takes, joins, gives = join.left, join.right, join.gives
    name = timed_name(windows.name, join.time)

    class WindowJoining(WindowJoinFunction[takes, joins, gives]):  # type: ignore[valid-type]  # known when it is called
        left = ListState(f"{name}_left", takes)
        right = ListState(f"{name}_right", joins)

    return in_time(WindowJoining, join.time)(windows, join)
