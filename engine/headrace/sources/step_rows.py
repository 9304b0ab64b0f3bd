"""Input rows of a Spark step over a source, and checks of the schema of its result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from headrace.api import RowKind, SourceNode
from headrace.plan.column_types import Column, columns_of
from headrace.plan.columns import BadRow
from headrace.plan.source_values import is_kindred
from headrace.sources.file_format import DamagedFileError, FileRows
from headrace.sources.row_check import CheckedRows, RowCheck
from headrace.sources.source import InputFile, SourceFile

_MILLISECONDS: Final = pa.timestamp("ms", tz="UTC")


class Refused(NamedTuple):
    """Row that does not fit the source's record: the reason, and the row's text."""

    error: str
    raw: str


def input_schema(node: SourceNode) -> pa.Schema:
    """Return the input columns of a step: the fields of the source's record, with times as timestamps, and the row kind."""
    fields = [pa.field(column.name, column.sink_type) for column in columns_of(node.record)]
    if node.row_kind is not None and node.row_kind not in node.record.__struct_fields__:
        fields.append(pa.field(node.row_kind, pa.string()))
    return pa.schema(fields)


def columns_of_rows(file: SourceFile | InputFile, node: SourceNode, rows: FileRows) -> CheckedRows:
    """Convert rows of a file to columns of the source's record.

    Raises `DamagedFileError` for a file that lacks a required column, or has a column twice.
    """
    check = RowCheck(node, file.messages)
    if (problem := check.problem(rows.table)) is not None:
        raise DamagedFileError(problem)
    return check.check(rows.table, rows.faults)


def step_input(columns: pa.StructArray, kinds: pa.Array, node: SourceNode) -> pa.Table:
    """Return the good rows as the input of a step, in their order."""
    schema, is_good = input_schema(node), columns.is_valid()
    good = columns.filter(is_good)
    arrays = [_to_spark(good.field(column.name), column) for column in columns_of(node.record)]
    if len(schema) > len(arrays):
        # Not a constant: the first `pa.array` of a process imports pandas, and commands that only read import this module.
        arrays.append(pa.array([kind.symbol for kind in RowKind]).take(kinds.filter(is_good)))
    return pa.Table.from_arrays(arrays, schema=schema)


def refused_rows(rows: FileRows, bad: Sequence[BadRow], name: str) -> list[Refused]:
    """Return the rows that do not fit the source's record; `name` is that of the file."""
    in_order = sorted(bad, key=lambda row: row.position)
    return [Refused(f"{name}:{row.position}, before the step: {row.error}", rows.raw(row.position)) for row in in_order]


def misfits(schema: pa.Schema, node: SourceNode) -> list[str]:
    """Return the reasons why the columns of a step's result do not fit the record of `node`."""
    record, problems = node.record, list[str]()
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    problems += [f"the result has two columns '{name}'" for name in twice]
    for column in columns_of(record):
        result_type = schema.field(column.name).type if schema.names.count(column.name) == 1 else None
        if result_type is None and column.required and column.name not in twice:
            problems.append(
                f"the result has no column '{column.name}', a field of {record.__name__} (it has {', '.join(schema.names)})"
            )
        if result_type is not None and not pa.types.is_null(result_type) and not is_kindred(result_type, column):
            wanted = "timestamp" if column.is_time else column.type
            problems.append(
                f"column '{column.name}' of the result is {result_type}, and the field of {record.__name__} is {wanted}"
            )
    if node.row_kind is not None and node.row_kind not in schema.names:
        problems.append(f"the result has no column '{node.row_kind}', which holds the kinds of rows: select it as well")
    return problems


def _to_spark(array: pa.Array, column: Column) -> pa.Array:
    """Convert times to timestamps; between stages they are milliseconds."""
    if column.type == column.sink_type:
        return array
    return array.cast(_in_milliseconds(column.sink_type)).cast(column.sink_type)


def _in_milliseconds(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return _MILLISECONDS
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _in_milliseconds(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _in_milliseconds(kind.item_type))
    return pa.list_(pa.field("element", _in_milliseconds(kind.value_type))) if pa.types.is_list(kind) else kind
