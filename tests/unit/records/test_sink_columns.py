"""Columns between stages as columns of a sink: the same as those made of records."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.records.columns import sink_columns, sink_schema, to_columns
from headrace.records.record_columns import to_struct_array
from headrace.records.value_rules import FIRST_TIME, LAST_TIME


class Row(Struct):
    name: str | None
    at: Timestamp
    left_at: Timestamp | None
    count: int
    share: float
    raw: bytes
    kind: Literal["a", "b"]


class Nested(Struct):
    names: list[str]


class Timed(Struct):
    at: Timestamp


TIMES = st.integers(FIRST_TIME, LAST_TIME)
ROWS = st.builds(
    Row,
    name=st.none() | st.text(st.characters(exclude_categories=["Cs"])),
    at=TIMES,
    left_at=st.none() | TIMES,
    count=st.integers(-(1 << 63), (1 << 63) - 1),
    share=st.floats(allow_nan=False, allow_infinity=False),
    raw=st.binary(),
    kind=st.sampled_from("ab"),
)


@given(st.lists(ROWS, min_size=1))
def test_columns_equal_those_of_records(rows):
    columns = sink_columns(to_struct_array(rows, Row), Row, sink_schema(Row))
    assert columns is not None
    assert columns.equals(to_columns(rows, sink_schema(Row)))


@pytest.mark.parametrize("rows", [[Nested(["a"])], [Timed(LAST_TIME + 1)], [Timed(FIRST_TIME - 1)]])
def test_other_rows_become_records_first(rows):
    record = type(rows[0])
    assert sink_columns(to_struct_array(rows, record), record, sink_schema(record)) is None
