"""Between Arrow columns and records: schemas from annotations, records column by column.

Rows are never taken out of a batch one by one (`RecordBatch.to_pylist` costs ten times as much as
zipping column lists).
"""

from __future__ import annotations

import enum
import inspect
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import FieldInfo, fields

from engine.api import RowKind
from engine.api._records import TIMESTAMP
from engine.errors import ConfigError

_SINK_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_SCALARS: dict[object, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


@dataclass(frozen=True, slots=True)
class Column:
    """One field of a record as a column."""

    name: str
    type: pa.DataType
    nullable: bool
    is_time: bool
    allowed: tuple[str, ...]
    required: bool


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit the record type: its position in the batch, and why."""

    position: int
    error: str


def columns_of(record: type[msgspec.Struct]) -> list[Column]:
    """The columns of a record type.

    Raises `ConfigError` for a field whose type has no column: only int, float, str, bool, bytes,
    `Timestamp`, string literals and enums, each optionally `| None`.
    """
    return [_column(record, info) for info in fields(record)]


def sink_schema(record: type[msgspec.Struct], keys: Sequence[str] = ()) -> pa.Schema:
    """The Arrow schema of a sink table of this record; `keys` never are null."""
    return pa.schema(
        [
            pa.field(
                column.name,
                _SINK_TIMESTAMP if column.is_time else column.type,
                nullable=column.nullable and column.name not in keys,
            )
            for column in columns_of(record)
        ]
    )


def to_columns(records: Sequence[msgspec.Struct], schema: pa.Schema) -> pa.Table:
    """Records as a table of `schema`; times become timestamps."""
    arrays = []
    for field in schema:
        values = [getattr(record, field.name) for record in records]
        if pa.types.is_timestamp(field.type):
            arrays.append(pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(field.type))
        else:
            arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


class RecordReader:
    """Turns tables of a source into records of one type, and tells which rows do not fit."""

    def __init__(self, record: type[msgspec.Struct], row_kind: str | None) -> None:
        """`row_kind` names the column with `+I`, `-U`, `+U`, `-D`, if there is one."""
        self._record = record
        self._columns = columns_of(record)
        self._row_kind = row_kind
        parameters = inspect.signature(record).parameters.values()
        self._positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    def missing(self, names: Sequence[str]) -> list[str]:
        """The required columns that are not among `names`."""
        wanted = [column.name for column in self._columns if column.required]
        if self._row_kind is not None:
            wanted.append(self._row_kind)
        return [name for name in wanted if name not in names]

    def read(self, table: pa.Table) -> tuple[list[msgspec.Struct | None], list[int], list[BadRow]]:
        """Records and row kinds by position, and the rows that do not fit (None among the records)."""
        errors: dict[int, str] = {}
        lists = [self._values(table, column, errors) for column in self._columns if self._has(table, column)]
        names = [column.name for column in self._columns if self._has(table, column)]
        kinds = self._kinds(table, errors)
        records = self._build(names, lists, errors, table.num_rows)
        bad = [BadRow(position, errors[position]) for position in sorted(errors)]
        return records, kinds, bad

    def _has(self, table: pa.Table, column: Column) -> bool:
        return column.name in table.schema.names

    def _build(
        self, names: list[str], lists: list[list[Any]], errors: dict[int, str], count: int
    ) -> list[msgspec.Struct | None]:
        record = self._record
        if names == self._positional and not errors:
            return [record(*values) for values in zip(*lists, strict=True)]
        rows = zip(*lists, strict=True) if lists else iter([()] * count)
        return [
            None if position in errors else record(**dict(zip(names, values, strict=True)))
            for position, values in enumerate(rows)
        ]

    def _kinds(self, table: pa.Table, errors: dict[int, str]) -> list[int]:
        if self._row_kind is None:
            return [int(RowKind.INSERT)] * table.num_rows
        symbols = table[self._row_kind].to_pylist()
        kinds = [_KINDS.get(symbol) for symbol in symbols]
        for position, kind in enumerate(kinds):
            if kind is None:
                errors.setdefault(
                    position, f"{self._row_kind} is {symbols[position]!r}, not one of {', '.join(_KINDS)}"
                )
        return [kind or 0 for kind in kinds]

    def _values(self, table: pa.Table, column: Column, errors: dict[int, str]) -> list[Any]:
        values = _cast(table[column.name], column, errors)
        if not column.nullable and values.null_count:
            for position in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                errors.setdefault(position, f"{column.name} is null")
        if column.allowed:
            valid = pc.is_in(values, pa.array(column.allowed))
            wrong = pc.and_(pc.invert(valid), pc.is_valid(values))
            for position in pc.indices_nonzero(wrong).to_pylist():
                value = values[position].as_py()
                errors.setdefault(position, f"{column.name} is {value!r}, not one of {', '.join(column.allowed)}")
        listed: list[Any] = values.to_pylist()
        return listed


def _cast(values: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
    try:
        return _converted(values, column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _cast_one_by_one(values, column, errors)


def _converted(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    if column.is_time and pa.types.is_timestamp(values.type):
        values = values.cast(pa.timestamp("ms", tz=values.type.tz), safe=False)
    elif pa.types.is_string(column.type) is not pa.types.is_string(values.type):
        # Text is never guessed into numbers or the other way round: that hides upstream mistakes.
        return _refuse(values, column)
    return values.cast(column.type)


def _refuse(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    if pa.types.is_null(values.type) or pa.types.is_large_string(values.type) or pa.types.is_dictionary(values.type):
        return values.cast(column.type)
    msg = f"{values.type} is not {column.type}"
    raise pa.ArrowTypeError(msg)


def _cast_one_by_one(values: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
    found: list[Any] = []
    for position, value in enumerate(values):
        single = pa.chunked_array([pa.array([value.as_py()], values.type)])
        try:
            found.append(_converted(single, column)[0].as_py())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            wanted = "a timestamp" if column.is_time else str(column.type)
            errors.setdefault(position, f"{column.name} is {value.as_py()!r}, which is not {wanted}")
            found.append(None)
    return pa.chunked_array([pa.array(found, column.type)])


_KINDS = {kind.symbol: int(kind) for kind in RowKind}


def _column(record: type[msgspec.Struct], info: FieldInfo) -> Column:
    annotation, nullable = _without_none(info.type)
    is_time = _is_time(annotation)
    if get_origin(annotation) is Literal:
        allowed = tuple(str(value) for value in get_args(annotation))
        return Column(info.encode_name, pa.string(), nullable, False, allowed, info.required)
    base = _base(annotation)
    if isinstance(base, type) and issubclass(base, enum.Enum):
        allowed = tuple(str(member.value) for member in base)
        return Column(info.encode_name, pa.string(), nullable, False, allowed, info.required)
    kind = _SCALARS.get(base)
    if kind is None:
        msg = (
            f"field '{info.name}' of {record.__name__} is {info.type}, which has no column: use int, "
            "float, str, bool, bytes, Timestamp or a Literal of strings, each optionally | None"
        )
        raise ConfigError(msg)
    return Column(info.encode_name, kind, nullable, is_time, (), info.required)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [part for part in get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return annotation, False


def _base(annotation: Any) -> Any:
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _is_time(annotation: Any) -> bool:
    return any(
        isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("arrow") == TIMESTAMP
        for meta in getattr(annotation, "__metadata__", ())
    )
