"""Values that a file lacks: names that are almost those of fields are refused, and a null has one meaning at any time."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import field

from headrace import Pipeline, Struct, Timestamp
from headrace.testing import PipelineHarness
from tests.unit.sources.source_reading import avro_bytes, parquet_bytes, read_bytes, read_messages
from tests.unit.support.fuzzing import examples


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    unit_price: float | None = None


def in_all_formats(row: dict[str, Any], record: type[msgspec.Struct]):
    """Read one row, whose columns have the names of the keys."""
    json = msgspec.json.encode(row)
    text = ",".join(map(str, row.values()))
    types = {str: "string", int: "long", float: "double"}
    return {
        "json": read_bytes("json", json, record),
        "kafka": read_messages([json], record),
        "csv": read_bytes("csv", f"{','.join(row)}\n{text}".encode(), record),
        "parquet": read_bytes("parquet", parquet_bytes(pa.Table.from_pylist([row])), record),
        "avro": None
        if any(not name.isidentifier() for name in row)
        else read_bytes("avro", avro_bytes({name: types[type(value)] for name, value in row.items()}, [row]), record),
    }


@st.composite
def near_names(draw, name):
    """Draw a spelling of a name in other cases, and with other separators."""
    letters = [draw(st.sampled_from([letter.upper(), letter.lower()])) for letter in name if letter != "_"]
    return "".join(letter + draw(st.sampled_from(["", "", "", "_", "-", " "])) for letter in letters)


@examples(30)
@given(spelling=near_names("unit_price"), is_required=st.booleans())
def test_near_names_are_never_defaults(spelling, is_required):
    record = (
        msgspec.defstruct("Needs", [("id", str), ("at", Timestamp), ("unit_price", float)]) if is_required else Order
    )
    for kind, outcome in in_all_formats({"id": "a", "at": 1, spelling: 2.5}, record).items():
        if outcome is None:
            continue
        if spelling == "unit_price":
            assert outcome.records == [record("a", 1, 2.5)], kind
        else:
            why = outcome.refused or outcome.errors[0]
            assert f"unit_price is missing, but there is '{spelling}'" in why, kind
            assert (outcome.refused is None) == (kind in {"json", "kafka"}), kind


def test_near_names_in_nests_are_refused():
    class Lines(Struct, frozen=True):
        at: Timestamp
        lines: list[Order] = field(default_factory=list)

    row = {"at": 1, "lines": [{"id": "a", "at": 1, "Unit Price": 2.5}]}
    why = "is missing, but there is 'Unit Price'"
    assert f"lines[0].unit_price {why}" in read_bytes("json", msgspec.json.encode(row), Lines).errors[0]
    assert (
        f"lines[].unit_price {why}" in read_bytes("parquet", parquet_bytes(pa.Table.from_pylist([row])), Lines).refused
    )


def test_other_columns_are_no_near_names():
    outcome = read_bytes("csv", b"id,at,unit_price,UNIT_PRICE,price\na,1,2.5,3,4", Order)
    assert outcome.records == [Order("a", 1, 2.5)]


SOME = {"id": "a", "at": 1}
NULLS = SOME | dict.fromkeys(("currency", "parts", "rate", "note"))


def test_null_is_default_where_it_is_forbidden():
    class Priced(Struct, frozen=True):
        id: str
        at: Timestamp
        currency: str = "EUR"
        parts: list[int] = field(default_factory=lambda: [7])
        rate: float | None = 1.5
        note: str | None = None

    schema = pa.schema(
        [
            ("id", pa.string()),
            ("at", pa.int64()),
            ("currency", pa.string()),
            ("parts", pa.list_(pa.int32())),
            ("rate", pa.float64()),
            ("note", pa.string()),
        ]
    )
    expected = Priced("a", 1, "EUR", [7], None, None)
    assert (
        read_bytes("parquet", parquet_bytes(pa.Table.from_pylist([NULLS, NULLS], schema)), Priced).records
        == [expected] * 2
    )
    assert read_bytes("json", msgspec.json.encode(NULLS), Priced).records == [expected]
    assert read_messages([msgspec.json.encode(NULLS)], Priced).records == [expected]
    assert read_bytes("csv", b"id,at,currency,parts,rate,note\na,1,,,,", Priced).records == [expected]
    for kind in ("json", "parquet"):
        content = msgspec.json.encode(SOME) if kind == "json" else parquet_bytes(pa.Table.from_pylist([SOME]))
        assert read_bytes(kind, content, Priced).records == [Priced("a", 1)]


def test_nulls_in_nests_are_defaults():
    class Flat(Struct, frozen=True):
        id: str
        currency: str = "EUR"

    record = msgspec.defstruct("Nested", [("at", Timestamp), ("inner", Flat), ("many", list[Flat])])
    row = {
        "at": 1,
        "inner": {"id": "a", "currency": None},
        "many": [{"id": "b", "currency": None}, {"id": "c", "currency": "USD"}],
    }
    expected = record(1, Flat("a"), [Flat("b"), Flat("c", "USD")])
    assert read_bytes("json", msgspec.json.encode(row), record).records == [expected]
    assert read_bytes("parquet", parquet_bytes(pa.Table.from_pylist([row])), record).records == [expected]


def test_nan_is_no_default():
    record = msgspec.defstruct("Real", [("at", Timestamp), ("x", float, 7.0)])
    outcome = read_bytes("parquet", parquet_bytes(pa.table({"at": [1, 2], "x": [float("nan"), None]})), record)
    assert (outcome.records, outcome.errors) == ([None, record(2, 7.0)], {0: "x is null"})


# ------------------------------------------------------------------------------------- a column that is added to a table


BEFORE = pa.table({"id": ["a"], "at": [1]})
AFTER = pa.table({"id": ["b", "c"], "at": [2, 3], "currency": [None, "USD"], "rate": [None, 2.0]})


@pytest.mark.parametrize("start", ["earliest", "snapshot"])
@pytest.mark.parametrize("is_run_between", [True, False])
def test_added_column_has_one_meaning(start, is_run_between, tmp_path):
    class Job(Struct, frozen=True):
        id: str
        at: Timestamp
        currency: str = "EUR"
        rate: float | None = 1.5

    import deltalake

    path = str(tmp_path / "orders")
    deltalake.write_deltalake(path, BEFORE)
    pipeline = Pipeline("added").source("o", Job, event_time="at").sink("out")
    job = {"sources": {"o": {"format": "delta", "path": path, "start": start}}}
    harness = PipelineHarness(pipeline, bucket=1, job=job)
    if is_run_between:
        harness.run()
    deltalake.write_deltalake(path, AFTER, mode="append", schema_mode="merge")
    harness.run()
    rows = sorted(harness.sink_table("out").to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["currency"], row["rate"]) for row in rows] == [
        ("a", "EUR", None),
        ("b", "EUR", None),
        ("c", "USD", 2.0),
    ]
    assert harness.table("quarantine").num_rows == 0
