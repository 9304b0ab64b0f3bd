"""Conversion between Arrow tables and records: from rows of a source, and to rows of a sink.

Rows are never read from a batch one by one (`RecordBatch.to_pylist` costs ten times as much as zipping column lists).
Columns of a stream become columns of a sink without an object for each record.

A deletion may hold the key alone, as the tombstones of change feeds do. A `-D` takes the whole old row back, so its
required fields need values. Only where nothing but `normalize` reads a source, the fields of its keys are enough: it
has the whole old row. There a field that is null gets a value without content, which no code of users ever sees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SYMBOLS
from headrace.api.records import RowKind
from headrace.errors import ConfigError
from headrace.interrupts import is_interrupt
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import Column, Names, columns_of, stored_name
from headrace.records.defaults import default_for_null, record_error
from headrace.records.foreign_values import as_texts, decoded, shown_value
from headrace.records.problems import Problems
from headrace.records.record_columns import build_records, column_values
from headrace.records.source_values import fitting, with_value
from headrace.records.value_arrays import UnfitRecord, attributes, to_array
from headrace.storage.table import ROW_KIND

__all__ = [
    "ORDER",
    "ROW_KIND",
    "BadRow",
    "Column",
    "RecordReader",
    "changelog_schema",
    "columns_of",
    "sink_schema",
    "to_columns",
]


NEEDS_ALL: Final = (
    ": a -D takes the whole old row back. Let normalize() alone read the source, which needs only the key of a -D; or give the field a "
    "default, or declare it optional"
)
"""Way out for a null in a deletion, after the reason."""


def contentless(record: type[msgspec.Struct], needed: Collection[str]) -> dict[str, pa.Scalar]:
    """Return values for the required fields of a record that are not `needed`, as columns hold them.

    Fields whose values the record checks, by a constraint or `__post_init__`, have none: a null in them stays refused.
    """
    columns = [column for column in columns_of(record) if column.required and column.name not in needed]
    return {
        column.name: pa.array([_placeholder(column)], column.type)[0] for column in columns if not _is_checked(column)
    }


def is_checked(record: type[msgspec.Struct]) -> bool:
    """Return whether a record checks its values with code of its own, which would see a partial row."""
    return hasattr(record, "__post_init__")


def _is_checked(column: Column) -> bool:
    has_code = column.record is not None and is_checked(column.record)
    return column.is_constrained or has_code or any(map(_is_checked, column.parts))


def _placeholder(column: Column) -> Any:
    if column.nullable:
        return None
    if column.record is not None:
        return {part.stored: _placeholder(part) for part in column.parts}
    return column.kind.contentless if isinstance(column.kind, ScalarKind) else []


ORDER = "_order"
"""Column with a text that sorts in the order of the changes, over all micro-batches."""

NO_PROBLEMS: Final[Mapping[int, str]] = {}


@dataclass(frozen=True, slots=True)
class BadRow:
    """A row that does not fit the record type: its position in the batch, and the reason."""

    position: int
    error: str


def sink_schema(record: type[msgspec.Struct], keys: Sequence[str] = (), names: Names = ()) -> pa.Schema:
    """Return the Arrow schema of a sink table of this record, whose columns have these `names`; `keys`, which are fields, are never null.

    Raises `ConfigError` for a record without columns, for a key that is a list, map or struct, for a field without a name,
    and for one that the record names by a path.
    """
    columns = columns_of(record, names)
    nested = [column.name for column in columns if column.name in keys and not _can_be_key(column)]
    if nested:
        msg = (
            f"the primary key of {record.__name__} has {', '.join(nested)}, which is a list, map, struct or Json: "
            "a key must be made of plain fields. Give what identifies a row fields of its own."
        )
        raise ConfigError(msg)
    for column in columns:
        _check_sink_name(record, column, names)
    return table_schema(columns, keys)


def _check_sink_name(record: type[msgspec.Struct], column: Column, names: Names) -> None:
    """Refuse an empty name, and one with a point that no sink has asked for: it is a path in sources, and few programs quote it."""
    if column.stored and ("." not in column.stored or (column.name, column.stored) in names):
        return
    msg = (
        f"field '{column.name}' of {record.__name__} has the name {column.stored!r}, which is "
        f"{'a path in sources' if column.stored else 'empty'}: name the sink's column in the job's file, as in "
        f"'rename: {{{column.name}: {column.name}}}'"
    )
    raise ConfigError(msg)


def table_schema(columns: Sequence[Column], keys: Sequence[str] = ()) -> pa.Schema:
    """Return the Arrow schema of a table with these columns; the fields `keys` are never null."""
    return pa.schema(
        [
            pa.field(column.stored, column.sink_type, nullable=column.nullable and column.name not in keys)
            for column in columns
        ]
    )


def _can_be_key(column: Column) -> bool:
    return isinstance(column.kind, ScalarKind) and column.kind.can_be_key


def changelog_schema(sink: pa.Schema) -> pa.Schema:
    """Return the schema of a sink that is a log of changes: their kinds, and their places in the order of all changes."""
    return sink.append(pa.field(ROW_KIND, pa.string(), nullable=False)).append(
        pa.field(ORDER, pa.string(), nullable=False)
    )


def to_columns(
    records: Sequence[msgspec.Struct], schema: pa.Schema, record: type[msgspec.Struct] | None = None
) -> pa.Table:
    """Return records as a table of `schema`, which `sink_schema` has made for their type, or for the class `record` of which they are.

    Times become timestamps.

    Raises `UnfitRecord` for a value that is not of its field's type.
    """
    if not records:
        return schema.empty_table()
    arrays = []
    for column in columns_of(record or type(records[0])):
        try:
            arrays.append(to_array(attributes(column.name)(records), column, sink=True))
        except UnfitRecord as error:
            raise UnfitRecord(error.index, f"{column.name}{error.field}", error.why) from None
    return pa.Table.from_arrays(arrays, schema=schema)


class RecordReader:
    """Converts tables of a source to records of one type, and reports rows that do not fit."""

    def __init__(
        self,
        record: type[msgspec.Struct],
        row_kind: str | None,
        needed: tuple[str, ...] | None = None,
        names: Names = (),
        kinds: Sequence[tuple[str, RowKind]] = SYMBOLS,
    ) -> None:
        """Take the record type; `row_kind` is the field or the column with the kinds of rows, if there is one.

        `needed` are the fields that a `-D` must hold; None: all. `names` are those of fields in the source. `kinds` are the values of
        `row_kind` as text, with the kinds that they stand for.
        """
        self._kind_by_value = dict(kinds)
        self._record = record
        self._columns = columns_of(record, names)
        self._row_kind = None if row_kind is None else stored_name(self._columns, row_kind)
        self._contentless = {} if needed is None or is_checked(record) else contentless(record, needed)
        self._is_flat = not hasattr(record, "__post_init__") and not any(
            column.parts or column.limits is not None for column in self._columns
        )

    def missing(self, names: Sequence[str]) -> list[str]:
        """Return the required columns that are not in `names`."""
        wanted = [column.stored for column in self._columns if column.required]
        if self._row_kind is not None:
            wanted.append(self._row_kind)
        return [name for name in wanted if name not in names]

    def read(
        self, table: pa.Table, problems: Mapping[int, str] = NO_PROBLEMS
    ) -> tuple[list[msgspec.Struct | None], list[int], list[BadRow]]:
        """Return records and row kinds by position, and the rows that do not fit (None among the records).

        `problems` holds the rows already known not to fit, with the reasons. Raises `UserFunctionError` where code of the record
        (`__post_init__`, a `default_factory`) fails with anything but `ValueError` and `TypeError`, which refuse a row.
        """
        errors = {**problems}
        columns = [column for column in self._columns if column.stored in table.schema.names]
        arrays = [self._fitting(table, column, errors) for column in columns]
        kinds = self._kinds(table, errors).to_pylist()
        lists = [_values(array, column, errors) for array, column in zip(arrays, columns, strict=True)]
        records = self._build([column.name for column in columns], lists, errors, table.num_rows)
        return records, kinds, _bad_rows(errors)

    def read_columns(
        self, table: pa.Table, problems: Mapping[int, str] = NO_PROBLEMS
    ) -> tuple[pa.StructArray | None, pa.Int32Array, list[BadRow]]:
        """Return the result of `read`, but with the records as an array of `to_struct_array`, without making record objects.

        A row that does not fit is a null. Where records check their values (a `__post_init__`, a constraint), hold
        lists, maps or structs, or have a default that a column cannot hold, the array is None: then call `read`.
        """
        errors = {**problems}
        arrays = [self._array(table, column, errors) for column in self._columns] if self._is_flat else [None]
        if None in arrays:
            return None, pa.array([], pa.int32()), []
        kinds = self._kinds(table, errors)
        types = [pa.field(column.name, column.type) for column in self._columns]
        mask = pa.array([position in errors for position in range(table.num_rows)]) if errors else None
        return pa.StructArray.from_arrays(arrays, fields=types, mask=mask), kinds, _bad_rows(errors)

    def _fitting(self, table: pa.Table, column: Column, errors: dict[int, str]) -> pa.ChunkedArray:
        stored = table[column.stored]
        default = default_for_null(self._record, column) if stored.null_count else None
        values, problems = fitting(stored, column, default)
        if problems and stored.null_count and self._row_kind is not None:
            values, problems = self._with_deletions(table, column, values, problems)
        for position, problem in problems.items():
            errors.setdefault(position, f"{column.stored}{problem.path} {problem.why}")
        return values

    def _with_deletions(
        self, table: pa.Table, column: Column, values: pa.ChunkedArray, problems: Problems
    ) -> tuple[pa.ChunkedArray, Problems]:
        """Return values and problems of a column after its nulls in deletions have got a value, or a way out in their reason."""
        deleted = pc.equal(self._symbols_as_kinds(table), int(RowKind.DELETE))
        places = pc.indices_nonzero(pc.and_(table[column.stored].is_null(), deleted)).to_pylist()
        nulls = [at for at in places if at in problems]
        value = self._contentless.get(column.name)
        if value is None:
            return values, problems | {at: problems[at]._replace(why=f"{problems[at].why}{NEEDS_ALL}") for at in nulls}
        filled = with_value(values.combine_chunks(), pa.array(nulls, pa.int64()), value)
        return pa.chunked_array([filled]), {at: problem for at, problem in problems.items() if at not in {*nulls}}

    def _array(self, table: pa.Table, column: Column, errors: dict[int, str]) -> pa.Array | None:
        if column.stored in table.schema.names:
            return self._fitting(table, column, errors).combine_chunks()
        if column.default is msgspec.NODEFAULT:
            return None
        try:
            return pa.repeat(to_array([column.default], replace(column, nullable=True))[0], table.num_rows)
        except UnfitRecord:
            return None

    def _build(
        self, names: list[str], lists: list[list[Any]], errors: dict[int, str], count: int
    ) -> list[msgspec.Struct | None]:
        rows = list(zip(*lists, strict=True)) if lists else [()] * count
        fit = (row for position, row in enumerate(rows) if position not in errors) if errors else rows
        try:
            records = iter(build_records(self._record, names, fit))
            built: list[msgspec.Struct | None] = (
                [None if position in errors else next(records) for position in range(count)] if errors else [*records]
            )
        except BaseException as error:  # a __post_init__ raised it: find the rows that it refuses
            if is_interrupt(error):
                raise
            return list(self._build_one_by_one(names, rows, errors))
        return built if len(built) == count else list(self._build_one_by_one(names, rows, errors))  # StopIteration

    def _build_one_by_one(
        self, names: list[str], rows: Iterable[tuple[Any, ...]], errors: dict[int, str]
    ) -> Iterator[msgspec.Struct | None]:
        for position, row in enumerate(rows):
            record = None
            if position not in errors:
                try:
                    record = next(iter(build_records(self._record, names, [row])))
                except (ValueError, TypeError) as error:
                    errors[position] = str(error)
                except BaseException as error:
                    raise record_error(self._record, dict(zip(names, row, strict=True)), error) from error
            yield record

    def _kinds(self, table: pa.Table, errors: dict[int, str]) -> pa.Int32Array:
        if self._row_kind is None:
            return pa.repeat(pa.scalar(int(RowKind.INSERT), pa.int32()), table.num_rows)
        symbols, kinds = table[self._row_kind].combine_chunks(), self._symbols_as_kinds(table)
        for position in pc.indices_nonzero(pc.is_null(kinds)).to_pylist():
            error = f"{self._row_kind} is {shown_value(symbols[position])}, not one of {', '.join(self._kind_by_value)}"
            errors.setdefault(position, error)
        return pc.fill_null(kinds, 0)

    def _symbols_as_kinds(self, table: pa.Table) -> pa.Int32Array:
        """Return the row kinds of a table, null where a value stands for none."""
        values = as_texts(decoded(table[self._row_kind].combine_chunks()))
        if values is None:
            return pa.nulls(table.num_rows, pa.int32())
        places = pc.index_in(values, value_set=pa.array([*self._kind_by_value]))
        return pc.take(pa.array([int(kind) for kind in self._kind_by_value.values()], pa.int32()), places)


def _values(array: pa.ChunkedArray, column: Column, errors: dict[int, str]) -> list[Any]:
    """Return a column's values as records hold them; check the constraints of the annotation."""
    if not column.parts and column.limits is None:
        return column_values(array, column)
    keep = [position not in errors for position in range(len(array))]
    values = iter(column.kind.plain(array.filter(pa.array(keep, pa.bool_())).combine_chunks()))
    fit = [next(values) if is_fit else None for is_fit in keep]
    try:
        return msgspec.convert(fit, list[column.annotation | None])  # type: ignore[name-defined]  # made at run time
    except BaseException as error:
        if is_interrupt(error):
            raise
        return [_value(value, column, position, errors) for position, value in enumerate(fit)]


def _value(value: Any, column: Column, position: int, errors: dict[int, str]) -> Any:
    try:
        return msgspec.convert(value, column.annotation | None)
    except msgspec.ValidationError as error:
        at = f" - at `$.{column.stored}"
        text = str(error)
        errors[position] = text.replace(" - at `$", at) if " - at `$" in text else f"{text}{at}`"
        return None
    except BaseException as error:
        raise record_error(column.annotation, {column.name: value}, error) from error


def _bad_rows(errors: dict[int, str]) -> list[BadRow]:
    return [BadRow(position, errors[position]) for position in sorted(errors)]


def sink_columns(rows: pa.StructArray, record: type[msgspec.Struct], schema: pa.Schema) -> pa.Table | None:
    """Return records as rows of a sink of this `schema`: the same as `to_columns`.

    None where `to_columns` has to make them: for fields with parts, and where it would refuse a value.
    """
    columns = columns_of(record)
    if any(column.parts for column in columns):
        return None
    arrays = [_in_sink(rows.field(column.name), column) for column in columns]
    return None if None in arrays else pa.Table.from_arrays(arrays, schema=schema)


def _in_sink(values: pa.Array, column: Column) -> pa.Array | None:
    if not isinstance(column.kind, ScalarKind) or (values.null_count and not column.nullable):
        return None
    problem = column.kind.problem(values, sink=True)
    return None if problem is not None and pc.any(problem[0]).as_py() else column.kind.to_sink(values)
