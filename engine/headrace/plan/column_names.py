"""Names of stored columns that are almost those of fields: a null or a default in place of their values would hide a mistake."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from headrace.plan.column_types import Column

_IGNORED = str.maketrans("", "", " _-\t\u00a0\ufeff")


def near_miss(name: str, stored: Iterable[str]) -> str | None:
    """Return the stored name that differs from a missing one only in case, spaces, underscores or dashes; None without one."""
    wanted = _normal(name)
    return next((other for other in stored if _normal(other) == wanted), None)


def near_name(stored: str) -> str:
    """Return the reason, after the name of the field, why a file or row with this name is refused."""
    return f"is missing, but there is {stored!r}, and names must be equal: rename the field or the column"


def near_names(schema: pa.Schema, columns: Sequence[Column]) -> str | None:
    """Return the reason for the first column, or part of one, that a table lacks, and almost has. None without one."""
    return next(_near(dict(zip(schema.names, schema.types, strict=True)), columns, ""), None)


def _near(types: dict[str, pa.DataType], columns: Iterable[Column], path: str) -> Iterator[str]:
    for column in columns:
        if column.name in types:
            yield from _near_parts(types[column.name], column, f"{path}{column.name}")
        elif (other := near_miss(column.name, types)) is not None:
            yield f"{path}{column.name} {near_name(other)}"


def _near_parts(kind: pa.DataType, column: Column, path: str) -> Iterator[str]:
    if column.record is not None and pa.types.is_struct(kind):
        yield from _near({field.name: field.type for field in kind}, column.parts, f"{path}.")
    elif column.record is None and column.parts and pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        item = kind.item_type if pa.types.is_map(kind) else kind.value_type
        yield from _near_parts(item, column.parts[-1], f"{path}[]")


@lru_cache(maxsize=4096)
def _normal(name: str) -> str:
    return name.translate(_IGNORED).casefold()
