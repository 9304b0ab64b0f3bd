"""Records as columns with a separate schema, for transport between stages."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa

from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import Column, columns_of, root_column
from headrace.records.value_arrays import UnfitRecord, to_array

__all__ = ["UnfitRecord", "build_records", "from_struct_array", "struct_type", "to_struct_array"]


_AT_ONCE = 4096
"""Number of records converted at once: they fit the processor's cache, which saves a quarter of the time."""


def struct_type(record: type[msgspec.Struct]) -> pa.StructType:
    """Return the type of a record between stages: times are int64 milliseconds, literals and enums are strings.

    Raises `ConfigError` for a record without columns (see `columns_of`).
    """
    return root_column(record).type


def to_struct_array(records: Sequence[msgspec.Struct | None], record: type[msgspec.Struct]) -> pa.StructArray:
    """Return records as structs; None, a row of another input, is a null.

    The structs decode to the same values as JSON. Raises `UnfitRecord` for values that columns and JSON do not
    represent equally: NaN and infinity, integers beyond 64 bits, text that is not UTF-8, and values that decoding
    JSON would refuse.
    """
    root = root_column(record)
    arrays = []
    for start in range(0, len(records), _AT_ONCE):
        try:
            arrays.append(to_array(records[start : start + _AT_ONCE], root))
        except UnfitRecord as error:
            raise UnfitRecord(start + error.index, error.field.removeprefix("."), error.why) from None
    return pa.concat_arrays(arrays) if arrays else pa.array([], root.type)


def from_struct_array(
    array: pa.StructArray | pa.ChunkedArray, record: type[msgspec.Struct]
) -> list[msgspec.Struct | None]:
    """Return the records in an array of structs; None for each null."""
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    if array.null_count:
        present = iter(from_struct_array(array.drop_null(), record))
        return [next(present) if valid else None for valid in array.is_valid().to_pylist()]
    columns = columns_of(record)
    lists = [column_values(array.field(column.name), column) for column in columns]
    return list(build_records(record, [column.name for column in columns], zip(*lists, strict=True)))


def column_values(array: pa.Array | pa.ChunkedArray, column: Column) -> list[Any]:
    """Return the values of a column as records hold them."""
    if isinstance(column.kind, ScalarKind):
        return column.kind.values(array)
    array = array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
    return msgspec.convert(column.kind.plain(array), list[column.annotation])  # type: ignore[name-defined]  # made at run time


def build_records(
    record: type[msgspec.Struct], names: Sequence[str], rows: Iterable[tuple[Any, ...]]
) -> Iterable[msgspec.Struct]:
    """Make a record of each row; `names` are the fields of its values. Constraints are not checked."""
    if names == _positional(record)[: len(names)]:
        return itertools.starmap(record, rows)
    return (record(**dict(zip(names, row, strict=True))) for row in rows)


@cache
def _positional(record: type[msgspec.Struct]) -> list[str]:
    parameters = inspect.signature(record).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
