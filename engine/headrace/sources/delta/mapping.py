"""Columns of a data file under the names that they have in the table.

With column mapping, files keep the names that columns had when the table was made, or names that are random, and the log maps
them: so a column is renamed or dropped without its files being written anew (Delta protocol, "Column Mapping").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.sources.delta.variants import json_texts
from headrace.storage.delta_schema import VARIANT, DeltaColumn, arrow_type

NO_COLUMN: Final = "\0"
"""Name of a column that is none of the table: no writer gives a column this name, and one may have the empty name."""
_FIELD_ID: Final = b"PARQUET:field_id"


def columns_in_file(fields: Sequence[pa.Field] | pa.Schema, wanted: Sequence[DeltaColumn]) -> dict[str, DeltaColumn]:
    """Return the wanted columns that a file has, by their names in it.

    A column that is mapped by id is the one with its id. Others have their name in files; without a mapping, it may differ in case.
    """
    names = {field.name for field in fields}
    by_id = {column.id: column for column in wanted if column.id is not None}
    exact = {column.stored: column for column in wanted}
    in_any_case = {column.name.lower(): column for column in wanted if not column.physical and column.name not in names}
    columns: dict[str, DeltaColumn] = {}
    for field in fields:
        number = _id_of(field) if by_id else None
        by_name = exact.get(field.name) or in_any_case.get(field.name.lower())
        column = by_name if number is None else by_id.get(number)
        if column is not None:
            columns[field.name] = column
    return columns


def in_table_names(table: pa.Table, columns: Mapping[str, DeltaColumn]) -> pa.Table:
    """Return a file's columns under their names in the table, also fields of structs; drop fields that the table no longer has.

    Variants become texts of JSON. Raises `DamagedFileError` for one that cannot be decoded.

    A column that is none of the table is called `NO_COLUMN`.
    """
    arrays, names = [], []
    for name, array in zip(table.schema.names, table.columns, strict=True):
        column = columns.get(name)
        names.append(NO_COLUMN if column is None else column.name)
        arrays.append(array if column is None or not column.is_converted else _renamed_chunks(array, column))
    return pa.table(arrays, names)


def in_table_type(array: pa.ChunkedArray, column: DeltaColumn) -> pa.ChunkedArray:
    """Return values that have their names in the table with the type that it gives them: fields of structs are in its order, also those that a file lacks.

    Values that the type does not have, such as times of INT96 that are finer than a microsecond, stay as they are.
    """
    known = _without_mapping(column)
    try:
        return _renamed_chunks(array, known).cast(arrow_type(known))
    except pa.ArrowException:
        return array


def _without_mapping(column: DeltaColumn) -> DeltaColumn:
    """Return a column as its values are once they were read: with its names in the table, and texts for variants."""
    kind = "string" if column.type == VARIANT else column.type
    return DeltaColumn(column.name, kind, parts=tuple(map(_without_mapping, column.parts)))


def _renamed_chunks(array: pa.ChunkedArray, column: DeltaColumn) -> pa.ChunkedArray:
    if not array.num_chunks:
        return pa.chunked_array([_renamed(pa.array([], array.type), column)])
    return pa.chunked_array([_renamed(chunk, column) for chunk in array.chunks])


def _renamed(array: Any, column: DeltaColumn) -> Any:
    """Return an array with its fields as the table names them, and variants as texts of JSON."""
    kind = array.type
    if column.type == VARIANT:
        return json_texts(array)
    if pa.types.is_struct(kind):
        present = columns_in_file([*kind], column.parts)
        places = [place for place, field in enumerate(kind) if field.name in present]
        parts = [_renamed(array.field(place), present[kind.field(place).name]) for place in places]
        fields = [
            pa.field(present[kind.field(place).name].name, part.type, kind.field(place).nullable)
            for place, part in zip(places, parts, strict=True)
        ]
        if not parts and column.parts:  # the file has other fields only, which the table does not have any more
            parts = [pa.nulls(len(array)) for _ in column.parts]
            fields = [pa.field(part.name, pa.null()) for part in column.parts]
        return pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null()) if parts else array
    if pa.types.is_map(kind) and len(column.parts) == _KEY_AND_VALUE:
        keys, values = (_renamed(part, own) for part, own in zip((array.keys, array.items), column.parts, strict=True))
        entries = pa.StructArray.from_arrays(
            [keys, values], fields=[pa.field("key", keys.type, nullable=False), pa.field("value", values.type)]
        )
        return _with_parts(array, pa.map_(keys.type, values.type), entries)
    if (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and column.parts:
        parts = _renamed(array.values, column.parts[0])
        make = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return _with_parts(array, make(parts.type), parts)
    return array


_KEY_AND_VALUE: Final = 2


def _with_parts(array: Any, kind: pa.DataType, parts: Any) -> Any:
    """Return a list or map with other parts at the same offsets."""
    return pa.Array.from_buffers(kind, len(array), array.buffers()[:2], offset=array.offset, children=[parts])


def _id_of(field: pa.Field) -> int | None:
    number = (field.metadata or {}).get(_FIELD_ID)
    return None if number is None else int(number)
