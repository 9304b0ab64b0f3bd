"""Kinds of columns: one class for each holds all that the package knows of its values.

A kind is chosen once for a column, by the type of its field. `SCALARS` has the kinds of single values by the types that msgspec
reads from annotations: a new kind is a class here, and its line there. Lists, maps and structs consist of other kinds; the modules
that convert them go through their parts.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from decimal import Decimal
from types import NoneType
from typing import Any, Final, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from headrace.api.records import DIGITS, FLOORED, MOST_DIGITS, TIMESTAMP, with_digits
from headrace.records.array_rules import (
    between_milliseconds,
    floored_milliseconds,
    outside_calendar,
    short_decimals,
    whole_milliseconds,
)
from headrace.records.foreign_values import is_number, is_text, shown, shown_plain, shown_value
from headrace.records.problems import Problem, Problems, UnfitValue, refuse, utf8
from headrace.records.value_rules import (
    FIRST_TIME,
    INEXACT,
    LAST_TIME,
    OUTSIDE,
    TOO_FINE,
    Instant,
    IsoTime,
    exact_decimal,
    iso_day,
    iso_time,
    nearest_float,
    parsed_decimal,
    parsed_float,
    parsed_json,
    parsed_number,
    parsed_truth,
    whole_number,
)

Misfits = tuple[pa.BooleanArray, str]
"""Mask of the values that do not fit, and the reason that follows each of them."""


ValueNotation = Literal["text", "number", "truth", "day", "time"]
"""What texts of a format without types may write in several ways: numbers with a comma, days by a pattern."""


class ColumnKind(ABC):
    """Kind of a column's values. An error names it by its text."""

    type: pa.DataType
    """Type between stages."""

    sink_type: pa.DataType
    """Type in the table of a sink."""

    through: pa.DataType
    """Type by way of which Arrow casts one of them to the other."""

    parse: Callable[[str], Any] | None = None
    """Parser of texts of a format without types, as CSV; None where the text is the value."""

    notation: ValueNotation = "text"
    """What such texts write, for files that write it in another way."""

    def __str__(self) -> str:
        """Return what an error calls such a value."""
        return str(self.type)

    @abstractmethod
    def takes(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type may be values of this kind.

        Text never becomes a number, a number a truth value, or an instant an integer: that would hide mistakes upstream.
        """

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type that this kind takes sort in the order of its own values."""
        return not isinstance(kind, pa.BaseExtensionType)

    def to_sink(self, array: pa.Array) -> pa.Array:
        """Return values between stages as a sink stores them."""
        return array if self.type == self.sink_type else array.cast(self.through).cast(self.sink_type)

    def from_sink(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values of a sink as they are between stages."""
        return values.cast(self.through).cast(self.type)


class ScalarKind(ColumnKind):
    """Kind of single values."""

    python: type
    """Type of the values in records. Arrow takes plain values of it unchanged."""

    annotation: Any
    """Annotation by which msgspec checks values of records; None where it would accept others, too."""

    ddl: str
    """Name of the type in Spark's DDL."""

    contentless: Any
    """Value of a required field that a row need not have."""

    allowed: Mapping[str, Any] = {}
    """Values of a literal or enum by their texts; empty where every value is allowed."""

    has_file_problems: bool = False
    """Whether `file_problem` can find one."""

    def marked(self, extra: Mapping[str, Any]) -> ScalarKind:
        """Return the kind for fields of this kind whose annotation has these marks, such as that of `Timestamp`."""
        del extra
        return self

    # From records, and to records.

    def keeps(self, values: Sequence[Any]) -> bool:
        """Return whether Arrow stores all values as they are: they are of the kind's own type in Python, or None."""
        return {*map(type, values)} <= {self.python, NoneType}

    def exact(self, value: Any) -> Any:
        """Return a value of a record as Arrow takes it, None as None. Raises `UnfitValue` for another type."""
        plain = value.value if isinstance(value, enum.Enum) else value
        if type(plain) in {self.python, NoneType}:
            return plain
        why = f"is {shown(value)}, which is not {self.python.__name__}"
        raise UnfitValue(why)

    def without_names(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return values of records without the enums that name them."""
        return values

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which values of records JSON cannot hold, or with `sink` a sink; None where it holds all."""
        del array, sink
        return None

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values as records hold them."""
        values: list[Any] = array.to_pylist()
        return values

    # From sources.

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return a plain value of JSON, CSV or Avro as Arrow takes it. Raises `UnfitValue`."""

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return foreign values that this kind takes in its own type, null where there is a problem; add the problems."""
        return self._cast(array, problems)

    def file_problem(self, array: pa.Array) -> str | None:
        """Return why a file with these values, of any type, is refused as a whole. None for all other values."""
        del array
        return None

    def _parsed(
        self, array: pa.Array, texts: Sequence[str | None], parse: Callable[[str], Any], problems: Problems
    ) -> list[Any]:
        """Return what the `texts` of an array's values stand for; None for nulls, and for texts that stand for nothing: these are problems."""
        values = [None if text is None else parse(text) for text in texts]
        for position, (text, value) in enumerate(zip(texts, values, strict=True)):
            if value is None and text is not None:
                problems[position] = other_type(array[position], self)
        return values

    def _refuse(self, value: Any) -> NoReturn:
        why = f"is {shown_plain(value)}, which is not {self}"
        raise UnfitValue(why)

    def _cast(self, array: pa.Array, problems: Problems, start: int = 0) -> pa.Array:
        """Return the array in this type. Arrow refuses whole arrays, so halves are tried to find the refused values."""
        try:
            return array.cast(self.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            if len(array) == 1:
                problems[start] = other_type(array[0], self)
                return pa.nulls(1, self.type)
        middle = len(array) // 2
        halves = (array.slice(0, middle), start), (array.slice(middle), start + middle)
        return pa.concat_arrays([self._cast(half, problems, at) for half, at in halves])


def other_type(value: pa.Scalar, kind: ColumnKind) -> Problem:
    """Return the problem of a value that has not the type of a kind."""
    return Problem("", f"is {shown_value(value)}, which is not {kind}")


_NUMBERS: Final = frozenset({int, float, Decimal})


class Integer(ScalarKind):
    """Whole numbers of 64 bits."""

    type = sink_type = through = pa.int64()
    python = annotation = int
    ddl, contentless = "bigint", 0
    parse = staticmethod(parsed_number)
    notation: ValueNotation = "number"

    def marked(self, extra: Mapping[str, Any]) -> ScalarKind:
        """Return the kind of times for the marks of `Timestamp` and `FlooredTimestamp`."""
        return Time(floors=extra.get("finer") == FLOORED) if extra.get("arrow") == TIMESTAMP else self

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def read(self, value: Any) -> Any:
        """Return a whole number."""
        number = whole_number(value) if type(value) in _NUMBERS else None
        return self._refuse(value) if number is None else number


class Time(Integer):
    """Milliseconds since 1970; in a sink they are timestamps.

    A foreign time is an instant, a day, a number of milliseconds or a text of ISO 8601, as in JSON and CSV.
    """

    sink_type = pa.timestamp("us", tz="UTC")
    through = pa.timestamp("ms", tz="UTC")
    notation = "time"

    def __init__(self, *, floors: bool) -> None:
        """Make the kind: it rounds times that are finer than a millisecond down, or refuses them."""
        self.floors = floors
        self.has_file_problems = not floors

    def __str__(self) -> str:
        """Return what an error calls a time."""
        return "a timestamp"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds instants, days, texts or numbers."""
        return pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_text(kind) or is_number(kind)

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type sort in the order of times, as texts do not."""
        return super().sorts_like(kind) and not is_text(kind)

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which times no sink can hold."""
        return _outside_years(array) if sink else None

    def read(self, value: Any) -> Any:
        """Return a time in milliseconds."""
        if type(value) is date:
            return (value - _EPOCH_DAY).days * _DAY
        timestamp = iso_time(value) if isinstance(value, str) else value
        if not isinstance(timestamp, IsoTime | Instant):
            return super().read(value)
        if timestamp.is_finer and not self.floors:
            raise UnfitValue(f"is {shown_plain(value)}{TOO_FINE}", of_file=True)
        return timestamp.milliseconds

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return times in milliseconds."""
        if is_text(array.type):
            array = self._written(utf8(array, problems), problems)
        if pa.types.is_date(array.type):
            array = array.cast(_INSTANTS_OF_DAYS[array.type])
        if pa.types.is_timestamp(array.type):
            return self._milliseconds(array, problems)
        array = self._cast(array, problems)
        problem = _outside_years(array)
        return array if problem is None else refuse(array, problem[0], problems, problem[1])

    def file_problem(self, array: pa.Array) -> str | None:
        """Return why a file with the first time that is finer than a millisecond is refused."""
        value = self._finer(array)
        return None if value is None else f"holds {shown_value(value)}{TOO_FINE}"

    def _written(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts of ISO 8601 in milliseconds; those between milliseconds rounded down where the kind says so."""
        times = self._parsed(array, array.to_pylist(), iso_time, problems)
        is_finer = pa.array([time is not None and time.is_finer and not self.floors for time in times], pa.bool_())
        refuse(array, is_finer, problems, TOO_FINE)
        return pa.array([None if time is None else time.milliseconds for time in times], pa.int64())

    def _milliseconds(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return timestamps in milliseconds; those between milliseconds rounded down where the kind says so."""
        array = refuse(array, outside_calendar(array), problems, f", {OUTSIDE}")
        whole = whole_milliseconds(array)
        if whole is not None:
            return whole
        if not self.floors:
            array = refuse(array, between_milliseconds(array), problems, TOO_FINE)
        return floored_milliseconds(array)

    def _finer(self, array: pa.Array) -> pa.Scalar | None:
        if self.floors:
            return None
        if is_text(array.type):
            texts = utf8(array, {}).to_pylist()
            times = [iso_time(text) if text is not None and _MAY_BE_FINER.search(text) else None for text in texts]
            return next((array[at] for at, time in enumerate(times) if time is not None and time.is_finer), None)
        if not pa.types.is_timestamp(array.type) or whole_milliseconds(array) is not None:
            return None
        at = pc.index(between_milliseconds(array), True).as_py()
        return None if at < 0 else array[at]


_EPOCH_DAY: Final = date(1970, 1, 1)
_DAY: Final = 86_400_000
_MAY_BE_FINER: Final = re.compile(r"[.,]\d{4}")
"""Part of each text of a time that is finer than a millisecond. Looking for it costs a seventh of reading the text (timeit)."""
_INSTANTS_OF_DAYS: Final = {pa.date32(): pa.timestamp("s"), pa.date64(): pa.timestamp("ms")}


def _outside_years(times: pa.Array) -> Misfits | None:
    ends = pc.min_max(times).as_py()
    if ends["min"] is None or (ends["min"] >= FIRST_TIME and ends["max"] <= LAST_TIME):
        return None
    return pc.or_(pc.less(times, FIRST_TIME), pc.greater(times, LAST_TIME)), f" ms since 1970, {OUTSIDE}"


class Float(ScalarKind):
    """Numbers of which a float keeps all digits."""

    type = sink_type = through = pa.float64()
    python = annotation = float
    ddl, contentless = "double", 0.0
    parse = staticmethod(parsed_float)
    notation = "number"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def exact(self, value: Any) -> Any:
        """Return a float, also for an integer."""
        plain = value.value if isinstance(value, enum.Enum) else value
        if type(plain) is not int:
            return super().exact(value)
        try:
            return float(plain)
        except OverflowError:
            why = "is too large for a float"
            raise UnfitValue(why) from None

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which numbers JSON cannot hold: NaN and infinity."""
        return None if sink else (pc.invert(pc.is_finite(array)), ", which JSON cannot hold")

    def read(self, value: Any) -> Any:
        """Return the float nearest to a number, which must show all of its digits."""
        if isinstance(value, float):
            return value
        if type(value) not in _NUMBERS:
            self._refuse(value)
        number = nearest_float(value)
        if number is None:
            raise UnfitValue(f"is {shown_plain(value)}{INEXACT}")
        return number

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return floats, null for NaN: JSON writes NaN as null. It would write infinity as null, too, which is refused."""
        array = _floats(array, problems)
        array = refuse(array, pc.is_inf(array), problems, ", which JSON cannot hold")
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _floats(array: pa.Array, problems: Problems) -> pa.Array:
    """Return numbers as floats. A number whose digits no float shows is refused."""
    if pa.types.is_decimal(array.type):
        floats = short_decimals(array)
        return _nearest_floats(array, problems) if floats is None else floats
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:  # Arrow refuses all integers from 2**53 on
        return _nearest_floats(array, problems)


def _nearest_floats(array: pa.Array, problems: Problems) -> pa.Array:
    values = array.to_pylist()
    floats = [None if value is None else nearest_float(value) for value in values]
    for position, (value, number) in enumerate(zip(values, floats, strict=True)):
        if number is None and value is not None:
            problems.setdefault(position, Problem("", f"is {value}{INEXACT}"))
    return pa.array(floats, pa.float64())


class DecimalNumber(ScalarKind):
    """Decimals of a declared number of digits. They are exact: one with more digits is refused and never rounded."""

    python = Decimal
    annotation = None  # msgspec would take floats and texts for decimals
    parse = staticmethod(parsed_decimal)
    notation = "number"

    def __init__(self, precision: int, scale: int) -> None:
        """Take the number of all digits, and of those behind the point."""
        self.precision, self.scale = precision, scale
        self.type = self.sink_type = self.through = pa.decimal128(precision, scale)
        self.ddl = f"decimal({precision},{scale})"
        self._last_place = Decimal(1).scaleb(-scale)
        self.contentless = Decimal(0)

    def keeps(self, values: Sequence[Any]) -> bool:
        """Return whether all values have the column's digits behind the point.

        Arrow would make them of others, but pyarrow 26 gives wrong numbers where it drops 39 zeros and more: `1.55` and 39 zeros is 0.00.
        """
        return super().keeps(values) and all(value is None or self._last_place.same_quantum(value) for value in values)

    def __str__(self) -> str:
        """Return what an error calls such a number."""
        return f"a decimal of {self.precision} digits, {self.scale} of them behind the point"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def exact(self, value: Any) -> Any:
        """Return a decimal, also for an integer."""
        if value is None:
            return None
        if type(value) not in {Decimal, int}:
            return super().exact(value)
        return self._fitting(value)

    def read(self, value: Any) -> Any:
        """Return a number, which JSON may write as a text to keep its digits."""
        return self._fitting(value) if type(value) in _NUMBERS or isinstance(value, str) else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return decimals."""
        if pa.types.is_floating(array.type):
            return self._shown_by(array, problems)
        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(_DIGITS_OF_INTEGERS, 0))
        return self._cast(array, problems)

    def _shown_by(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the decimals that floats show: a float of 32 bits shows 0.1, though as one of 64 bits it is 0.10000000149."""
        texts = (array.cast(pa.float32()) if pa.types.is_float16(array.type) else array).cast(pa.string())
        return pa.array(self._parsed(array, texts.to_pylist(), self._exactly, problems), self.type)

    def _exactly(self, value: float | Decimal | str) -> Decimal | None:
        """Return the number that a value shows at the column's digits; None for one that needs more, and for no number."""
        number = exact_decimal(value)
        return None if number is None else with_digits(number, self.precision, self.scale)

    def _fitting(self, value: float | Decimal | str) -> Decimal:
        number = self._exactly(value)
        return self._refuse(value) if number is None else number


_DIGITS_OF_INTEGERS: Final = 20
"""Digits of the largest integer of 64 bits."""


class UndeclaredDecimal(DecimalNumber):
    """Decimals without declared digits, which no column has."""

    def __init__(self) -> None:
        """Make a kind of any digits."""
        super().__init__(MOST_DIGITS, 0)

    def marked(self, extra: Mapping[str, Any]) -> ScalarKind:
        """Return the kind for declared digits."""
        return DecimalNumber(*extra[DIGITS]) if DIGITS in extra else self


class Day(ScalarKind):
    """Days of the calendar, without a time of day and a zone."""

    type = sink_type = through = pa.date32()
    python = date
    annotation = None  # msgspec would take text for a day, and a datetime is a date in Python
    ddl, contentless = "date", date(1970, 1, 1)
    notation = "day"

    def __str__(self) -> str:
        """Return what an error calls a day."""
        return "a day such as 2026-01-31"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds days or texts. A timestamp is none: its day depends on a time zone."""
        return bool(pa.types.is_date(kind) or is_text(kind))

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type sort in the order of days: texts that are no days would not."""
        return super().sorts_like(kind) and not is_text(kind)

    def read(self, value: Any) -> Any:
        """Return a day, also for its text in ISO 8601."""
        day = iso_day(value) if isinstance(value, str) else value
        return day if type(day) is date else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return days within the calendar."""
        if is_text(array.type):
            return self._written(utf8(array, problems), problems)
        array = self._cast(array, problems)
        days = array.cast(pa.int32())
        outside = pc.or_(pc.less(days, _FIRST_DAY), pc.greater(days, _LAST_DAY))
        return refuse(days, outside, problems, f" days since 1970, {OUTSIDE}").cast(self.type)

    def _written(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the days of texts of ISO 8601."""
        return pa.array(self._parsed(array, array.to_pylist(), iso_day, problems), self.type)


_FIRST_DAY: Final = (date.min - _EPOCH_DAY).days
_LAST_DAY: Final = (date.max - _EPOCH_DAY).days


class Text(ScalarKind):
    """Texts of UTF-8. UUIDs, and texts marked as JSON, are texts as well."""

    type = sink_type = through = pa.string()
    python = str
    annotation: Any = str
    ddl, contentless = "string", ""

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds texts."""
        return is_text(kind) or isinstance(kind, pa.UuidType | pa.JsonType)

    def read(self, value: Any) -> Any:
        """Return a text."""
        if not isinstance(value, str):
            self._refuse(value)
        try:
            value.encode()
        except UnicodeEncodeError:
            why = f"is {shown(value)}, which is not UTF-8"
            raise UnfitValue(why) from None
        return value

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts."""
        if isinstance(array.type, pa.UuidType):
            array = pa.array(map(_uuid_text, array.storage.to_pylist()), pa.string())
        elif isinstance(array.type, pa.JsonType):
            array = array.storage
        return utf8(self._cast(array, problems), problems)


def _uuid_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Choice(Text):
    """Texts of a literal or enum: records hold members of the enum, and columns their texts."""

    def __init__(self, allowed: Mapping[str, Any]) -> None:
        """Take the values by their texts."""
        self.allowed = allowed
        self.annotation = Literal.__getitem__(tuple(allowed))
        self.contentless = next(iter(allowed))
        self._is_enum = any(value is not text for text, value in allowed.items())
        self._why = f", not one of {', '.join(allowed)}"

    def without_names(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the texts of members of an enum."""
        if not self._is_enum:
            return values
        return [value._value_ if isinstance(value, enum.Enum) else value for value in values]

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values as records hold them."""
        texts = array.to_pylist()
        return [*map(self.allowed.get, texts)] if self._is_enum else texts

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts that are allowed."""
        array = super().fit(array, problems)
        wrong = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(self.allowed, self.type))))
        return refuse(array, wrong, problems, self._why)


class Truth(ScalarKind):
    """Truth values."""

    type = sink_type = through = pa.bool_()
    python = annotation = bool
    ddl, contentless = "boolean", False
    parse = staticmethod(parsed_truth)
    notation = "truth"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds truth values."""
        return bool(pa.types.is_boolean(kind))

    def read(self, value: Any) -> Any:
        """Return a truth value."""
        return value if isinstance(value, bool) else self._refuse(value)


class Binary(ScalarKind):
    """Bytes, in texts as base64."""

    type = sink_type = through = pa.binary()
    python = bytes
    annotation = None  # msgspec would take text for base64
    ddl, contentless = "binary", b""

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds bytes."""
        is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
        return bool(is_variable or pa.types.is_fixed_size_binary(kind))

    def exact(self, value: Any) -> Any:
        """Return bytes, also for a bytearray."""
        return bytes(value) if isinstance(value, bytearray) else super().exact(value)

    def read(self, value: Any) -> Any:
        """Return bytes, also for a text of base64."""
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            self._refuse(value)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            why = f"is {shown(value)}, which is not base64"
            raise UnfitValue(why) from None


SCALARS: Final[Mapping[type[inspect.Type], ScalarKind]] = {
    inspect.IntType: Integer(),
    inspect.FloatType: Float(),
    inspect.StrType: Text(),
    inspect.BoolType: Truth(),
    inspect.BytesType: Binary(),
    inspect.DateType: Day(),
    inspect.DecimalType: UndeclaredDecimal(),
}
"""Kinds of single values by the types of msgspec."""


class NestedKind(ColumnKind):
    """Kind of values that consist of others."""

    parse = staticmethod(parsed_json)

    def __init__(self, make: Callable[[Callable[[ColumnKind], pa.DataType]], pa.DataType]) -> None:
        """Take the function that makes a type from a function for the types of the parts."""
        self.type = make(lambda part: part.type)
        self.sink_type = make(lambda part: part.sink_type)
        self.through = make(lambda part: part.through)

    @abstractmethod
    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return foreign values of the parts by their names, without those below nulls."""


class List(NestedKind):
    """Lists of any length."""

    def __init__(self, item: ColumnKind) -> None:
        """Take the kind of the items."""
        super().__init__(lambda type_of: pa.list_(pa.field("element", type_of(item))))

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds lists."""
        return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the items."""
        return {"element": array.flatten()}

    @staticmethod
    def offsets(array: pa.Array) -> list[int]:
        """Return where the items of each list begin among the values, and where the last list ends.

        A cast to one type of list would give the offsets, too. But pyarrow 26 truncates the values of a list of nulls when
        it casts it to a list of nulls: to as many as there are lists.
        """
        if pa.types.is_fixed_size_list(array.type):
            size = array.type.list_size
            return [(array.offset + row) * size for row in range(len(array) + 1)]
        offsets: list[int] = array.offsets.to_pylist()
        return offsets


class Map(NestedKind):
    """Maps with texts as keys."""

    def __init__(self, value: ColumnKind) -> None:
        """Take the kind of the values."""
        super().__init__(lambda type_of: pa.map_(pa.string(), type_of(value)))

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds maps."""
        return bool(pa.types.is_map(kind))

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the keys and the values."""
        entries = slice(array.offsets[0].as_py(), array.offsets[-1].as_py())
        return {"key": array.keys[entries], "value": array.items[entries]}


class Struct(NestedKind):
    """Structs with one field for each field of a record."""

    def __init__(self, parts: Mapping[str, ColumnKind]) -> None:
        """Take the kinds of the fields by their names."""
        super().__init__(lambda type_of: pa.struct([pa.field(name, type_of(part)) for name, part in parts.items()]))

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds structs."""
        return bool(pa.types.is_struct(kind))

    def children(self, array: pa.Array) -> Mapping[str, pa.Array]:
        """Return the fields that there are."""
        return dict(zip([field.name for field in array.type], array.flatten(), strict=True))


def spark_ddl(kind: pa.DataType) -> str:
    """Return the type of a column in Spark's DDL, as in "struct<`a`: bigint>"."""
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'{_quoted(field.name)}: {spark_ddl(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind):
        return f"array<{spark_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{spark_ddl(kind.key_type)}, {spark_ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return next(scalar.ddl for scalar in SCALARS.values() if scalar.type == kind)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
