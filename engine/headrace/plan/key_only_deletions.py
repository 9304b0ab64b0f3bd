"""Deletions that hold the key alone, as the tombstones of change feeds do.

A `-D` takes the whole old row back, so its required fields need values. Only where nothing but `normalize` reads a source, the fields of its
keys are enough: it has the whole old row. There a field that is null gets a value without content, which no code of users ever sees.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.plan.column_types import Column, columns_of

NEEDS_ALL: Final = (
    ": a -D takes the whole old row back. Let normalize() alone read the source, which needs only the key of a -D; or give the field a "
    "default, or declare it optional"
)
"""Way out for a null in a deletion, after the reason."""

_CONTENTLESS: Final[dict[pa.DataType, Any]] = {
    pa.string(): "",
    pa.int64(): 0,
    pa.float64(): 0.0,
    pa.bool_(): False,
    pa.binary(): b"",
}


def contentless(record: type[msgspec.Struct], needed: Collection[str]) -> dict[str, pa.Scalar]:
    """Return values for the required fields of a record that are not `needed`, as columns hold them.

    Fields whose values the record checks, by a constraint or `__post_init__`, have none: a null in them stays refused.
    """
    columns = [column for column in columns_of(record) if column.required and column.name not in needed]
    return {column.name: pa.array([_value(column)], column.type)[0] for column in columns if not _is_checked(column)}


def is_checked(record: type[msgspec.Struct]) -> bool:
    """Return whether a record checks its values with code of its own, which would see a partial row."""
    return hasattr(record, "__post_init__")


def _is_checked(column: Column) -> bool:
    has_code = column.record is not None and is_checked(column.record)
    return column.is_constrained or has_code or any(map(_is_checked, column.parts))


def _value(column: Column) -> Any:
    if column.nullable:
        return None
    if column.record is not None:
        return {part.name: _value(part) for part in column.parts}
    if column.parts:
        return []
    return next(iter(column.allowed), _CONTENTLESS[column.type])
