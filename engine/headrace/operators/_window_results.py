"""Results of a window: the interface that aggregates and rankings share, rankings, and early results."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from headrace.api.batches import BundleAggregate, BundledRecord
from headrace.api.column_reads import TIME, ColumnReads, Kind, Reads, fields_read
from headrace.api.functions import Context
from headrace.api.options import Ranks
from headrace.api.records import RowKind, Struct
from headrace.api.states import AggregateFunction
from headrace.names import counted
from headrace.operators._accumulators import BundledChanges, Change
from headrace.operators._ranking import Ranking, merged
from headrace.operators._triggers import Early, purges
from headrace.operators._value_types import are_identical

WINDOW_START = "window_start"
WINDOW_END = "window_end"
BOUNDS = (WINDOW_START, WINDOW_END)
"""Fields of a result that hold the bounds of its window."""


class PartPieces(abc.ABC):
    """Divides large parts: values move from the *row* of a part to *pieces*, which are parts without records.

    A part counts its changes in `changes` and the moves in `moved`, and all its pieces merged into its row are the whole part.
    """

    @abc.abstractmethod
    def is_full(self, part: Any) -> bool:
        """Return whether a row has too many values."""

    @abc.abstractmethod
    def piece_of(self, part: Any) -> Any:
        """Return a piece with the values of a row. It may share them with the row."""

    @abc.abstractmethod
    def rest_of(self, part: Any) -> Any:
        """Return a row without its values, after one more move. It is the given one, changed in place."""

    @abc.abstractmethod
    def whole_of(self, part: Any, pieces: Collection[Any]) -> Any:
        """Return a row with the values of its pieces, which are in the order of their values' arrival. None of them changes."""


class PartUpdate(Iterable[Change]):
    """Change of a whole part, which a state of parts takes in place of changes: it stores what `update` makes of the part."""

    def __init__(self, update: Callable[[Any], Any]) -> None:
        """Take the function."""
        self.update = update

    def __iter__(self) -> Iterator[Change]:
        """Yield nothing."""
        return iter(())


class WindowResult(abc.ABC):
    """Computation of a window's result from its records. A *part* is the stored form of some of them, and may be changed in place."""

    takes: type[Struct]
    """Type of the records."""
    gives: type[Struct]
    """Type of the emitted results."""
    slice: Any
    """Type of a part."""
    columns: dict[str, Reads]
    """What each field of a result reads."""
    chosen_by: Reads = frozenset()
    """What decides which results a window has."""
    pieces: PartPieces | None = None
    """How parts with many values are divided; None if they never are."""

    def column_reads(self) -> ColumnReads:
        """Return what windows with this result read. Their time is that of their results."""
        time = fields_read([TIME], Kind.WINDOW)
        return ColumnReads({**self.columns, TIME: fields_read([TIME], Kind.TRANSFORMATION)}, time | self.chosen_by)

    @property
    def result_type(self) -> Any:
        """Return the type of a window's result, which `result` returns and `emit` takes."""
        return self.gives

    @abc.abstractmethod
    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a result that tell it from others of its window, by the fields of the stream's key; none if nothing does."""

    @abc.abstractmethod
    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window: `window_start` or `window_end`."""

    @abc.abstractmethod
    def create(self) -> Any:
        """Return an empty part."""

    @abc.abstractmethod
    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change applied: a record added, or one removed that the part `may_hold`."""

    @abc.abstractmethod
    def may_hold(self, change: Change, part: Any) -> bool:
        """Return whether the part (None: there is none) may have the record of a retraction: false only where it surely has not."""

    def add_together(self, changes: BundledChanges, part: Any) -> Any:
        """Return `part` with all changes of a bundle applied: the same as one by one, which is how it is done by default.

        A retraction that matches nothing goes to the quarantine.
        """
        for change in changes:
            if change.sign < 0 and not self.may_hold(change, part):
                changes.set_aside()
            else:
                part = self.add(change, part)
        return part

    @property
    def takes_columns(self) -> bool:
        """Return whether records may be added together that come as columns. By default they may not."""
        return False

    @abc.abstractmethod
    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with the records of `other` merged in. `other` does not change; the records of `one` are earlier."""

    @abc.abstractmethod
    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the result of a key's window (start and end in ms); None if it has no records."""

    @abc.abstractmethod
    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit the change of a result from `before` to `after`; None means no result. `at` is the event time of both (ms)."""

    @abc.abstractmethod
    def retraction_refused_by(self) -> list[str]:
        """Return descriptions of the parts of the result that cannot remove a record again."""

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows."""


def unique_by_bounds(
    result: WindowResult, fields: tuple[str, ...], bounds: Sequence[str] = BOUNDS
) -> tuple[tuple[str, ...], ...]:
    """Return the unique keys of results: what tells those of a window apart, with each bound that tells windows apart."""
    key = result.key_of_results(fields)
    return tuple((*key, bound) for bound in bounds if key and result.has_bound(bound))


def check_can_retract(result: WindowResult) -> None:
    """Raise `ValueError` if some part of the result cannot remove a record again."""
    if refusing := result.retraction_refused_by():
        msg = (
            f"the stream may have -U and -D, and {', '.join(refusing)} cannot take a record back: give the AggregateFunction "
            "a method retract(), or use a stream that takes nothing back"
        )
        raise ValueError(msg)


def check_kind(kind: RowKind, refusing: Sequence[str]) -> None:
    """Raise `ValueError` for a retraction where parts of the result, `refusing`, cannot remove a record."""
    if kind.is_retraction and refusing:
        msg = (
            f"{', '.join(refusing)} cannot take a record back, and this one is {kind.symbol}: declare that records may be taken "
            "back, as in process(..., emits=ChangelogMode.RETRACT)"
        )
        raise ValueError(msg)


def aggregate_function(window_result: WindowResult) -> AggregateFunction[Change, Any, Any]:
    """Return the aggregate function of a state that holds parts; its result is the part itself."""
    part_type = window_result.slice

    class Parts(AggregateFunction[Change, part_type, part_type], BundleAggregate):  # type: ignore[valid-type]  # known when it is called
        def create_accumulator(self) -> Any:
            return window_result.create()

        def add(self, value: Change, accumulator: Any, /) -> Any:
            return window_result.add(value, accumulator)

        def add_all(self, values: Iterable[Change], accumulator: Any, /) -> Any:
            if isinstance(values, BundledChanges):
                return window_result.add_together(values, accumulator)
            if isinstance(values, PartUpdate):
                return values.update(accumulator)
            for value in values:
                accumulator = window_result.add(value, accumulator)
            return accumulator

        def get_result(self, accumulator: Any, /) -> Any:
            return accumulator

        def merge(self, one: Any, other: Any, /) -> Any:
            return window_result.merge(one, other)

    return Parts()


_kind_of = attrgetter("kind")


class _Rows(Struct):
    """Stored part of some records: the first ones, or all of them if records may be retracted."""

    first: list[Any]


class RankedWindow(WindowResult):
    """First records of a window. Its result is the list of emitted records."""

    def __init__(self, takes: type[Struct], ranks: Ranks, *, retracting: bool, windowed: bool = True) -> None:
        """Take the ranking. `retracting` says that records may be retracted: then all records are kept. Errors are those of `Ranking`."""
        self._ranking = Ranking(takes, ranks, windowed=windowed)
        self._retracting = retracting
        self.takes, self.gives = takes, self._ranking.gives
        reads = self._ranking.column_reads()
        self.columns, self.chosen_by = dict(reads.columns), reads.rows
        self.slice: Any = msgspec.defstruct(f"{takes.__name__}Ranks", [("first", self._ranking.rows)], bases=(_Rows,))

    @property
    def result_type(self) -> Any:
        """Return the type of a window's result, which `result` returns and `emit` takes."""
        return list[self.gives]  # type: ignore[name-defined]  # known when it is called

    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a result that tell it from others of its window: those of the key, and the rank if there are several."""
        return self._ranking.key_of_results(fields)

    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window."""
        return self._ranking.has_bound(name)

    def create(self) -> Any:
        """Return an empty part."""
        return self.slice(first=[])

    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change applied: a record added, or one removed that the part holds."""
        row = self._ranking.row_of(change.record, change.at)
        if change.sign < 0:
            place = self._ranking.place_of(part.first, row)
            if place is not None:
                part.first.pop(place)
            return part
        part.first = self._kept(self._ranking.inserted(part.first, row))
        return part

    @property
    def takes_columns(self) -> bool:
        """Return True: `with_records` adds records together."""
        return True

    def with_records(self, part: Any, records: Sequence[BundledRecord]) -> Any:
        """Return a part (None: there is none) with records added, none of which is a retraction. `part` does not change."""
        first = [] if part is None else part.first
        return self.slice(first=self._kept(self._ranking.with_records(first, records, keeps_all=self._retracting)))

    def may_hold(self, change: Change, part: Any) -> bool:
        """Return whether the part has the record of a retraction."""
        if part is None:
            return False
        return self._ranking.place_of(part.first, self._ranking.row_of(change.record, change.at)) is not None

    def add_together(self, changes: BundledChanges, part: Any) -> Any:
        """Return `part` with the changes applied: sorted together, where all are inserts."""
        rows = None
        if not any(map(_kind_of, changes.records)):
            # An error is raised again below, where the bundle's current record is the one that it belongs to.
            with contextlib.suppress(Exception):
                rows = self._ranking.with_records(part.first, changes.records, keeps_all=self._retracting)
        if rows is None:
            return super().add_together(changes, part)
        part.first = self._kept(rows)
        changes.end()
        return part

    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with the records of `other` merged in. `other` does not change; the records of `one` are earlier."""
        one.first = self._kept(merged(one.first, other.first))
        return one

    def _kept(self, rows: list[Any]) -> list[Any]:
        return rows if self._retracting else self._ranking.first(rows)

    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the result of a key's window (start and end in ms); None if it has no records."""
        del key
        if part is None or not part.first:
            return None
        return self._ranking.results(self._ranking.first(part.first), start, end)

    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit the change of a result from `before` to `after`; None means no result. `at` is the event time of both (ms)."""
        self._ranking.emit(ctx, [(result, at) for result in before or ()], [(result, at) for result in after or ()])

    def retraction_refused_by(self) -> list[str]:
        """Return an empty list if all records are kept; else the ranking."""
        return [] if self._retracting else ["the ranking"]

    def described(self) -> dict[str, Any]:
        """Return the properties that `headrace explain` shows."""
        first = f"{counted(self._ranking.n, 'record')}{' and all ties' if self._ranking.ties else ''} for each slice or session"
        kept = "all records of the window" if self._retracting else first
        return {**self._ranking.described(), "records_kept": kept}


EARLY = "early "
"""Prefix of the namespace of a timer that emits an early result; the window's identifier follows."""


def state_name(windows: str, early: Early) -> str:
    """Return the name of the windows' state.

    The name says whether there are early results: without them, early results of open windows would never be retracted.
    Where results purge a window, its state has not all of its records.
    """
    if early is None:
        return windows
    return f"{windows}_{'panes' if purges(early) else 'early'}"


def next_step(start: int, end: int, step: int, watermark: int) -> int | None:
    """Return the last timestamp of the step that contains the watermark; None if the window fires before. All times are ms.

    Steps count from the window's start. Before the start, the first step is next.
    """
    steps = max(0, (watermark + 1 - start) // step) + 1
    at = start + steps * step - 1
    return at if at < end - 1 else None


def emit_change(ctx: Context, before: Any, after: Any, *, at: int) -> None:
    """Emit the change of a result from `before` to `after`: nothing if they are identical. None means no result.

    `at` is the event time of both (ms): a result is retracted with its original event time, so that windows downstream
    find it in its window.
    """
    if are_identical(before, after):
        return
    if before is None:
        ctx.collect(after, timestamp=at)
    elif after is None:
        ctx.collect(before, RowKind.DELETE, timestamp=at)
    else:
        ctx.collect(before, RowKind.UPDATE_BEFORE, timestamp=at)
        ctx.collect(after, RowKind.UPDATE_AFTER, timestamp=at)
