"""Plain Python values, as JSON, CSV and Avro hold them, as columns of a record.

The rules are those of `headrace.records.source_values` and `headrace.records.value_rules`: text never becomes a number, nor a number
a truth value. Times are the exception, since these formats have none: a number is milliseconds since 1970, a text is ISO 8601.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import Column, near_misses
from headrace.records.defaults import defaults_of
from headrace.records.foreign_values import shown_plain
from headrace.records.problems import Problems, UnfitValue

MISSING: Final = msgspec.UNSET
"""Marks a field that a row does not have."""

_Reader = Callable[[Any], Any]


def to_column(values: Sequence[Any], column: Column, record: type[msgspec.Struct] | None) -> tuple[pa.Array, Problems]:
    """Return values of one field as an array of the type in which its kind reads them, null where there is a problem.

    `record` has the field, and its default for rows without a value (`MISSING`); None: missing values are nulls. Nulls
    and values that the field does not allow are left for `headrace.records.source_values.fitting` to refuse.
    """
    if isinstance(column.kind, ScalarKind) and column.kind.keeps(values):
        try:
            return pa.array(values, column.kind.read_type), {}
        except (pa.ArrowException, OverflowError, UnicodeEncodeError):
            pass  # one by one, to find the value that Arrow refuses
    read = _reader(column, record)
    plain, problems = [], {}
    for position, value in enumerate(values):
        try:
            plain.append(read(value))
        except UnfitValue as error:
            plain.append(None)
            problems[position] = error.problem
    return pa.array(plain, column.kind.read_type), problems


def _reader(column: Column, record: type[msgspec.Struct] | None) -> _Reader:
    """Return the function that converts a value of a column for Arrow, or raises `UnfitValue`."""
    read = _present_reader(column)

    def read_any(value: Any) -> Any:
        if value is None:
            return None
        if value is MISSING:
            return _default(column, record)
        return read(value)

    return read_any


def _default(column: Column, record: type[msgspec.Struct] | None) -> Any:
    """Return the value of a missing field: the default, else null where the field may be null. Raises `UnfitValue` otherwise."""
    if record is None:
        return None
    default = defaults_of(record).get(column.name)
    if default is not None:
        return default.as_py()
    if column.required and column.nullable:
        return None
    raise UnfitValue("is missing" if column.required else "is missing, and its default does not fit a column")


def _present_reader(column: Column) -> _Reader:
    if isinstance(column.kind, ScalarKind):
        return column.kind.read
    if column.record is not None:
        return _struct_reader(column, column.record)
    return _map_reader(column) if len(column.parts) > 1 else _list_reader(column)


def _list_reader(column: Column) -> _Reader:
    read = _reader(column.parts[0], None)

    def read_list(value: Any) -> Any:
        if not isinstance(value, list):
            raise _other_type(value, column)
        return [_within(read, item, f"[{at}]") for at, item in enumerate(value)]

    return read_list


def _map_reader(column: Column) -> _Reader:
    read_key, read = _key_reader(column.parts[0]), _reader(column.parts[1], None)

    def read_map(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _other_type(value, column)
        entries = [
            (_within(read_key, key, f"[{key!r}]"), _within(read, item, f"[{key!r}]")) for key, item in value.items()
        ]
        if len({key for key, _ in entries}) < len(entries):  # as 1 and 1.0 are one number
            raise UnfitValue("has a key twice")
        return entries

    return read_map


def _key_reader(column: Column) -> _Reader:
    """Return the function that converts a key of a map, which formats write as a text."""
    read, parse = _present_reader(column), column.kind.parse
    return read if parse is None else lambda key: read(parse(key))


def _struct_reader(column: Column, record: type[msgspec.Struct]) -> _Reader:
    parts = [(part.stored, _reader(part, record)) for part in column.parts]
    names = {part.stored for part in column.parts}

    def read_struct(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _other_type(value, column)
        missing = names - value.keys()
        for name, why in near_misses(missing, value) if missing else ():
            raise UnfitValue(why, f".{name}")
        return {name: _within(read, value.get(name, MISSING), f".{name}") for name, read in parts}

    return read_struct


def value_at(value: Any, path: Sequence[str]) -> Any:
    """Return the value at a path below an object: `MISSING` where a name of it is missing, None where an object on the way is null.

    Raises `UnfitValue` for a value on the way that is no object, and for a name that is almost there.
    """
    for at, name in enumerate(path):
        if value is None or value is MISSING:
            break
        if not isinstance(value, dict):
            why = f"is {shown_plain(value)}, which is no object with {name!r}"
            raise UnfitValue(why, ".".join(path[:at]))
        for _, why in near_misses([name], value) if name not in value else ():
            raise UnfitValue(why, ".".join(path[: at + 1]))
        value = value.get(name, MISSING)
    return value


def _other_type(value: Any, column: Column) -> UnfitValue:
    return UnfitValue(f"is {shown_plain(value)}, which is not {column.kind}")


def _within(read: _Reader, value: Any, path: str) -> Any:
    try:
        return read(value)
    except UnfitValue as error:
        problem = error.problem
        raise UnfitValue(problem.why, path + problem.path, of_file=problem.of_file) from None
