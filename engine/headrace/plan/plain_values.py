"""Plain Python values, as JSON, CSV and Avro hold them, as columns of a record.

The rules are those of `headrace.plan.source_values`: text never becomes a number, nor a number a truth value. Times are
the exception, since these formats have none: a number is milliseconds since 1970, a text is ISO 8601.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
from msgspec.structs import fields

from headrace.plan.column_types import Column, columns_of
from headrace.plan.columns import record_error
from headrace.plan.source_values import Fault, Faults
from headrace.plan.value_arrays import UnfitRecord, to_array

MISSING: Final = msgspec.UNSET
"""Marks a field that a row does not have."""

_SHOWN: Final = 200
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_INT64: Final = range(-(2**63), 2**63)
_ISO: Final = re.compile(
    r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)
_FRACTION: Final = re.compile(r"[.,](\d{1,9})")
_FAST: Final[Mapping[pa.DataType, frozenset[type]]] = {
    pa.string(): frozenset({str, type(None)}),
    pa.int64(): frozenset({int, type(None)}),
    pa.float64(): frozenset({float, type(None)}),
    pa.bool_(): frozenset({bool, type(None)}),
    pa.binary(): frozenset({bytes, type(None)}),
}
"""Python types whose values Arrow accepts unchanged."""


class Instant(NamedTuple):
    """A moment that a format marks as one (ms since 1970)."""

    milliseconds: int


class OtherType(NamedTuple):
    """A value of a type that no field of a record has, as errors show it."""

    text: str

    def __repr__(self) -> str:
        """Return the text."""
        return self.text


class _UnfitValue(Exception):  # noqa: N818 - it never leaves this module
    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(why)
        self.why, self.path = why, path


_Reader = Callable[[Any], Any]


def to_column(values: Sequence[Any], column: Column, record: type[msgspec.Struct] | None) -> tuple[pa.Array, Faults]:
    """Return values of one field as an array of the column's type, null where there is a fault.

    `record` has the field, and its default for rows without a value (`MISSING`); None: missing values are nulls. Nulls
    and values that the field does not allow are left for `headrace.plan.source_values.fitting` to refuse.
    """
    types = {type(value) for value in values}
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
            faults[position] = Fault(error.path, error.why)
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
    defaults = _defaults(record)
    if column.name in defaults:
        return defaults[column.name]
    if column.required and column.nullable:
        return None
    raise _UnfitValue("is missing" if column.required else "is missing, and its default does not fit a column")


@cache
def _defaults(record: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the default of each field that has one which a column can hold, converted for Arrow."""
    columns = {column.name: column for column in columns_of(record)}
    defaults = {}
    for info in fields(record):
        if not info.required:
            try:
                value = info.default if info.default is not msgspec.NODEFAULT else info.default_factory()
            except BaseException as error:
                raise record_error(record, {info.name: "the default"}, error) from error
            try:
                defaults[info.name] = to_array([value], replace(columns[info.name], nullable=True))[0].as_py()
            except UnfitRecord:
                continue
    return defaults


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
    raise _UnfitValue(f"is {value!r:.{_SHOWN}}, which is not {'a timestamp' if column.is_time else column.type}")


def _text(value: Any, column: Column) -> Any:
    if not isinstance(value, str):
        _refuse(value, column)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _UnfitValue(f"is {value!r:.{_SHOWN}}, which is not UTF-8") from None
    return value


def _integer(value: Any, column: Column) -> int:
    number: int
    if isinstance(value, float) and value.is_integer():
        number = int(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        _refuse(value, column)
    return number if number in _INT64 else _refuse(value, column)


def _float(value: Any, column: Column) -> float:
    if isinstance(value, float):
        return value
    if not isinstance(value, int) or isinstance(value, bool):
        _refuse(value, column)
    try:
        number = float(value)
    except OverflowError:
        return float(_refuse(value, column))
    return number if int(number) == value else float(_refuse(value, column))


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
    if isinstance(value, Instant):
        return _integer(value.milliseconds, column)
    if isinstance(value, str):
        moment = milliseconds_of(value)
        if moment is None:
            raise _UnfitValue(f"is {value!r:.{_SHOWN}}, which is not a timestamp")
        return moment
    return _integer(value, column)


def _truth(value: Any, column: Column) -> Any:
    return value if isinstance(value, bool) else _refuse(value, column)


_SCALARS: Final[Mapping[pa.DataType, Callable[[Any, Column], Any]]] = {
    pa.string(): _text,
    pa.int64(): _integer,
    pa.float64(): _float,
    pa.bool_(): _truth,
    pa.binary(): _bytes,
}


def milliseconds_of(text: str) -> int | None:
    """Return a text of ISO 8601, a day or a day and a time of day, in milliseconds since 1970.

    Without a zone it is in UTC. Fractions of a millisecond are cut off. None for any other text.
    """
    if _ISO.fullmatch(text) is None:
        return None
    fraction = _FRACTION.search(text)
    plain = _FRACTION.sub("", text)
    try:
        moment = datetime.fromisoformat(plain)
        seconds = round(((moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - _EPOCH).total_seconds())
    except (ValueError, OverflowError):
        return None
    return seconds * 1_000 + (int(fraction[1].ljust(3, "0")[:3]) if fraction else 0)


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

    def read_struct(value: Any) -> Any:
        if not isinstance(value, dict):
            _refuse(value, column)
        return {name: _within(read, value.get(name, MISSING), f".{name}") for name, read in parts}

    return read_struct


def _within(read: _Reader, value: Any, path: str) -> Any:
    try:
        return read(value)
    except _UnfitValue as error:
        raise _UnfitValue(error.why, path + error.path) from None
