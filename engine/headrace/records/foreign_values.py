"""Foreign values, whatever their Arrow type: without dictionary, in a form that sorts, and as text.

Values and rows of a source become text whatever they contain: the description of a bad row must not fail.
"""

from __future__ import annotations

from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Final
from uuid import UUID

import msgspec
import pyarrow as pa

from headrace.records.value_rules import Instant

_WITHOUT_PYTHON: Final = (ValueError, OverflowError, KeyError, TypeError)
"""Errors of pyarrow for bytes that are not UTF-8, times outside the calendar, duplicate names or keys, and lists as keys."""

_SHOWN: Final = 200
"""Number of characters of a value that an error shows."""


def is_text(kind: pa.DataType) -> bool:
    """Return whether a type holds text."""
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def as_texts(values: pa.Array) -> pa.Array | None:
    """Return texts, integers and truth values as text; None for values of another type."""
    has_text = is_text(values.type) or pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)
    return values.cast(pa.string()) if has_text else None


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type holds numbers."""
    return any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal))


def is_untyped(kind: pa.DataType) -> bool:
    """Return whether a type is that of a column of nulls, of whose values nothing is known."""
    return bool(pa.types.is_null(kind))


def item_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the items of a list, or of the values of a map. None for any other type."""
    if pa.types.is_map(kind):
        return kind.item_type
    return getattr(kind, "value_type", None) if pa.types.is_nested(kind) else None


def field_types(kind: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types of a struct's fields by their names; empty for any other type."""
    return {field.name: field.type for field in kind} if pa.types.is_struct(kind) else {}


def decoded(array: pa.Array) -> pa.Array:
    """Return an array without its dictionary, if it has one."""
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def sortable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values in a type that Arrow can sort, if it can sort them only in another type."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        return sortable(pa.chunked_array([decoded(chunk) for chunk in values.chunks], kind.value_type))
    if pa.types.is_float16(kind):
        return values.cast(pa.float32())
    is_view = pa.types.is_string_view(kind) or pa.types.is_binary_view(kind)
    return values.cast(pa.large_binary()) if is_view else values


def shown(value: object) -> str:
    """Return a value of a record as an error shows it: cut after 200 characters."""
    return f"{value!r:.{_SHOWN}}"


def shown_plain(value: object) -> str:
    """Return a value of a file as an error shows it: a decimal, a day, a time and a UUID without the names of their classes."""
    is_plain = isinstance(value, Decimal | Instant | date | time | timedelta | UUID)
    return f"{value!s:.{_SHOWN}}" if is_plain else shown(value)


def shown_value(value: pa.Scalar) -> str:
    """Return a value of a column as an error shows it: its Python form, cut after 200 characters."""
    return shown_plain(readable(value))


def raw_row(table: pa.Table, position: int) -> str:
    r"""Return a row as a JSON object. Never raises, for any content of a cell.

    A time outside the calendar becomes a text of its number and unit; a byte that is not UTF-8 is written as `\xff`.
    """
    row = {name: readable(column[position]) for name, column in zip(table.schema.names, table.columns, strict=True)}
    return msgspec.json.encode(row, enc_hook=str).decode()


def readable(value: pa.Scalar) -> Any:
    """Return a value as Python has it, a map as a dict, and text for a value that Python cannot represent."""
    try:
        return value.as_py(maps_as_pydicts="strict")
    except _WITHOUT_PYTHON:
        return _piecewise(value)


def _piecewise(value: pa.Scalar) -> Any:
    kind = value.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        return readable(value.value)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return {name: readable(value[at]) for at, name in enumerate(names)}
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        return [readable(item) for item in value.values]
    if hasattr(value, "as_buffer"):
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    return f"{value.value} {getattr(kind, 'unit', kind)}"
