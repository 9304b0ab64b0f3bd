"""Rows and values of a source as text, whatever they contain: the description of a bad row must not fail."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa

_WITHOUT_PYTHON = (ValueError, OverflowError, KeyError, TypeError)
"""Errors of pyarrow for bytes that are not UTF-8, times outside the calendar, duplicate names or keys, and lists as keys."""

_SHOWN = 200
"""Number of characters of a value that an error shows."""


def raw_row(table: pa.Table, position: int) -> str:
    r"""Return a row as a JSON object. Never raises, for any content of a cell.

    A time outside the calendar becomes a text of its number and unit; a byte that is not UTF-8 is written as `\xff`.
    """
    row = {name: readable(column[position]) for name, column in zip(table.schema.names, table.columns, strict=True)}
    return msgspec.json.encode(row, enc_hook=str).decode()


def shown_value(value: pa.Scalar) -> str:
    """Return a value as an error shows it: its Python form, cut after 200 characters."""
    return f"{readable(value)!r:.{_SHOWN}}"


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
