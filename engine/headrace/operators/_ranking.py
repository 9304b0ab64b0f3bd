"""Order of a top-N, and texts that sort as values do.

Texts that sort like values: rankings compare them, and their state is sorted by them.

A text is ASCII, and no text is a prefix of another one for values of the same type. So texts of several values can be
concatenated, and JSON keeps their order.
"""

from __future__ import annotations

import decimal
import itertools
import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from heapq import nsmallest
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, NoReturn, get_args, get_origin
from uuid import UUID

import msgspec

from headrace.api.batches import BundledRecord
from headrace.api.column_reads import TIME, ColumnReads, Kind, copied, fields_read, read_of_value
from headrace.api.functions import Context
from headrace.api.options import Ranks
from headrace.api.records import RowKind, Struct, with_digits
from headrace.operators._value_types import (
    ORDERED,
    ValueType,
    annotated_type,
    are_equal,
    are_identical,
    first_identical,
    named,
    reader,
    value_type,
)

SortText = Callable[[Any], str]

_TOP_BIT = 1 << 63
_ALL_BITS = (1 << 64) - 1
_REVERSED = str.maketrans("0123456789abcdef.", "fedcba9876543210~")
_NULL, _VALUE = "0", "1"


def sort_text(shown: str, by: ValueType, *, descending: bool) -> SortText:
    """Return the function that makes texts of values of a type. None sorts before all values; `descending` reverses the order.

    `shown` names the values in errors. The function raises `ValueError` for a whole number of more than 64 bits, and a
    float that is NaN or infinite, and `TypeError` for a value of another type. Raises `TypeError` where the type is not
    known, or has no order.
    """
    ascending = _text_of(shown, by)
    if descending:
        return lambda value: ascending(value).translate(_REVERSED)
    return ascending


def _text_of(shown: str, by: ValueType) -> SortText:
    if by.type is None:
        msg = f"annotate what the function {shown} returns, or give a field"
        raise TypeError(msg)
    if get_origin(by.type) is tuple and Ellipsis not in get_args(by.type):
        return _or_null(_tuple_text(shown, by))
    maker: Callable[[Any, str], str] | None = _decimal_text(shown, by) if by.type is Decimal else _MAKERS.get(by.type)
    if maker is None:
        msg = f"{shown} is {by}, and only {named(ORDERED)}, and tuples of them, can be compared"
        raise TypeError(msg)
    held = (int, float) if by.type is float else by.type

    def text(value: Any) -> str:
        if not isinstance(value, held):
            _refuse(shown, by, value)
        return maker(value, shown)

    return _or_null(text)


def _tuple_text(shown: str, by: ValueType) -> SortText:
    parts = [_text_of(shown, annotated_type(part)) for part in get_args(by.type)]

    def text(values: Any) -> str:
        if not isinstance(values, tuple) or len(values) != len(parts):
            _refuse(shown, by, values)
        return "".join(part(value) for part, value in zip(parts, values, strict=True))

    return _or_null(text)


def _refuse(shown: str, by: ValueType, value: object) -> NoReturn:
    msg = f"{shown} is annotated as {by}, but gave {value!r:.100}"
    raise TypeError(msg)


def _or_null(text: SortText) -> SortText:
    return lambda value: _NULL if value is None else _VALUE + text(value)


def _integer(value: int, shown: str) -> str:
    if not -_TOP_BIT <= value < _TOP_BIT:
        msg = f"{shown} is {value}, more than 64 bits can hold"
        raise ValueError(msg)
    return f"{value + _TOP_BIT:016x}"


def whole_number_texts(numbers: Iterable[int]) -> list[str]:
    """Return the sort texts of whole numbers of 64 bits, none of which is null."""
    return [f"{_VALUE}{number + _TOP_BIT:016x}" for number in numbers]


def whole_numbers_of(text: str) -> list[int]:
    """Return the numbers of a text that consists of sort texts of whole numbers."""
    size = len(_VALUE) + 16
    return [int(text[end - 16 : end], 16) - _TOP_BIT for end in range(size, len(text) + 1, size)]


def _float(value: float, shown: str) -> str:
    if not math.isfinite(value):
        msg = f"{shown} is {value}, which can be neither compared nor stored: filter() such records"
        raise ValueError(msg)
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))  # -0.0 and 0.0 are equal
    return f"{bits ^ (_ALL_BITS if bits & _TOP_BIT else _TOP_BIT):016x}"


def _decimal_text(shown: str, by: ValueType) -> Callable[[Decimal, str], str]:
    """Return the function that makes texts of decimals of declared digits. Raises `TypeError` without them."""
    if by.digits is None:
        msg = f"{shown} is {by} without its digits, so it cannot be ranked: annotate it as Annotated[Decimal, Digits(18, 2)]"
        raise TypeError(msg)
    precision, scale = by.digits

    def text(value: Decimal, shown: str) -> str:
        number = with_digits(value, precision, scale) if value.is_finite() else None
        if number is None:
            msg = f"{shown} is {value}, which is not a decimal of {precision} digits, {scale} of them behind the point"
            raise ValueError(msg)
        return f"{int(number.scaleb(scale, _ALL_DIGITS)) + _HALF_OF_128_BITS:032x}"

    return text


_ALL_DIGITS = decimal.Context(prec=100)
_HALF_OF_128_BITS = 1 << 127


def _day(value: date, _: str) -> str:
    return f"{value.toordinal():07d}"


def _datetime(value: datetime, _: str) -> str:
    since = (value if value.tzinfo is not None else value.replace(tzinfo=UTC)) - _EPOCH
    return _duration(since, "")


def _time_of_day(value: time, _: str) -> str:
    return value.isoformat(timespec="microseconds")


def _duration(value: timedelta, _: str) -> str:
    return f"{value // _MICROSECOND + _HALF_OF_128_BITS:032x}"


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def _uuid(value: UUID, _: str) -> str:
    return value.hex


def _text(value: str, _: str) -> str:
    return f"{value.encode().hex()}."


def _bytes(value: bytes, _: str) -> str:
    return f"{value.hex()}."


def _bool(value: bool, _: str) -> str:  # noqa: FBT001 - it is the value
    return str(int(value))


_MAKERS: dict[Any, Callable[[Any, str], str]] = {
    int: _integer,
    float: _float,
    str: _text,
    bytes: _bytes,
    bool: _bool,
    date: _day,
    datetime: _datetime,
    time: _time_of_day,
    timedelta: _duration,
    UUID: _uuid,
}


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


Maker = Callable[[int, int, int], int]
"""Function that makes a field of the result from the rank, and the window's start and end (ms)."""


class Ranking:
    """Order of the records, and the results that are emitted for them.

    Of several with equal values, the record with the earliest event time comes first, and then the first to arrive.

    `row` is the type of a stored record, `rows` of a list of them. Raises `TypeError` for values that cannot be
    compared, and for a field of the result that nothing defines; `ValueError` for a field that the records lack.
    """

    def __init__(self, takes: type[Struct], ranks: Ranks, *, windowed: bool, unique: tuple[str, ...] = ()) -> None:
        """Read the types. `windowed` is true if there are windows, whose start and end the result may contain.

        Stored records of another `unique` key are in another field: a change of the key refuses the stored state.
        """
        self.takes = takes
        self.gives = ranks.result or takes
        self.n = ranks.n
        self.ties = ranks.ties
        self._order = read_of_value(ranks.by, Kind.SORT, takes) | fields_read([TIME], Kind.SORT)
        by = value_type(takes, ranks.by)
        self._shown_by = repr(ranks.by) if isinstance(ranks.by, str) else getattr(ranks.by, "__name__", "by")
        self._by = reader(ranks.by)
        self._text = sort_text(self._shown_by, by, descending=ranks.descending)
        self._descending = ranks.descending
        self._rank_fields: list[str] = []
        self._copied = {field.name for field in msgspec.structs.fields(self.gives)}
        """Fields of the result that hold those of the record."""
        self._bounds: set[str] = set()
        self._result: Callable[[Any, int, int, int], Any] | None = None
        if ranks.result is not None:
            makers = {field.name: self._maker(field, windowed=windowed) for field in msgspec.structs.fields(self.gives)}
            self._result = _result_of(self.gives, makers)
            self._copied = {name for name, maker in makers.items() if maker is None}
            self._bounds = {name for name, maker in makers.items() if maker in {_start, _end}}
        self.is_ranked = bool(self._rank_fields)
        """Whether results have a rank."""
        self.row: Any = msgspec.defstruct(
            f"Ranked{takes.__name__}",
            [("order", str), ("at", int), ("record", takes)],
            bases=(Row,),
            frozen=True,
            rename={"order": "__".join(["order_by", *unique])} if unique else None,
        )
        self.rows: Any = list[self.row]  # type: ignore[name-defined]  # known when it is called

    # -------------------------------------------------------------------------------------------------- annotations

    def _maker(self, field: msgspec.structs.FieldInfo, *, windowed: bool) -> Maker | None:
        """Return what makes a field; None if the record has it."""
        wanted = annotated_type(field.type)
        metadata = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
        if any(isinstance(mark, Rank) for mark in metadata):
            self._check_type(field.name, wanted, ValueType(int, may_be_none=False), "Rank()")
            self._rank_fields.append(field.name)
            return _rank
        if field.name in self.takes.__struct_fields__:
            self._check_type(field.name, wanted, value_type(self.takes, field.name), f"field '{field.name}'")
            return None
        if windowed and field.name in {WINDOW_START, WINDOW_END}:
            self._check_type(field.name, wanted, ValueType(int, may_be_none=False, unit="ms"), field.name)
            return _start if field.name == WINDOW_START else _end
        known = f"those of {self.takes.__name__}" + (f", '{WINDOW_START}' and '{WINDOW_END}'" if windowed else "")
        msg = (
            f"field '{field.name}' of {self.gives.__name__} does not say how it is made: annotate it, as in Annotated[int, Rank()]; "
            f"fields without an annotation are {known}"
        )
        raise TypeError(msg)

    def _check_type(self, name: str, wanted: ValueType, given: ValueType, shown: str) -> None:
        if not wanted.takes(given):
            msg = f"field '{name}' of {self.gives.__name__} is {wanted}, but {shown} gives {given}: correct the annotation"
            raise TypeError(msg)

    # --------------------------------------------------------------------------------------------------------- keys

    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields that tell results apart, by the fields of the stream's key: with them the rank, if there are several records."""
        if self.ties or not self.copies(fields):
            return ()
        if self.n == 1:
            return fields
        return (*fields, self._rank_fields[0]) if self.is_ranked else ()

    def copies(self, fields: tuple[str, ...]) -> bool:
        """Return whether results have these fields of the record, and there are some."""
        return bool(fields) and {*fields} <= self._copied

    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window."""
        return name in self._bounds

    def column_reads(self) -> ColumnReads:
        """Return what the results read: fields of their records, and the order of these."""
        ranks = dict.fromkeys(self._rank_fields, self._order)
        bounds = dict.fromkeys(self._bounds, fields_read([TIME], Kind.TRANSFORMATION))
        return ColumnReads(
            {**copied(self._copied), TIME: fields_read([TIME], Kind.IDENTITY), **ranks, **bounds}, self._order
        )

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

    @staticmethod
    def is_before(row: Any, other: Any) -> bool:
        """Return whether a row comes before another one, whichever of them arrived first."""
        return _place(row) < _place(other)

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
        """Return the index of the first row with an equal record, preferring an identical one, and the same event time; None without any.

        Event times may differ: a function that retracts a record emits the retraction with the time of another record
        by default.
        """
        equal = [place for place, other in enumerate(rows) if are_equal(other.record, row.record)]
        timed = [place for place in equal if rows[place].at == row.at]
        return first_identical([*timed, *equal], lambda place: rows[place].record, row.record)

    # ------------------------------------------------------------------------------------------------------ results

    def results(self, rows: Sequence[Any], start: int = 0, end: int = 0, *, first_rank: int = 1) -> list[Any]:
        """Return the results of sorted rows, of a window with this start and end (ms). Without ties, they may begin at `first_rank`."""
        make = self._result
        if make is None:
            return [row.record for row in rows]
        ranks = self._ranks(rows) if self.ties else itertools.count(first_rank)
        return [make(row.record, rank, start, end) for rank, row in zip(ranks, rows, strict=False)]

    @staticmethod
    def _ranks(rows: Sequence[Any]) -> Iterable[int]:
        """Return the ranks of rows, equal ones for equal values."""
        first_ranks: dict[str, int] = {}
        return [first_ranks.setdefault(row.order, rank) for rank, row in enumerate(rows, 1)]

    def emit(self, ctx: Context, before: Sequence[Timed], after: Sequence[Timed]) -> None:
        """Emit the changes from one list of results to another.

        With ranks, each rank whose result changes is updated. Without ranks, or where several results may have the same
        one, results that disappeared are deleted, and new ones inserted. A result is retracted with its original event time.
        """
        if self.is_ranked and not self.ties:
            for old, new in itertools.zip_longest(before, after):
                emit_update(ctx, old, new)
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


def _are_same(one: Timed, other: Timed) -> bool:
    return one[1] == other[1] and are_identical(one[0], other[0])


def emit_update(ctx: Context, before: Timed | None, after: Timed | None) -> None:
    """Emit the change of one result, such as that of a rank; None means no result."""
    if before is not None and after is not None and _are_same(before, after):
        return
    if before is not None:
        result, at = before
        ctx.collect(result, RowKind.DELETE if after is None else RowKind.UPDATE_BEFORE, timestamp=at)
    if after is not None:
        result, at = after
        ctx.collect(result, RowKind.INSERT if before is None else RowKind.UPDATE_AFTER, timestamp=at)


def _taken(rest: list[Timed], timed: Timed) -> bool:
    """Remove a result from `rest`, and return whether it was there."""
    place = next((place for place, other in enumerate(rest) if _are_same(other, timed)), None)
    if place is None:
        return False
    del rest[place]
    return True


def _result_of(gives: type[msgspec.Struct], makers: Mapping[str, Maker | None]) -> Callable[[Any, int, int, int], Any]:
    """Return the function that makes a result from a record, its rank, and the window's start and end (ms).

    A top-N makes several results for each record: one call reads all fields of the record, which takes half the time of a call
    for each.
    """
    read = _reader([name for name, make in makers.items() if make is None])
    of_window = [(column, make) for column, make in enumerate(makers.values()) if make is not None]
    is_positional = gives.__match_args__ == tuple(makers)

    def result(record: Any, rank: int, start: int, end: int) -> Any:
        values = [*read(record)]
        for place, make in of_window:
            values.insert(place, make(rank, start, end))
        return gives(*values) if is_positional else gives(**dict(zip(makers, values, strict=True)))

    return result


def _reader(names: Sequence[str]) -> Callable[[Any], Iterable[Any]]:
    """Return a function that reads several fields of a record."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda record: [getattr(record, name) for name in names]


def _rank(rank: int, start: int, end: int) -> int:
    del start, end
    return rank


def _start(rank: int, start: int, end: int) -> int:
    del rank, end
    return start


def _end(rank: int, start: int, end: int) -> int:
    del rank, start
    return end
