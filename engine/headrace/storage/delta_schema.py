"""Columns of a table as Delta's log has them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from deltalake import Schema

_PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
_ID: Final = "delta.columnMapping.id"
VARIANT: Final = "variant"
TIMES: Final = frozenset({"timestamp", "timestamp_ntz"})
_DECIMAL: Final = re.compile(r"decimal\((\d+), *(\d+)\)")
_KNOWN_TYPES: Final = re.compile(
    r"string|long|integer|short|byte|float|double|boolean|date|binary|timestamp|timestamp_ntz|void|interval .+"
    rf"|decimal\(\d+, *\d+\)|struct|array|map|{VARIANT}"
)


class DeltaColumn(msgspec.Struct, frozen=True, omit_defaults=True):
    """Column of a table, field of a struct, or part of a list or map: its name in the table, and Delta's name of its type."""

    name: str
    type: str = ""
    physical: str = ""
    """Name in data files and partition values, where the table maps columns; empty: `name`."""
    id: int | None = None
    """Field id in data files, where the table maps columns by id."""
    parts: tuple[DeltaColumn, ...] = ()
    """Fields of a struct, the element of an array, or key and value of a map."""

    @property
    def stored(self) -> str:
        """Return the name in data files."""
        return self.physical or self.name

    @property
    def is_converted(self) -> bool:
        """Return whether values in files may look different: it is a variant, or it has fields, whose names may differ there in case or as a whole."""
        return self.type in {VARIANT, "struct"} or any(part.is_converted for part in self.parts)

    @property
    def in_files(self) -> DeltaColumn:
        """Return the column with what a reader of data files needs. The task of each file gets it for all columns, so it is short."""
        parts = tuple(part.in_files for part in self.parts) if self.is_converted else ()
        kind = self.type if parts or self.type in {VARIANT, *TIMES} else ""
        return DeltaColumn(self.name, kind, self.physical, self.id, parts)


def logged_columns(schema: str, mapping: str) -> tuple[DeltaColumn, ...]:
    """Return the columns of a schema in the log. `mapping` is the table's mode of column mapping: none, name or id."""
    return tuple(_column(field, mapping) for field in msgspec.json.decode(schema)["fields"])


def _column(field: Mapping[str, Any], mapping: str) -> DeltaColumn:
    metadata = field.get("metadata") or {}
    kind, parts = _kind(field["type"], mapping)
    return DeltaColumn(
        field["name"],
        kind,
        metadata.get(_PHYSICAL_NAME, "") if mapping != "none" else "",
        metadata.get(_ID) if mapping == "id" else None,
        parts,
    )


def _kind(kind: Any, mapping: str) -> tuple[str, tuple[DeltaColumn, ...]]:
    """Return the name of a type, and its parts."""
    if isinstance(kind, str):
        return kind, ()
    if kind["type"] == "struct":
        return "struct", tuple(_column(field, mapping) for field in kind["fields"])
    names = {"array": {"element": "elementType"}, "map": {"key": "keyType", "value": "valueType"}}[kind["type"]]
    parts = ((name, *_kind(kind[key], mapping)) for name, key in names.items())
    return kind["type"], tuple(DeltaColumn(name, own, parts=below) for name, own, below in parts)


_ARROW: Final[Mapping[str, pa.DataType]] = {
    "string": pa.string(),
    "long": pa.int64(),
    "integer": pa.int32(),
    "short": pa.int16(),
    "byte": pa.int8(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}


def arrow_type(column: DeltaColumn) -> pa.DataType:
    """Return Arrow's type for the values of a column; that of texts for a type that Arrow does not have."""
    parts = [arrow_type(part) for part in column.parts]
    if column.type == "struct":
        return pa.struct([(part.name, kind) for part, kind in zip(column.parts, parts, strict=True)])
    if column.type == "array":
        return pa.list_(*parts)
    if column.type == "map":
        return pa.map_(*parts)
    if match := _DECIMAL.fullmatch(column.type):
        return pa.decimal128(int(match[1]), int(match[2]))
    return _ARROW.get(column.type, pa.string())


def unknown_types(columns: Sequence[DeltaColumn]) -> Iterator[str]:
    """Yield each column, or part of one, whose type cannot be read, with its type."""
    for column in columns:
        if not _KNOWN_TYPES.fullmatch(column.type):
            yield f"{column.name} ({column.type})"
        yield from unknown_types(column.parts)


def plain_field(column: pa.Field) -> pa.Field:
    """Return a column without what a table says of it, such as its other name in files, also within structs, lists and maps."""
    kind = column.type
    if pa.types.is_struct(kind):
        kind = pa.struct([plain_field(part) for part in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(plain_field(kind.key_field), plain_field(kind.item_field))
    elif pa.types.is_list(kind):
        kind = pa.list_(plain_field(kind.value_field))
    return pa.field(column.name, kind, column.nullable)


def to_logged(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as it stands in the log of a Delta table."""
    logged: dict[str, Any] = msgspec.json.decode(Schema.from_arrow(schema).to_json())
    return logged


def from_logged(logged: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a schema in the log of a Delta table."""
    return pa.schema(Schema.from_json(msgspec.json.encode(logged).decode()))
