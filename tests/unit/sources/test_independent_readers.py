"""Files are read as independent readers read them: pyarrow, DuckDB, fastavro, and Python's csv and json.

Tables have all types that a record can declare. Some of their cells, names and bytes are changed. Then each row is equal cell by
cell, or it is refused by name.
"""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Any

import duckdb
import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.config import CsvOptions
from tests.unit.sources.drawn_tables import (
    Drawn,
    Refused,
    arrow_table,
    avro_file,
    csv_file,
    expected,
    has_avro_names,
    json_lines,
    parquet_files,
    plain,
    read_avro,
    read_csv,
    read_json,
    read_parquet,
    tables,
)
from tests.unit.sources.source_reading import Outcome, parquet_bytes, read_bytes, read_messages
from tests.unit.support.fuzzing import examples

TEXT = {"is_text": True}
CSV = {"is_csv": True}


def assert_equal(outcome: Outcome, drawn: Drawn, rows: list[Any], **form: bool) -> None:
    """Compare the records with rows of an independent reader: equal cell by cell, or refused by name."""
    if outcome.refused is not None:
        return
    assert len(outcome.records) == len(rows)
    for number, (record, row) in enumerate(zip(outcome.records, rows, strict=True)):
        field = ""
        values: dict[str, Any] | None
        try:
            values = expected(row, drawn.columns, **form)
        except Refused as error:
            values, field = None, str(error)
        if values is not None:
            assert record is None or plain(record) == values, (number, row)
        else:
            assert record is None, (number, row)
            assert field in outcome.errors[number] or outcome.errors[number].startswith(("line ", "object "))


def assert_all_read(outcome: Outcome) -> None:
    assert (outcome.refused, outcome.errors) == (None, {})


def with_duckdb(content: bytes, path: Any) -> list[dict[str, Any]]:
    path.write_bytes(content)
    table = duckdb.connect().read_parquet(str(path)).to_arrow_table()
    return table.to_pylist(maps_as_pydicts="strict")


class Texts(Struct, frozen=True):
    at: Timestamp
    first: str
    second: str


def escaped_csv(rows: list[list[str]], *, doubles_quotes: bool) -> str:
    written = io.StringIO()
    writer = csv.writer(
        written, quoting=csv.QUOTE_NONNUMERIC, escapechar="\\", doublequote=doubles_quotes, lineterminator="\n"
    )
    writer.writerows([number, *row] for number, row in enumerate(rows))
    return written.getvalue()


def escaped_with_duckdb(text: str, path: Any) -> list[list[str]]:
    path.write_bytes(text.encode())
    types: Any = {"at": "BIGINT", "first": "VARCHAR", "second": "VARCHAR"}
    read = duckdb.connect().read_csv(
        str(path), header=False, delimiter=",", quotechar='"', escapechar="\\", columns=types, na_values="(none)"
    )
    return [[*row[1:]] for row in read.fetchall()]


# ------------------------------------------------------------------------------------------------------------ as written


@examples(20)
@given(
    rows=st.lists(st.lists(st.text('a"\\,\n é', max_size=6), min_size=2, max_size=2), min_size=1, max_size=4),
    doubles_quotes=st.booleans(),
)
@example(rows=[['he said "hi"', "\\"]], doubles_quotes=False)
def test_escaped_csv_equals_python_and_duckdb(rows, doubles_quotes, tmp_path_factory):
    text = escaped_csv(rows, doubles_quotes=doubles_quotes)
    outcome = read_bytes("csv", text.encode(), Texts, csv=CsvOptions(escape="\\", header=False))
    assert_all_read(outcome)
    by_python = csv.reader(io.StringIO(text, newline=""), escapechar="\\")
    assert [[row.first, row.second] for row in outcome.records] == [row[1:] for row in by_python] == rows
    if not doubles_quotes:
        assert escaped_with_duckdb(text, tmp_path_factory.mktemp("d") / "a.csv") == rows


@examples(12)
@given(data=st.data(), drawn=tables())
def test_parquet_equals_pyarrow(data, drawn):
    content = data.draw(parquet_files(drawn))
    for kind in ("parquet", "delta"):
        outcome = read_bytes(kind, content, drawn.record)
        assert_all_read(outcome)
        assert_equal(outcome, drawn, read_parquet(content))


@examples(6)
@given(data=st.data(), drawn=tables())
def test_parquet_equals_duckdb(data, drawn, tmp_path_factory):
    content = data.draw(parquet_files(drawn))
    outcome = read_bytes("parquet", content, drawn.record)
    assert_equal(outcome, drawn, with_duckdb(content, tmp_path_factory.mktemp("d") / "a.parquet"))


@examples(12)
@given(drawn=tables())
def test_json_equals_python(drawn):
    content = json_lines(drawn.rows)
    array = b"[" + b",\n".join(content.split(b"\n")) + b"]"
    for outcome in (read_bytes("json", content, drawn.record), read_bytes("json", array, drawn.record)):
        assert_all_read(outcome)
        assert_equal(outcome, drawn, read_json(content), **TEXT)
    messages = [line for line in content.split(b"\n") if line]
    assert read_messages(messages, drawn.record).records == read_bytes("json", content, drawn.record).records


@examples(12)
@given(drawn=tables())
def test_csv_equals_python(drawn):
    content = csv_file(drawn.rows, [column.stored for column in drawn.columns])
    outcome = read_bytes("csv", content, drawn.record)
    assert_all_read(outcome)
    rows = [
        {
            name: None if drawn_row[name] is None else text for name, text in row.items()
        }  # csv takes a null for an empty text
        for row, drawn_row in zip(read_csv(content), drawn.rows, strict=True)
    ]
    assert_equal(outcome, drawn, rows, **CSV)


@examples(12)
@given(drawn=tables())
def test_avro_equals_fastavro(drawn):
    if not has_avro_names(drawn.columns):
        return
    content = avro_file(drawn)
    outcome = read_bytes("avro", content, drawn.record)
    assert_all_read(outcome)
    assert_equal(outcome, drawn, read_avro(content))


# --------------------------------------------------------------------------------------------------------------- changed

OTHER_VALUES = st.sampled_from(
    [None, "", "1", 1, -1, 1.5, 5.0, True, 2**53 + 1, 2**63, 10**400, 1e300, [], [1], {}, {"a": 1}, "red", "2026-01-01", "2026-01-01 10:00:00 UTC",
     "20260101", "2026-01-01T00:00:00.0001Z", "AAE=", "A", Decimal("0.35"), Decimal("9007199254740993.0"), "\ud800"]
)  # fmt: skip


def changed(data: Any, drawn: Drawn) -> list[dict[str, Any]]:
    """Return the rows with another value in a cell, or another name."""
    rows = [dict(row) for row in drawn.rows]
    row, name = (
        data.draw(st.sampled_from(rows)),
        data.draw(st.sampled_from([column.stored for column in drawn.columns])),
    )
    if data.draw(st.booleans()):
        row[name] = data.draw(OTHER_VALUES)
    else:
        row[data.draw(st.sampled_from([name.upper(), f" {name}", f"{name}2", name.replace("_", "")]))] = row.pop(name)
    return rows


@examples(15)
@given(data=st.data(), drawn=tables().filter(lambda drawn: drawn.rows))
def test_changed_cells_of_json_are_equal_or_refused(data, drawn):
    def _plain_json(value: Any) -> Any:
        return float(value) if isinstance(value, Decimal) else msgspec.to_builtins(value)

    content = b"\n".join(json.dumps(row, default=_plain_json).encode() for row in changed(data, drawn))
    outcome = read_bytes("json", content, drawn.record)
    assert_equal(outcome, drawn, read_json(content), **TEXT)
    if outcome.refused is None:
        assert read_messages(content.split(b"\n"), drawn.record).records == outcome.records


@examples(15)
@given(data=st.data(), drawn=tables().filter(lambda drawn: drawn.rows))
def test_changed_columns_of_parquet_are_equal_or_refused(data, drawn):
    table = arrow_table(drawn)
    place = data.draw(st.integers(0, table.num_columns - 1))
    name = table.schema.names[place]
    value = data.draw(OTHER_VALUES.filter(lambda value: value not in ({}, 10**400, 2**63, "\ud800")))
    column = pa.array([data.draw(st.sampled_from([value, None])) for _ in drawn.rows])
    if data.draw(st.booleans()):
        name, column = data.draw(st.sampled_from([name.upper(), f"{name} ", f"{name}2"])), table.column(place)
    content = parquet_bytes(table.set_column(place, name, column))
    outcome = read_bytes("parquet", content, drawn.record)
    if drawn.columns[place].stored not in table.set_column(place, name, column).schema.names:
        required = drawn.columns[place].required
        assert (outcome.refused is None) == (not required)
        assert drawn.columns[place].stored in (outcome.refused or "")
        return
    assert_equal(outcome, drawn, read_parquet(content))


def damaged(data: Any, content: bytes) -> bytes:
    """Return a content in which about one byte of a hundred is another one, at least one."""
    damage = bytearray(content)
    places = st.lists(st.integers(0, len(damage) - 1), min_size=1, max_size=1 + len(damage) // 100)
    for place in data.draw(places):
        damage[place] = data.draw(st.sampled_from(b"0159aZ\"',:{}[]\\\r\n \t.-+eE\x00\xff"))
    return bytes(damage)


@examples(15)
@given(data=st.data(), drawn=tables().filter(lambda drawn: drawn.rows))
def test_damaged_json_is_equal_or_refused(data, drawn):
    content = damaged(data, json_lines(drawn.rows))
    if content.lstrip()[:1] != b"{" or b"\n" not in content or b"\r" in content:
        return
    outcome = read_bytes("json", content, drawn.record)
    if outcome.refused is not None or len(outcome.records) != len(read_json(content)):
        return
    for record, row in zip(outcome.records, read_json(content), strict=True):
        assert record is None or plain(record) == expected(row, drawn.columns, is_text=True)


@examples(15)
@given(data=st.data(), drawn=tables().filter(lambda drawn: drawn.rows))
def test_damaged_csv_is_equal_or_refused(data, drawn):
    content = damaged(data, csv_file(drawn.rows, [column.stored for column in drawn.columns]))
    outcome = read_bytes("csv", content, drawn.record)
    if outcome.refused is not None or outcome.errors:
        return
    try:
        rows = read_csv(content)
    except ValueError:
        return  # fields below empty names, or bytes that are no text
    assert len(rows) == len(outcome.records)
    fields = {column.stored: column.name for column in drawn.columns}
    for record, row in zip(outcome.records, rows, strict=True):
        values = {
            name: None if not text and getattr(record, fields.get(name, ""), 0) is None else text
            for name, text in row.items()
        }
        assert plain(record) == expected(values, drawn.columns, is_csv=True)


@pytest.mark.parametrize("kind", ["parquet", "avro"])
@examples(12)
@given(data=st.data(), drawn=tables().filter(lambda drawn: drawn.rows))
def test_damaged_bytes_are_equal_or_refused(kind, data, drawn):
    if kind == "avro" and not has_avro_names(drawn.columns):
        return
    content = damaged(data, avro_file(drawn) if kind == "avro" else data.draw(parquet_files(drawn)))
    outcome = read_bytes(kind, content, drawn.record)
    if outcome.refused is not None:
        return
    try:
        rows = (read_avro if kind == "avro" else read_parquet)(content)
    except Exception:  # noqa: BLE001 - the other reader fails at a value where ours refuses its row
        assert outcome.errors
        return
    assert_equal(outcome, drawn, rows)
