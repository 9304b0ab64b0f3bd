"""Fit of a pipeline's columns and a table that exists, whoever has made it: what is written there, and what cannot be.

A table is never made to fit: it keeps its columns, their types and order, its partitions and its features. Rows are brought into
its types, and a value that a column cannot hold as it is ends the run, with the record.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.value_arrays import UnfitRecord
from headrace.sinks.layout import PARTITION_TYPES
from headrace.storage.delta_commits import APPEND_ONLY, not_null
from headrace.storage.delta_schema import from_logged, to_logged
from headrace.storage.table import Snapshot, TableForm


class Staging(msgspec.Struct, frozen=True, omit_defaults=True):
    """How tasks stage the rows of a sink, so that they fit its table. It travels to the tasks."""

    partition_by: tuple[str, ...] = ()
    """Partition columns of the table, but for those that the pipeline does not write."""

    in_table: bool = True
    """Files of rows to append are staged in the table's folder, and become files of the table. Else they lie in the job's folder, and
    a writer of the table reads them."""

    narrowed: dict[str, Any] = {}
    """Columns that have other types in the table than in the pipeline, with those of the table, as in Delta's log."""

    variants: tuple[str, ...] = ()
    """Columns of VARIANT, which are staged as texts of JSON."""

    @property
    def form(self) -> str:
        """Return a text that only stagings of the same form have."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:_DIGITS]

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return rows in the table's types. Raises `UnfitRecord` for a value that a column of the table cannot hold."""
        for column in from_logged(self.narrowed) if self.narrowed else ():
            place = rows.schema.get_field_index(column.name)
            rows = rows.set_column(place, column, _fitted(rows[column.name], column))
        for name in self.variants:
            _check_json(rows[name], name)
        return rows


_DIGITS: Final = 16
PLAIN: Final = Staging()


@dataclass(frozen=True)
class TableFit:
    """Fit of the columns `written` and the latest version of a table."""

    written: pa.Schema
    keys: Sequence[str]
    table: Snapshot

    @cached_property
    def columns(self) -> pa.Schema:
        """Return the columns of the table."""
        return self.table.schema

    @cached_property
    def form(self) -> TableForm:
        """Return the form of the table."""
        return self.table.form

    def problems(self) -> Iterator[str]:
        """Yield the reasons why rows cannot be written, each as the end of a sentence that begins with the sink."""
        yield from (f"has the feature {feature}" for feature in self.form.beyond)
        by_name = {name.lower(): name for name in self.columns.names}
        for column in self.written:
            name = by_name.get(column.name.lower(), column.name)
            if name != column.name:
                yield f"has the column {name}, and the pipeline writes {column.name}: Delta takes such names for equal. Name it as the table does (rename: in the job's file)"
        yield from (
            f"has the column {name}, which allows no null, and the pipeline does not write it"
            for name in self._unfilled
        )
        if new_keys := [key for key in self.keys if key not in self.columns.names]:
            yield f"has no column {', '.join(new_keys)}, which is of the primary key now: existing rows would have no value there"
        if self.missing and (self.form.maps_columns or self.needs_spark):
            columns = ", ".join(f"`{column.name}` {_sql_type(column)}" for column in self.missing)
            yield f"lacks columns that Headrace does not add to such a table. Add them: ALTER TABLE delta.`{self.table.uri}` ADD COLUMNS ({columns})"
        if given := [name for name in self.written.names if name in self.form.identities]:
            yield f"numbers {', '.join(given)} itself (an identity column), and the pipeline writes it: leave it out of the record"

    @property
    def _unfilled(self) -> list[str]:
        others = (column for column in self.columns if column.name not in self.written.names)
        return [
            column.name
            for column in others
            if column.name not in self.form.filled
            and (not column.nullable or not_null(column.name) in self.table.rules)
        ]

    @cached_property
    def missing(self) -> list[pa.Field]:
        """Return the columns that the table lacks, in any case. They are nullable, since existing rows have no values there."""
        names = {name.lower() for name in self.columns.names}
        return [column.with_nullable(True) for column in self.written if column.name.lower() not in names]

    def misfits(self) -> Iterator[tuple[pa.Field, pa.DataType]]:
        """Yield each written column whose values the table's column cannot hold, with the table's type."""
        for column, kind in self._shared:
            is_rounded = column.name in self.keys and pa.types.is_floating(kind)  # two keys could become one
            if not (kind == column.type or self._is_variant(column) or (is_cast(kind, column.type) and not is_rounded)):
                yield column, kind

    @property
    def staging(self) -> Staging:
        """Return how rows are staged for the table."""
        types = [
            pa.field(column.name, kind, column.nullable)
            for column, kind in self._shared
            if kind != column.type and not self._is_variant(column)
        ]
        return Staging(
            partition_by=tuple(name for name in self.table.partition_columns if name in self.written.names),
            in_table=self.takes_files,
            narrowed=to_logged(pa.schema(types)) if types else {},
            variants=tuple(column.name for column, _ in self._shared if self._is_variant(column)),
        )

    @cached_property
    def needs_spark(self) -> tuple[str, ...]:
        """Return the features and columns for which only Spark can write rows; without any, deltalake can."""
        left = self.form.filled - {*self.written.names}
        return (*self.form.needs_spark, *(f"the column {name}, which it fills" for name in sorted(left)))

    @property
    def takes_files(self) -> bool:
        """Return whether files that tasks have written can become files of the table as they are."""
        is_plain = not (self.needs_spark or self.form.maps_columns or {*self.rules} - {APPEND_ONLY})
        return is_plain and all(
            name in self.written.names and self.columns.field(name).type in PARTITION_TYPES
            for name in self.table.partition_columns
        )

    @property
    def rules(self) -> tuple[str, ...]:
        """Return the rules that the table has for its rows, except that columns without nulls have none."""
        own = {not_null(column.name) for column in self.written if not column.nullable}
        return tuple(rule for rule in self.table.rules if rule not in own)

    @property
    def _shared(self) -> list[tuple[pa.Field, pa.DataType]]:
        return [
            (column, self.columns.field(column.name).type)
            for column in self.written
            if column.name in self.columns.names
        ]

    def _is_variant(self, column: pa.Field) -> bool:
        return column.name in self.form.variants and column.type == pa.string()


_KINDS_OF_VALUES: Final = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal,
    pa.types.is_timestamp,
    pa.types.is_date,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind),
)


def is_cast(table: pa.DataType, written: pa.DataType) -> bool:
    """Return whether a column of a table can hold written values as they are, if they are in its range.

    Numbers stay numbers, and a day may become a time. Within lists, maps and structs each kind of value stays what it is, keys of maps
    are not rounded, and structs have the same fields.
    """
    if all(map(_is_number, (table, written))) or (pa.types.is_timestamp(table) and pa.types.is_date(written)):
        return True
    return _is_width(table, written)


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def _is_width(table: pa.DataType, written: pa.DataType) -> bool:
    """Return whether two types are of one kind, in other widths."""
    if pa.types.is_struct(table) and pa.types.is_struct(written):
        fields = {field.name: field.type for field in written}
        return fields.keys() == {field.name for field in table} and all(
            _is_width(field.type, fields[field.name]) for field in table
        )
    if pa.types.is_map(table) and pa.types.is_map(written):
        is_rounded = pa.types.is_floating(table.key_type) and table.key_type != written.key_type
        return (
            not is_rounded
            and _is_width(table.key_type, written.key_type)
            and _is_width(table.item_type, written.item_type)
        )
    if pa.types.is_list(table) and pa.types.is_list(written):
        return _is_width(table.value_type, written.value_type)
    return bool(table == written or any(is_kind(table) and is_kind(written) for is_kind in _KINDS_OF_VALUES))


def _fitted(values: pa.ChunkedArray, column: pa.Field) -> pa.ChunkedArray:
    """Return values in the type of a table's column. Raises `UnfitRecord` for the first one that it cannot hold."""
    try:
        fitted = _cast(values, column.type)
    except pa.ArrowException:
        place = next(row for row in range(len(values)) if not _fits(values.take([row]), column.type))
    else:
        changed = _changed(values, fitted)
        if changed is None:
            return fitted
        place = changed
    raise UnfitRecord(
        place, column.name, f"is {values[place].as_py()!r}, and the sink's table has {column.type} there", _WAYS_ON
    )


_WAYS_ON: Final = "Let it emit what fits, filter such rows out, or give the table a wider column."


def _check_json(texts: pa.ChunkedArray, name: str) -> None:
    """Raise `UnfitRecord` for the first text that is no JSON."""
    for place, text in enumerate(texts.to_pylist()):
        try:
            msgspec.json.decode("null" if text is None else text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise UnfitRecord(
                place, name, f"is no JSON ({error}), and the sink's table has VARIANT there", _WAYS_ON
            ) from error


def _fits(value: pa.ChunkedArray, kind: pa.DataType) -> bool:
    try:
        _cast(value, kind)
    except pa.ArrowException:
        return False
    return True


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_decimal(kind) and not pa.types.is_decimal(
        values.type
    ):  # Arrow asks for room for all numbers of the type
        values = values.cast(pa.decimal256(_MOST_DIGITS, kind.scale))
    return values.cast(kind)


_MOST_DIGITS: Final = 76
"""Digits of Arrow's widest decimals."""


def _changed(values: pa.ChunkedArray, fitted: pa.ChunkedArray) -> int | None:
    """Return the place of the first value that is another one now; None without one. A number may be rounded to a shorter float."""
    if pa.types.is_nested(fitted.type):
        pairs = zip(values.to_pylist(), fitted.to_pylist(), strict=True) if _has_floats(fitted.type) else ()
        return next((place for place, pair in enumerate(pairs) if _infinities(pair[0]) != _infinities(pair[1])), None)
    if pa.types.is_floating(fitted.type):
        wrong = pc.and_(pc.is_finite(values.cast(pa.float64())), pc.invert(pc.is_finite(fitted)))
        if not pa.types.is_floating(values.type):
            wrong = pc.or_(wrong, pc.not_equal(fitted.cast(values.type, safe=False), values))
    elif pa.types.is_floating(values.type):
        wrong = pc.not_equal(fitted.cast(values.type, safe=False), values)
    else:
        return None
    place: int = pc.index(pc.fill_null(wrong, False), True).as_py()
    return None if place < 0 else place


def _has_floats(kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return bool(pa.types.is_floating(kind))
    return any(_has_floats(kind.field(place).type) for place in range(kind.num_fields))


def _infinities(value: Any) -> int:
    """Return the number of infinite floats in a value."""
    if isinstance(value, Mapping):
        return sum(map(_infinities, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(_infinities, value))
    return int(isinstance(value, float) and math.isinf(value))


def _sql_type(column: pa.Field) -> str:
    """Return the type of a column as SQL of Spark writes it."""
    return _sql(to_logged(pa.schema([column]))["fields"][0]["type"])


def _sql(kind: str | Mapping[str, Any]) -> str:
    if isinstance(kind, str):
        return {"long": "BIGINT", "integer": "INT", "short": "SMALLINT", "byte": "TINYINT"}.get(kind, kind.upper())
    if kind["type"] == "array":
        return f"ARRAY<{_sql(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"MAP<{_sql(kind['keyType'])}, {_sql(kind['valueType'])}>"
    fields = ", ".join(f"`{field['name']}`: {_sql(field['type'])}" for field in kind["fields"])
    return f"STRUCT<{fields}>"
