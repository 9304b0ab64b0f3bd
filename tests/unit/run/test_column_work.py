"""All records of a task as columns."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import pytest

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.execution.keyed_process import KeyedProcess
from headrace.operators import Count
from headrace.records.order import record_order
from headrace.records.record_columns import to_struct_array
from headrace.run.column_work import ColumnWork
from headrace.run.rows import ColumnarRows
from headrace.run.transit import transit_table
from headrace.state.backend import HashMapBackend
from headrace.state.key_columns import key_json_column


class Note(Struct, frozen=True):
    at: Timestamp
    writer: str
    text: str


class Notes(Struct, frozen=True):
    writer: str
    notes: Annotated[int, Count()]


def taken(batches):
    """Return the results of an aggregate over batches, None without any, the number of batches that are left, and the metrics."""
    notes = Pipeline("notes").source("notes", Note, event_time="at").key_by("writer")
    (*_, operator) = notes.aggregate("count", Notes, state_ttl=Lifetime.FOREVER).operators
    process = KeyedProcess(operator, HashMapBackend(), records=(Note,), watermark=None, last_watermark=None)
    rows, left = ColumnWork(operator, process, (), None, (Note,)).run(batches)
    return None if rows is None else [line.record for line in rows.emitted()], len(left), process.metrics


def batch(*notes):
    records = to_struct_array(notes, Note)
    orders = pa.array([record_order(place) for place in range(len(notes))], pa.binary())
    kinds = pa.repeat(pa.scalar(0, pa.int32()), len(notes))
    rows = ColumnarRows(Note, orders, records.field("at"), kinds, records)
    table = transit_table((Note,), 0, rows, key_json_column(records.field("writer")), 8)
    (one,) = table.to_batches()
    return one


def test_batches_are_taken_together():
    given = [batch(Note(1, "a", ""), Note(2, "b", "")), batch(Note(3, "a", ""))]
    assert taken(given) == ([Notes("a", 1), Notes("b", 1), Notes("a", 1), Notes("a", 2)], 0, {"records": 3})


@pytest.mark.slow
def test_texts_beyond_a_column_need_records():
    large = batch(Note(1, "a", "x" * (64 << 20)))
    assert taken([large] * 33) == (None, 33, {})
