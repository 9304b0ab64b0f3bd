"""Windows of a number of rows of each key, in arrival order (Flink: `countWindow`)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, TypeVar

import msgspec

from headrace.api.column_reads import ColumnReads
from headrace.api.functions import Context, TimeDomain
from headrace.api.options import JoinFunction, Ranks, WindowFunction, WindowJoin, WindowOptions, Windows
from headrace.api.records import Struct
from headrace.api.states import ValueState
from headrace.api.ttl import AnyTtl, StateTtl, TtlTime, ttl_of
from headrace.names import counted
from headrace.operators._accumulators import Change
from headrace.operators._event_time import freed_by
from headrace.operators._result_record import ResultRecord
from headrace.operators._window_results import RankedWindow, WindowResult

In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


@dataclass(frozen=True, slots=True)
class CountWindow(Windows):
    """Windows of `size` rows of a key: `CountWindow(100, state_ttl=timedelta(days=30))`, or `CountWindow(100, 10, ...)` for the last 100 at each tenth row.

    Rows count in arrival order. With each `slide`-th row of the key (by default each `size`-th one), the result of the
    last `size` rows is emitted; the first ones have fewer, as in Flink. A result has the event time of the row that
    completes its window, and no bounds.

    A key without further rows never completes its window: `state_ttl` says how long its state is kept after the last row, and
    may be `Lifetime.FOREVER`.

    Raises `ValueError` unless `size` is a whole number of at least 1, `slide` from 1 to `size`, and without a `state_ttl`.
    """

    size: int
    slide: int | None = None
    _: KW_ONLY
    state_ttl: AnyTtl | None = None

    has_bounds = False

    def __post_init__(self) -> None:
        """Check the numbers and the TTL."""
        if not _is_whole(self.size) or self.size < 1:
            msg = f"size must be a whole number of rows of at least 1, not {self.size!r:.60}"
            raise ValueError(msg)
        if self.slide is not None and not (_is_whole(self.slide) and 1 <= self.slide <= self.size):
            msg = f"slide must be a whole number of rows from 1 to size ({self.size}), not {self.slide!r:.60}: rows between the windows would be lost"
            raise ValueError(msg)
        self._ttl()

    def __str__(self) -> str:
        """Return the windows as people write them."""
        return counted(self.size, "row") + ("" if self.slide is None else f", at each {self.slide:,}")

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        return f"count_{self.size}_by_{self._every}"

    @property
    def _every(self) -> int:
        return self.size if self.slide is None else self.slide

    def _ttl(self) -> StateTtl | None:
        """Return the TTL of the rows. A duration counts processing time: rows are counted by arrival, and an old one must not end the window."""
        ttl = ttl_of(
            self.state_ttl, kept="windows that never become full", after="the rows of such a window are forgotten"
        )
        return ttl if ttl is None or ttl is self.state_ttl else replace(ttl, time=TtlTime.PROCESSING)

    def aggregation(self, takes: type[In], gives: type[Out], options: WindowOptions, /) -> WindowFunction[In, Out]:
        """Return the function that makes a record `gives` of the records of each key and window."""
        return self._function(ResultRecord(takes, gives, options.key, retracting=False, windowed=False), options)

    def ranking(self, takes: type[In], ranks: Ranks, options: WindowOptions, /) -> WindowFunction[In, Any]:
        """Return the function that emits the first records of each key and window."""
        return self._function(RankedWindow(takes, ranks, retracting=False, windowed=False), options)

    def joining(self, join: WindowJoin, /) -> JoinFunction[Any, Any, Any]:
        """Refuse: windows that count rows cannot be joined. Raises `ValueError` always."""
        del join
        msg = "two streams have no common windows of a number of rows: join Tumbling, Hopping, Cumulative or Calendar windows"
        raise ValueError(msg)

    def _function(self, result: WindowResult, options: WindowOptions) -> WindowFunction[Any, Any]:
        if options.retracting:
            raise ValueError(
                "CountWindow needs a stream that takes nothing back, and this one may have -U or -D: the rows behind one that is "
                "taken back would be in other windows; use windows of time, or additions(), which makes each version of a row a new one"
            )
        if options.time is not TimeDomain.EVENT_TIME:
            raise ValueError("CountWindow counts rows, and knows no time: leave time out")
        if options.allowed_lateness or options.early is not None:
            raise ValueError(
                "CountWindow emits with each slide-th row, and no row is late: leave allowed_lateness and early out, and give "
                "a smaller slide for earlier results"
            )
        return _count_aggregation(self, result, self._every, self._ttl())


def _is_whole(number: object) -> bool:
    return isinstance(number, int) and not isinstance(number, bool)


class _Counted(Struct):
    """Stored rows of a key: `rows` since the last result, and `parts` of equal numbers of rows, of which the last one may have fewer."""

    rows: int
    parts: list[Any]


class CountAggregation(WindowFunction[In, Out]):
    """Results of windows of a number of rows.

    Rows are cut into parts, each as long as the greatest common divisor of size and slide, so that a window is a number
    of whole parts. All parts are one value, which lives and expires as a whole.
    """

    counted: ValueState[Any]

    def __init__(
        self, windows: CountWindow, result: WindowResult, stored: Any, *, slide: int, ttl: StateTtl | None
    ) -> None:
        """Take the windows, their result, and the type of the state."""
        self._windows = windows
        self._window_result = result
        self._stored = stored
        self._slide = slide
        self._ttl = ttl
        self._part = math.gcd(windows.size, slide)
        self._parts = windows.size // self._part
        """Number of parts of a window."""
        self._overlap = (windows.size - slide) // self._part
        """Number of parts that the next window has, too."""

    def column_reads(self) -> ColumnReads:
        """Return what the results of the windows read."""
        return self._window_result.column_reads()

    def unique_keys(self, _fields: tuple[str, ...], _taken: Any, /) -> tuple[tuple[str, ...], ...]:
        """Return none: a key has many results, and nothing tells them apart."""
        return ()

    async def process(self, record: In, ctx: Context, /) -> None:
        """Add a row, and emit the result of the window that it completes. Raises `ValueError` for a retraction."""
        if ctx.row_kind.is_retraction:
            msg = f"CountWindow cannot take a record back, and this one is {ctx.row_kind.symbol}: use windows of time"
            raise ValueError(msg)
        stored = await self.counted.value() or self._stored(rows=0, parts=[])
        parts, result = stored.parts, self._window_result
        if stored.rows % self._part == 0:
            parts.append(result.create())
        parts[-1] = result.add(Change(record, ctx.timestamp), parts[-1])
        stored.rows += 1
        if stored.rows == self._slide:
            result.emit(ctx, None, self._merged(parts[-self._parts :], ctx.key), at=ctx.timestamp)
            stored.rows, stored.parts = 0, parts[-self._overlap :] if self._overlap else []
        await (self.counted.update(stored) if stored.parts else self.counted.clear())

    def _merged(self, parts: list[Any], key: Any) -> Any:
        whole = self._window_result.create()
        for part in parts:
            whole = self._window_result.merge(whole, part)
        return self._window_result.result(whole, key, 0, 0)

    def side_types(self) -> dict[str, type[Struct]]:
        """Return no side outputs: no row is late."""
        return {}

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows: texts, lists of texts, and durations."""
        return {
            "windows": str(self._windows),
            **self._window_result.described(),
            "state_kept": f"a row for each key, with the aggregates of {counted(self._parts, 'part')} at most",
            "state_freed": freed_by(self._ttl) + ("" if self._overlap else ", and with each result"),
        }


def _count_aggregation(
    windows: CountWindow, result: WindowResult, slide: int, ttl: StateTtl | None
) -> WindowFunction[Any, Any]:
    takes, gives = result.takes, result.gives
    fields: Any = [("rows", int), ("parts", list[result.slice])]  # type: ignore[name-defined]  # known when it is called
    stored: Any = msgspec.defstruct(f"Counted{gives.__name__}", fields, bases=(_Counted,))

    class Aggregation(CountAggregation[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        counted = ValueState(windows.name, stored, ttl=ttl)

    return Aggregation(windows, result, stored, slide=slide, ttl=ttl)
