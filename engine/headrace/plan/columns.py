"""Between Arrow columns and records: schemas from annotations, records column by column.

Rows are never taken out of a batch one by one (`RecordBatch.to_pylist` costs ten times as much as
zipping column lists).
"""

from __future__ import annotations

import enum
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import FieldInfo, fields

from headrace.api import RowKind
from headrace.api._records import TIMESTAMP
from headrace.errors import ConfigError

ROW_KIND = "_row_kind"
"""Column with the kind of a change: +I, +U or -D."""
ORDER = "_order"
"""Column with a text that sorts as the changes were made, over all micro-batches."""

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
    """One field of a record as a column. `allowed` maps texts to what the field holds, where not any will do."""

    name: str
    type: pa.DataType
    nullable: bool
    required: bool
    is_time: bool = False
    is_constrained: bool = False
    allowed: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit the record type: its position in the batch, and why."""

    position: int
    error: str


def columns_of(record: type[msgspec.Struct]) -> list[Column]:
    """The columns of a record type.

    Raises `ConfigError` for a field whose type has no column: only int, float, str, bool, bytes,
    `Timestamp`, literals and enums of strings, each optionally `| None`. Fields must not be renamed.
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


def changelog_schema(sink: pa.Schema) -> pa.Schema:
    """The schema of a sink that is a log of changes: what each did, and where it stands among all of them."""
    return sink.append(pa.field(ROW_KIND, pa.string(), nullable=False)).append(
        pa.field(ORDER, pa.string(), nullable=False)
    )


def to_columns(records: Sequence[msgspec.Struct], schema: pa.Schema) -> pa.Table:
    """Records as a table of `schema`; times become timestamps."""
    arrays = []
    for column in schema:
        values = [getattr(record, column.name) for record in records]
        if pa.types.is_timestamp(column.type):
            arrays.append(pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(column.type))
        elif pa.types.is_string(column.type):
            texts = [value.value if isinstance(value, enum.Enum) else value for value in values]
            arrays.append(pa.array(texts, column.type))
        else:
            arrays.append(pa.array(values, column.type))
    return pa.Table.from_arrays(arrays, schema=schema)


class RecordReader:
    """Turns tables of a source into records of one type, and tells which rows do not fit."""

    def __init__(self, record: type[msgspec.Struct], row_kind: str | None) -> None:
        """`row_kind` names the column with `+I`, `-U`, `+U`, `-D`, if there is one."""
        self._record = record
        self._columns = columns_of(record)
        self._row_kind = row_kind
        self._check = _checker(record) if any(column.is_constrained for column in self._columns) else None
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
        rows = zip(*lists, strict=True) if lists else iter([()] * count)
        if names == self._positional and not errors and self._check is None:
            values = list(rows)
            try:
                return list(itertools.starmap(self._record, values))
            except (ValueError, TypeError):  # from a __post_init__: find out which rows it refuses
                rows = iter(values)
        return self._build_one_by_one(names, rows, errors)

    def _build_one_by_one(
        self, names: list[str], rows: Iterable[tuple[Any, ...]], errors: dict[int, str]
    ) -> list[msgspec.Struct | None]:
        records: list[msgspec.Struct | None] = []
        for position, values in enumerate(rows):
            record = None
            if position not in errors:
                try:
                    record = self._record(**dict(zip(names, values, strict=True)))
                    if self._check is not None:
                        self._check(record)
                except (ValueError, TypeError) as error:  # msgspec's ValidationError is a ValueError
                    errors[position], record = str(error), None
            records.append(record)
        return records

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
        if pa.types.is_floating(column.type):
            values = _finite(values, column, errors)
        if not column.nullable and values.null_count:
            for position in pc.indices_nonzero(pc.is_null(values)).to_pylist():
                errors.setdefault(position, f"{column.name} is null")
        listed: list[Any] = values.to_pylist()
        return _allowed(listed, column, errors) if column.allowed else listed


def _allowed(values: list[Any], column: Column, errors: dict[int, str]) -> list[Any]:
    for position, value in enumerate(values):
        if value is not None and value not in column.allowed:
            errors.setdefault(position, f"{column.name} is {value!r}, not one of {', '.join(column.allowed)}")
    return [column.allowed.get(value) for value in values]


def _finite(values: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
    """NaN as null, which is what JSON makes of it; it would make null of infinity as well."""
    for position in pc.indices_nonzero(pc.is_inf(values)).to_pylist():
        errors.setdefault(position, f"{column.name} is {values[position].as_py()}, which JSON cannot hold")
    return pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)


def _cast(values: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
    try:
        return _converted(values, column)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return _cast_one_by_one(values, column, errors)


def _converted(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if column.is_time and pa.types.is_timestamp(values.type):
        return values.cast(pa.timestamp("ms", tz=values.type.tz), safe=False).cast(column.type)
    # Text is never guessed into numbers, numbers into truth or instants into integers: that hides
    # mistakes upstream.
    if _family(values.type) not in {_family(column.type), "null"}:
        msg = f"{values.type} is not {column.type}"
        raise pa.ArrowTypeError(msg)
    return values.cast(column.type)


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "null": (pa.types.is_null,),
}


def _family(kind: pa.DataType) -> str:
    """Types between which a cast keeps the meaning; any other type is a family of its own."""
    return next((name for name, tests in _FAMILIES.items() if any(test(kind) for test in tests)), str(kind))


def _cast_one_by_one(values: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
    found: list[Any] = []
    for position in range(len(values)):
        single = values.slice(position, 1)
        try:
            found.append(_converted(single, column)[0].as_py() if single.null_count == 0 else None)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            wanted = "a timestamp" if column.is_time else str(column.type)
            errors.setdefault(position, f"{column.name} is {single[0].as_py()!r}, which is not {wanted}")
            found.append(None)
    return pa.chunked_array([pa.array(found, column.type)])


_KINDS = {kind.symbol: int(kind) for kind in RowKind}


def _column(record: type[msgspec.Struct], info: FieldInfo) -> Column:
    if info.name != info.encode_name:
        msg = f"field '{info.name}' of {record.__name__} is renamed to '{info.encode_name}', which columns cannot be"
        raise ConfigError(msg)
    annotation, nullable = _without_none(info.type)
    base = _base(annotation)
    if get_origin(base) is Literal:
        texts = [value for value in get_args(base) if value is not None]
        allowed = {text: text for text in texts}
        nullable = nullable or None in get_args(base)
    elif isinstance(base, type) and issubclass(base, enum.Enum):
        allowed = {member.value: member for member in base}
    else:
        allowed = {}
    kind = _SCALARS.get(base) if not allowed else pa.string()
    if kind is None or not all(isinstance(text, str) for text in allowed):
        msg = (
            f"field '{info.name}' of {record.__name__} is {info.type}, which has no column: use int, "
            "float, str, bool, bytes, Timestamp or a Literal or Enum of strings, each optionally | None"
        )
        raise ConfigError(msg)
    return Column(
        info.name,
        kind,
        nullable,
        info.required,
        is_time=_is_time(annotation),
        is_constrained=_is_constrained(annotation),
        allowed=allowed,
    )


def _checker(record: type[msgspec.Struct]) -> Callable[[msgspec.Struct], object]:
    """Raises `ValidationError` for a record whose fields break the constraints of their annotations."""
    return lambda found: msgspec.convert(msgspec.to_builtins(found), record)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [part for part in get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return annotation, False


def _base(annotation: Any) -> Any:
    return get_args(annotation)[0] if hasattr(annotation, "__metadata__") else annotation


def _is_constrained(annotation: Any) -> bool:
    """Whether a `Meta` limits the values: msgspec checks that in every decoder, but not in constructors."""
    metas = (meta for meta in getattr(annotation, "__metadata__", ()) if isinstance(meta, msgspec.Meta))
    return any(getattr(meta, name) is not None for meta in metas for name in _CONSTRAINTS)


_CONSTRAINTS = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")


def _is_time(annotation: Any) -> bool:
    return any(
        isinstance(meta, msgspec.Meta) and (meta.extra or {}).get("arrow") == TIMESTAMP
        for meta in getattr(annotation, "__metadata__", ())
    )
