"""Plain Python values, as JSON, CSV and Avro hold them, as columns of a record.

The rules are those of `headrace.records.source_values` and `headrace.records.value_rules`: text never becomes a number, nor a number
a truth value. Times are the exception, since these formats have none: a number is milliseconds since 1970, a text is ISO 8601.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.records.column_types import Column, near_misses
from headrace.records.defaults import defaults_of
from headrace.records.source_values import Fault, Faults
from headrace.records.value_rules import INEXACT, TOO_FINE, IsoTime, iso_time, nearest_float, whole_number

MISSING: Final = msgspec.UNSET
"""Marks a field that a row does not have."""

_SHOWN: Final = 200
_NUMBERS: Final = frozenset({int, float, Decimal})
_FAST: Final[Mapping[pa.DataType, frozenset[type]]] = {
    pa.string(): frozenset({str, type(None)}),
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, type(None)}),
    pa.bool_(): frozenset({bool, type(None)}),
    pa.binary(): frozenset({bytes, type(None)}),
}
"""Python types whose values Arrow accepts unchanged."""


class Instant(NamedTuple):
    """A moment that a format marks as one: a number since 1970, and how many of its units are a millisecond."""

    number: int
    per_millisecond: int = 1

    @property
    def milliseconds(self) -> int:
        """Return the milliseconds since 1970, rounded down."""
        return self.number // self.per_millisecond

    @property
    def is_finer(self) -> bool:
        """Return whether the moment is between two milliseconds."""
        return self.number % self.per_millisecond != 0


class OtherType(NamedTuple):
    """A value of a type that no field of a record has, as errors show it."""

    text: str

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


class _UnfitValue(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, why: str, path: str = "", *, of_file: bool = False) -> None:
        super().__init__(why)
        self.fault = Fault(path, why, of_file)


_Reader = Callable[[Any], Any]


def to_column(values: Sequence[Any], column: Column, record: type[msgspec.Struct] | None) -> tuple[pa.Array, Faults]:
    """Return values of one field as an array of the column's type, null where there is a fault.

    `record` has the field, and its default for rows without a value (`MISSING`); None: missing values are nulls. Nulls
    and values that the field does not allow are left for `headrace.records.source_values.fitting` to refuse.
    """
    types = {*map(type, values)}
    if types <= _FAST.get(column.type, frozenset()):
        try:
            return pa.array(values, column.type), {}
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            pass  # one by one, to find the value that Arrow refuses
    read = _reader(column, record)
    plain, faults = [], {}
    for position, value in enumerate(values):
        try:
            plain.append(read(value))
        except _UnfitValue as error:
            plain.append(None)
            faults[position] = error.fault
    return pa.array(plain, column.type), faults


def _reader(column: Column, record: type[msgspec.Struct] | None) -> _Reader:
    """Return the function that converts a value of a column for Arrow, or raises `_UnfitValue`."""
    read = _present_reader(column)

    def read_any(value: Any) -> Any:
        if value is None:
            return None
        if value is MISSING:
            return _default(column, record)
        return read(value)

    return read_any


def _default(column: Column, record: type[msgspec.Struct] | None) -> Any:
    """Return the value of a missing field: the default, else null where the field may be null. Raises `_UnfitValue` otherwise."""
    if record is None:
        return None
    default = defaults_of(record).get(column.name)
    if default is not None:
        return default.as_py()
    if column.required and column.nullable:
        return None
    raise _UnfitValue("is missing" if column.required else "is missing, and its default does not fit a column")


def _present_reader(column: Column) -> _Reader:
    if column.record is not None:
        return _struct_reader(column, column.record)
    if pa.types.is_map(column.type):
        return _map_reader(column)
    if column.parts:
        return _list_reader(column)
    read = _time if column.is_time else _SCALARS[column.type]
    return lambda value: read(value, column)


def _refuse(value: Any, column: Column) -> Any:
    raise _UnfitValue(f"is {_shown(value)}, which is not {'a timestamp' if column.is_time else column.type}")


def _shown(value: Any) -> str:
    """Return a value as errors show it."""
    if isinstance(value, Decimal):
        return f"{value!s:.{_SHOWN}}"
    if isinstance(value, Instant):
        return f"{value.number / value.per_millisecond} ms since 1970"
    return f"{value!r:.{_SHOWN}}"


def _text(value: Any, column: Column) -> Any:
    if not isinstance(value, str):
        _refuse(value, column)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _UnfitValue(f"is {value!r:.{_SHOWN}}, which is not UTF-8") from None
    return value


def _integer(value: Any, column: Column) -> int:
    number = whole_number(value) if type(value) in _NUMBERS else None
    return int(_refuse(value, column)) if number is None else number


def _float(value: Any, column: Column) -> float:
    if isinstance(value, float):
        return value
    if type(value) not in _NUMBERS:
        _refuse(value, column)
    number = nearest_float(value)
    if number is None:
        raise _UnfitValue(f"is {_shown(value)}{INEXACT}")
    return number


def _bytes(value: Any, column: Column) -> Any:
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            raise _UnfitValue(f"is {value!r:.{_SHOWN}}, which is not base64") from None
    return _refuse(value, column)


def _time(value: Any, column: Column) -> int:
    moment = iso_time(value) if isinstance(value, str) else value
    if not isinstance(moment, IsoTime | Instant):
        return _integer(value, column)
    if moment.is_finer and not column.floors:
        raise _UnfitValue(f"is {_shown(value)}{TOO_FINE}", of_file=True)
    return moment.milliseconds


def _truth(value: Any, column: Column) -> Any:
    return value if isinstance(value, bool) else _refuse(value, column)


_SCALARS: Final[Mapping[pa.DataType, Callable[[Any, Column], Any]]] = {
    pa.string(): _text,
    pa.int64(): _integer,
    pa.float64(): _float,
    pa.bool_(): _truth,
    pa.binary(): _bytes,
}


def _list_reader(column: Column) -> _Reader:
    read = _reader(column.parts[0], None)

    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            _refuse(value, column)
        return [_within(read, item, f"[{at}]") for at, item in enumerate(value)]

    return read_list


def _map_reader(column: Column) -> _Reader:
    read_key, read = _present_reader(column.parts[0]), _reader(column.parts[1], None)

    def read_map(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, column)
        return [
            (_within(read_key, key, f"[{key!r}]"), _within(read, item, f"[{key!r}]")) for key, item in value.items()
        ]

    return read_map


def _struct_reader(column: Column, record: type[msgspec.Struct]) -> _Reader:
    parts = [(part.name, _reader(part, record)) for part in column.parts]
    names = {part.name for part in column.parts}

    def read_struct(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, column)
        missing = names - value.keys()
        for name, why in near_misses(missing, value) if missing else ():
            raise _UnfitValue(why, f".{name}")
        return {name: _within(read, value.get(name, MISSING), f".{name}") for name, read in parts}

    return read_struct


def _within(read: _Reader, value: Any, path: str) -> Any:
    try:
        return read(value)
    except _UnfitValue as error:
        fault = error.fault
        raise _UnfitValue(fault.why, path + fault.path, of_file=fault.of_file) from None
