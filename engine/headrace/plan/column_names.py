"""Names of stored columns that are almost those of fields: a null or a default in place of their values would hide a mistake."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import lru_cache

import pyarrow as pa

from headrace.plan.column_types import Column

_IGNORED = str.maketrans("", "", " _-\t\u00a0\ufeff")


def near_misses(wanted: Iterable[str], stored: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield each wanted name that is not stored, but for case, spaces, underscores or dashes, with the reason that follows it."""
    missing = [name for name in wanted if name not in stored]
    by_normal = {_normal(other): other for other in reversed([*stored])} if missing else {}
    for name in missing:
        other = by_normal.get(_normal(name))
        if other is not None:
            yield name, f"is missing, but there is {other!r}, and names must be equal: rename the field or the column"


def near_names(schema: pa.Schema, columns: Sequence[Column]) -> str | None:
    """Return the reason for the first column, or part of one, that a table lacks, and almost has. None without one."""
    return next(_near(dict(zip(schema.names, schema.types, strict=True)), columns, ""), None)


def _near(types: dict[str, pa.DataType], columns: Iterable[Column], path: str) -> Iterator[str]:
    for column in columns:
        if column.name in types:
            yield from _near_parts(types[column.name], column, f"{path}{column.name}")
        else:
            yield from (f"{path}{name} {why}" for name, why in near_misses([column.name], types))


def _near_parts(kind: pa.DataType, column: Column, path: str) -> Iterator[str]:
    if column.record is not None and pa.types.is_struct(kind):
        yield from _near({field.name: field.type for field in kind}, column.parts, f"{path}.")
    elif column.record is None and column.parts and pa.types.is_nested(kind) and not pa.types.is_struct(kind):
        item = kind.item_type if pa.types.is_map(kind) else kind.value_type
        yield from _near_parts(item, column.parts[-1], f"{path}[]")


@lru_cache(maxsize=4096)
def _normal(name: str) -> str:
    return name.translate(_IGNORED).casefold()
