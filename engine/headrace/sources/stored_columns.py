"""Columns of a file or table beside the fields of a source's record: what a run would refuse, as names and types alone show it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from headrace.api import SourceNode
from headrace.plan.column_names import near_names
from headrace.plan.column_types import columns_of
from headrace.plan.columns import RecordReader
from headrace.plan.source_values import is_kindred
from headrace.sources.file_format import wanted_columns


class ColumnProblem(NamedTuple):
    """Reason why a column does not fit, as a sentence; and whether it refuses the file as a whole, or rows of it."""

    why: str
    of_file: bool


def column_problems(
    node: SourceNode, schema: pa.Schema, place: str, own: Sequence[str] = ()
) -> Iterator[ColumnProblem]:
    """Yield the problems of the columns of a file or table at a place. `own` are further columns that its rows will have.

    A column of the type null fits: nothing is known of its values.
    """
    near = near_names(schema, wanted_columns(node))
    if near is not None:
        yield ColumnProblem(f"{place}: {near}", of_file=True)
    named = near.partition(" ")[0] if near is not None else None
    for name in RecordReader(node.record, node.row_kind).missing([*schema.names, *own]):
        if name != named:
            yield ColumnProblem(f"{place} has no column {name}, which {node.record.__name__} needs", of_file=True)
    columns = {column.name: column for column in columns_of(node.record)}
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name in columns and not pa.types.is_null(kind) and not is_kindred(kind, columns[name]):
            wanted = "a timestamp" if columns[name].is_time else columns[name].type
            yield ColumnProblem(f"column {name} of {place} is {kind}, which is not {wanted}", of_file=False)
