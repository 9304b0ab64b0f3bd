"""First records of a key in some order, and the changes that they make to a table of ranks."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, get_args, get_origin

import msgspec

from headrace.api import Context, RowKind, Struct
from headrace.api.bundles import BundledRecord
from headrace.api.ranks import Ranks
from headrace.operators._sort_text import sort_text
from headrace.operators._value_types import ValueType, annotated_type, reader, value_type

WINDOW_START = "window_start"
WINDOW_END = "window_end"


@dataclass(frozen=True, slots=True)
class Rank:
    """Marks the field of a result that takes the rank: `rank: Annotated[int, Rank()]`. The first record has rank 1.

    With `ties`, records with equal values have the same rank, and the next one counts all before it: 1, 1, 3.
    """


class Row(Struct, frozen=True):
    """Stored form of a record: a text that sorts like its ranked value, and its event time (ms)."""

    order: str
    at: int
    record: Any


Maker = Callable[[Any, int, int, int], Any]
"""Function that makes a field of the result from a record, its rank, and the window's start and end (ms)."""


class Ranking:
    """Order of the records, and the results that are emitted for them.

    Of several with equal values, the record with the earliest event time comes first, and then the first to arrive.

    `row` is the type of a stored record, `rows` of a list of them. Raises `TypeError` for values that cannot be
    compared, and for a field of the result that nothing defines; `ValueError` for a field that the records lack.
    """

    def __init__(self, takes: type[Struct], ranks: Ranks, *, windowed: bool) -> None:
        """Read the types. `windowed` is true if there are windows, whose start and end the result may contain."""
        self.takes = takes
        self.gives = ranks.result or takes
        self.n = ranks.n
        self.ties = ranks.ties
        by = value_type(takes, ranks.by)
        self._shown_by = repr(ranks.by) if isinstance(ranks.by, str) else getattr(ranks.by, "__name__", "by")
        self._by = reader(ranks.by)
        self._text = sort_text(self._shown_by, by, descending=ranks.descending)
        self._descending = ranks.descending
        self._is_ranked = False
        self._makers: list[tuple[str, Maker]] | None = None
        if ranks.result is not None:
            makers = [
                (field.name, self._maker(field, windowed=windowed)) for field in msgspec.structs.fields(self.gives)
            ]
            self._makers = makers
        self.row: Any = msgspec.defstruct(
            f"Ranked{takes.__name__}", [("order", str), ("at", int), ("record", takes)], bases=(Row,), frozen=True
        )
        self.rows: Any = list[self.row]  # type: ignore[name-defined]  # known when it is called

    # -------------------------------------------------------------------------------------------------- annotations

    def _maker(self, field: msgspec.structs.FieldInfo, *, windowed: bool) -> Maker:
        wanted = annotated_type(field.type)
        metadata = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        if any(isinstance(mark, Rank) for mark in metadata):
            self._check_type(field.name, wanted, ValueType(int, may_be_none=False), "Rank()")
            self._is_ranked = True
            return _rank
        if field.name in self.takes.__struct_fields__:
            self._check_type(field.name, wanted, value_type(self.takes, field.name), f"field '{field.name}'")
            read = attrgetter(field.name)
            return lambda record, rank, start, end: read(record)  # noqa: ARG005 - all makers take them
        if windowed and field.name in {WINDOW_START, WINDOW_END}:
            self._check_type(field.name, wanted, ValueType(int, may_be_none=False), field.name)
            return _start if field.name == WINDOW_START else _end
        known = f"those of {self.takes.__name__}" + (f", '{WINDOW_START}' and '{WINDOW_END}'" if windowed else "")
        msg = (
            f"field '{field.name}' of {self.gives.__name__} does not say how it is made: annotate it, as in Annotated[int, Rank()]; "
            f"fields without an annotation are {known}"
        )
        raise TypeError(msg)

    def _check_type(self, name: str, wanted: ValueType, given: ValueType, shown: str) -> None:
        if given.type != wanted.type or (given.may_be_none and not wanted.may_be_none):
            msg = f"field '{name}' of {self.gives.__name__} is {wanted}, but {shown} gives {given}: correct the annotation"
            raise TypeError(msg)

    # --------------------------------------------------------------------------------------------------------- rows

    def row_of(self, record: Any, at: int) -> Any:
        """Return the stored form of a record. Raises `ValueError` for a value that cannot be compared."""
        return self.row(order=self._text(self._by(record)), at=at, record=record)

    @staticmethod
    def inserted(rows: Sequence[Any], row: Any, *, before_equal: bool = False) -> list[Any]:
        """Return sorted rows with a new one, the last to arrive; with `before_equal`, the first of its value and time."""
        bisect = bisect_left if before_equal else bisect_right
        place = bisect(rows, _place(row), key=_place)
        return [*rows[:place], row, *rows[place:]]

    def with_records(self, rows: Sequence[Any], records: Sequence[BundledRecord], *, keeps_all: bool) -> list[Any]:
        """Return sorted rows with new records, the last to arrive: all of them, or those that `first` needs.

        It is what `inserted` makes one by one, but makes no row of a record that is behind the last place.
        """
        texts = map(self._text, map(self._by, map(_record_of, records)))
        places = list(zip(texts, map(_time_of, records), strict=True))
        last = None if keeps_all else self._last_place(chain(map(_place, rows), places))
        new = [
            self.row(order=place[0], at=place[1], record=record.record)
            for place, record in zip(places, records, strict=True)
            if last is None or place <= last
        ]
        return merged(rows, new)

    def _last_place(self, places: Iterable[Place]) -> Place:
        """Return the place of the n-th row, or the last one if there are fewer. All its ties are before it."""
        order, at = nsmallest(self.n, places)[-1]
        return order, math.inf if self.ties else at

    def first(self, rows: Sequence[Any]) -> list[Any]:
        """Return the first `n` of sorted rows; with ties, also those whose value equals that of the last of these."""
        if not self.ties or len(rows) <= self.n:
            return list(rows[: self.n])
        return list(rows[: bisect_right(rows, rows[self.n - 1].order, lo=self.n, key=_order_of)])

    @staticmethod
    def place_of(rows: Sequence[Any], row: Any) -> int | None:
        """Return the index of the first row with an equal record, preferring the same event time; None if there is no such row.

        Event times may differ: a function that retracts a record emits the retraction with the time of another record
        by default.
        """
        places = [place for place, other in enumerate(rows) if other.record == row.record]
        return min(places, key=lambda place: rows[place].at != row.at, default=None)

    # ------------------------------------------------------------------------------------------------------ results

    def results(self, rows: Sequence[Any], start: int = 0, end: int = 0) -> list[Any]:
        """Return the results of the first rows, of a window with this start and end (ms)."""
        if self._makers is None:
            return [row.record for row in rows]
        return [
            self.gives(**{name: make(row.record, rank, start, end) for name, make in self._makers})
            for rank, row in zip(self._ranks(rows), rows, strict=True)
        ]

    def _ranks(self, rows: Sequence[Any]) -> Iterable[int]:
        if not self.ties:
            return range(1, len(rows) + 1)
        first_ranks: dict[str, int] = {}
        return [first_ranks.setdefault(row.order, rank) for rank, row in enumerate(rows, 1)]

    def emit(self, ctx: Context, before: Sequence[Timed], after: Sequence[Timed]) -> None:
        """Emit the changes from one list of results to another.

        With ranks, each rank whose result changes is updated. Without ranks, or where several results may have the same
        one, results that disappeared are deleted, and new ones inserted. A result is retracted with its original event time.
        """
        if self._is_ranked and not self.ties:
            for rank in range(max(len(before), len(after))):
                _update(ctx, before[rank : rank + 1], after[rank : rank + 1])
            return
        rest = list(before)
        new = [timed for timed in after if not _taken(rest, timed)]
        for result, at in rest:
            ctx.collect(result, RowKind.DELETE, timestamp=at)
        for result, at in new:
            ctx.collect(result, timestamp=at)

    def described(self) -> dict[str, Any]:
        """Return the ranking, for people."""
        first = "largest" if self._descending else "smallest"
        ties = ", and records equal to the last of them" if self.ties else ""
        return {"ranks": f"the first {self.n} by {self._shown_by}, {first} first{ties}"}


Timed = tuple[Any, int]
"""A result and its event time (ms)."""
Place = tuple[str, float]
"""Order text and event time (ms) of a row: rows are sorted by them, and then by arrival."""

_record_of = attrgetter("record")
_time_of = attrgetter("timestamp")
_order_of = attrgetter("order")
_place: Callable[[Any], Place] = attrgetter("order", "at")


def merged(rows: Sequence[Any], later: Sequence[Any]) -> list[Any]:
    """Return all rows, sorted; `later` are the last to arrive, in order of arrival."""
    return sorted([*rows, *later], key=_place)


def _update(ctx: Context, before: Sequence[Timed], after: Sequence[Timed]) -> None:
    """Emit the change of one rank; `before` and `after` have one result or none."""
    if list(before) == list(after):
        return
    for result, at in before:
        ctx.collect(result, RowKind.UPDATE_BEFORE if after else RowKind.DELETE, timestamp=at)
    for result, at in after:
        ctx.collect(result, RowKind.UPDATE_AFTER if before else RowKind.INSERT, timestamp=at)


def _taken(rest: list[Timed], timed: Timed) -> bool:
    """Remove a result from `rest`, and return whether it was there."""
    if timed in rest:
        rest.remove(timed)
        return True
    return False


def _rank(record: Any, rank: int, start: int, end: int) -> int:
    del record, start, end
    return rank


def _start(record: Any, rank: int, start: int, end: int) -> int:
    del record, rank, end
    return start


def _end(record: Any, rank: int, start: int, end: int) -> int:
    del record, rank, start
    return end
