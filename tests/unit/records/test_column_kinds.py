"""A new type of columns is one class and its line of `SCALARS`: here days, which no field has yet."""

from __future__ import annotations

import datetime as dt

import msgspec
import pyarrow as pa
import pytest
from msgspec import inspect

from headrace import Struct
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_kinds.scalars import SCALARS
from headrace.records.column_types import columns_of
from headrace.records.columns import BadRow, RecordReader, contentless, sink_columns, sink_schema, to_columns
from headrace.records.foreign_values import is_text
from headrace.records.plain_values import to_column
from headrace.records.record_columns import from_struct_array, to_struct_array
from headrace.records.value_arrays import UnfitRecord
from headrace.state.codec import encode
from headrace.state.key_columns import key_json_column

NEW_YEAR, EVE = dt.date(2026, 1, 1), dt.date(2025, 12, 31)


class Day(ScalarKind):
    """Days of the calendar."""

    type = sink_type = through = pa.date32()
    python = dt.date
    annotation = None
    contentless = dt.date(1970, 1, 1)

    def takes(self, kind):
        return pa.types.is_date(kind) or is_text(kind)

    def read(self, value):
        try:
            return dt.date.fromisoformat(value)
        except (TypeError, ValueError):
            return self._refuse(value)


class Flight(Struct):
    day: dt.date
    stops: list[dt.date | None] = msgspec.field(default_factory=list)


class Flown(Struct):
    day: dt.date


RECORDS = [Flight(NEW_YEAR, [EVE, None]), Flight(EVE)]


@pytest.fixture(autouse=True)
def has_days(monkeypatch):
    monkeypatch.setitem(SCALARS, inspect.DateType, Day())


def test_new_kind_travels_between_stages():
    assert from_struct_array(to_struct_array(RECORDS, Flight), Flight) == RECORDS


def test_new_kind_is_stored_and_read():
    table = to_columns(RECORDS, sink_schema(Flight))
    assert table.schema.field("day").type == pa.date32()
    assert RecordReader(Flight, None).read(table) == (RECORDS, [0, 0], [])


def test_columns_of_new_kind_reach_sinks():
    rows = to_struct_array([Flown(NEW_YEAR)], Flown)
    assert sink_columns(rows, Flown, sink_schema(Flown)) == to_columns([Flown(NEW_YEAR)], sink_schema(Flown))


def test_foreign_values_of_new_kind_are_checked():
    table = pa.table({"day": ["2026-01-01", "later", None]})
    records, _, bad = RecordReader(Flown, None).read(table)
    assert records == [Flown(NEW_YEAR), None, None]
    assert bad == [BadRow(1, "day is 'later', which is not date32[day]"), BadRow(2, "day is null")]


def test_plain_values_of_new_kind_are_read():
    day, stops = columns_of(Flight)
    array, problems = to_column(["2026-01-01", 5], day, Flight)
    assert array.to_pylist() == [NEW_YEAR, None]
    assert problems[1].why == "is 5, which is not date32[day]"
    assert to_column([["2025-12-31", None]], stops, Flight)[0].to_pylist() == [[EVE, None]]


def test_records_with_other_values_are_refused():
    with pytest.raises(UnfitRecord, match="record 1: day is '2026-01-01', which is not date"):
        to_struct_array([Flown(EVE), Flown("2026-01-01")], Flown)


def test_new_kind_has_content_and_keys():
    assert contentless(Flight, ())["day"].as_py() == dt.date(1970, 1, 1)
    keys = key_json_column(to_struct_array(RECORDS, Flight).field("day"))
    assert keys.to_pylist() == [encode(NEW_YEAR), encode(EVE)]
