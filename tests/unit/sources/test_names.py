"""Columns and keys of any name: in the record, in the job's file, and as a path into structs."""

from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from typing import Annotated, Any

import duckdb
import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Digits, Pipeline, Struct, Timestamp, field
from headrace.config import CsvOptions
from headrace.plan.planner import sources_of
from headrace.records.record_columns import from_struct_array
from headrace.sources.folder.format import DamagedFileError, located
from headrace.sources.row_check import RowCheck
from headrace.sources.transformed.rows import input_schema
from tests.unit.sources.source_reading import Outcome, avro_bytes, parquet_bytes, read_bytes, read_messages

NAMES = ["US Gross", "$type", "1", "a.b", "class", "größe", "it's", "`tick`", " edge ", "x" * 300]
KINDS = ["parquet", "delta", "json", "csv", "kafka"]
AVRO_NAMES = ["class", "US_Gross", "_1"]


class Order(Struct, frozen=True):
    """Order whose amount is within structs."""

    at: Timestamp
    amount: Annotated[Decimal, Digits(9, 2)] = field(name="payload.order.amount")
    note: str | None = field(name="payload.note", default="none")


class Price(Struct, rename="camel", frozen=True):
    """Part of a record with other names in files."""

    unit_price: int
    of_currency: str = "EUR"


class Sale(Struct, rename="camel", frozen=True):
    """Record with other names in files."""

    at: Timestamp
    list_price: Price
    all_prices: list[Price] = field(default_factory=list)
    by_shop: dict[str, Price] = field(default_factory=dict)


def written(kind: str, rows: list[dict[str, Any]]) -> bytes:
    """Write rows as a file."""
    if kind in {"parquet", "delta"}:
        return parquet_bytes(pa.Table.from_pylist(rows))
    if kind == "csv":
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue().encode()
    return b"\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows)


def read(kind: str, content: bytes, record: Any, rename: dict[str, str] | None = None) -> Outcome:
    """Read a file, or the messages that it has as lines."""
    if kind == "kafka":
        return read_messages([*content.split(b"\n")], record, rename)
    return read_bytes(kind, content, record, rename=rename)


def independent(kind: str, content: bytes, name: str) -> list[Any]:
    """Return the values of a column as another reader has them."""
    if kind in {"parquet", "delta"}:
        rows = pq.read_table(pa.BufferReader(content))
        assert duckdb.sql(f'SELECT "{name}" FROM rows').fetchall() == [(value,) for value in rows[name].to_pylist()]
        return rows[name].to_pylist()
    if kind == "csv":
        return [int(row[name]) for row in csv.DictReader(io.StringIO(content.decode(), newline=""))]
    return [json.loads(line)[name] for line in content.split(b"\n")]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_any_name_equals_another_reader(kind, name):
    content = written(kind, [{"at": 1, name: 7}, {"at": 2, name: 8}])
    own = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name=name))])
    plain = msgspec.defstruct("Row", [("at", Timestamp), ("value", int)])
    by_record, by_job = read(kind, content, own), read(kind, content, plain, {"value": name})
    assert (by_record.refused, by_record.errors) == (by_job.refused, by_job.errors) == (None, {})
    values = [row.value for row in by_record.records]
    assert values == [row.value for row in by_job.records] == independent(kind, content, name) == [7, 8]


@pytest.mark.parametrize("name", AVRO_NAMES)
def test_avro_name_equals_fastavro(name):
    content = avro_bytes({"at": "long", name: "long"}, [{"at": 1, name: 7}])
    plain = msgspec.defstruct("Row", [("at", Timestamp), ("value", int)])
    (row,) = read_bytes("avro", content, plain, rename={"value": name}).records
    assert row.value == next(iter(fastavro.reader(io.BytesIO(content))))[name] == 7


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "csv", "kafka"])
def test_file_name_wins_over_record(kind):
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name="first"))])
    content = written(kind, [{"at": 1, "first": 1, "second": 2}])
    assert read(kind, content, record, {"value": "second"}).records == [record(at=1, value=2)]


@pytest.mark.parametrize("kind", ["json", "kafka", "parquet", "delta"])
@pytest.mark.parametrize("name", ["", 'he said "x"', "back\\slash", "new\nline"])
def test_names_with_quotes_are_keys(kind, name):
    plain = msgspec.defstruct("Row", [("at", Timestamp), ("value", int)])
    content = written(kind, [{"at": 1, name: 7, "other": [1]}])
    assert read(kind, content, plain, {"value": name}).records == [plain(1, 7)]


def test_empty_name_of_csv_is_its_first_column():
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name=""))])
    assert read_bytes("csv", b",at\n7,1\n", record).records == [record(1, 7)]
    assert read_bytes("csv", b"at,\n1,7\n", record).refused == "no column  (its header has: 'at')"


def test_headerless_csv_takes_fields_in_order():
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name="US Gross"))])
    assert read_bytes("csv", b"1,7\n", record, csv=CsvOptions(header=False)).records == [record(1, 7)]


# ---------------------------------------------------------------------------------------------------------------- paths

NESTED = [
    {"at": 1, "payload": {"order": {"amount": 7}, "note": "a"}},
    {"at": 2, "payload": {"order": {"amount": 8}, "note": None}},
]


def nested(kind: str, rows: list[dict[str, Any]]) -> bytes:
    """Write rows with a payload."""
    if kind != "avro":
        return written(kind, rows)
    order = {"type": "record", "name": "O", "fields": [{"name": "amount", "type": "long"}]}
    parts = [{"name": "order", "type": ["null", order]}, {"name": "note", "type": ["null", "string"]}]
    return avro_bytes({"at": "long", "payload": ["null", {"type": "record", "name": "P", "fields": parts}]}, rows)


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka", "avro"])
def test_path_leads_into_structs(kind):
    outcome = read(kind, nested(kind, NESTED), Order)
    assert outcome.records == [Order(1, Decimal("7.00"), "a"), Order(2, Decimal("8.00"), None)]


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka", "avro"])
def test_path_of_job_file_leads_into_structs(kind):
    plain = msgspec.defstruct("Row", [("at", Timestamp), ("value", int)])
    assert read(kind, nested(kind, NESTED), plain, {"value": "payload.order.amount"}).records == [
        plain(1, 7),
        plain(2, 8),
    ]


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka"])
def test_whole_name_wins_over_path(kind):
    rows = [{**row, "payload.order.amount": 1} for row in NESTED]
    assert [row.amount for row in read(kind, written(kind, rows), Order).records] == [1, 1]


@pytest.mark.parametrize("kind", ["json", "kafka"])
def test_each_object_has_its_own_way(kind):
    rows = [
        NESTED[0],
        {"at": 2, "payload.order.amount": 9, "payload.note": "none", "payload": 5},
        {"at": 3, "payload": {"order": {}}},
        {"at": 4, "payload": None},
    ]
    outcome = read(kind, written(kind, rows), Order)
    assert outcome.records[:2] == [Order(1, Decimal("7.00"), "a"), Order(2, Decimal("9.00"), "none")]
    assert outcome.records[2:] == [None, None]
    assert "payload.order.amount is missing" in outcome.errors[2]
    assert "payload.order.amount is null" in outcome.errors[3]


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka", "avro"])
def test_null_on_the_way_is_null(kind):
    outcome = read(kind, nested(kind, [*NESTED, {"at": 3, "payload": None}]), Order)
    assert outcome.records[2] is None
    assert "payload.order.amount is null" in outcome.errors[2]


@pytest.mark.parametrize("kind", ["json", "kafka", "parquet", "delta"])
@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"order": {"Amount": 7}}, "payload.order.amount is missing, but there is 'Amount'"),
        ({"Order": {"amount": 7}}, "payload.order is missing, but there is 'Order'"),
        ({"order": 5}, "payload.order is"),
    ],
)
def test_path_that_leads_elsewhere_is_refused(kind, payload, error):
    outcome = read(kind, written(kind, [{"at": 1, "payload": payload}]), Order)
    assert error in (outcome.refused or outcome.errors[0])


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_path_that_a_file_lacks_refuses_it(kind):
    outcome = read(kind, written(kind, [{"at": 1, "payload": {"note": "a"}}]), Order)
    assert outcome.refused == "no column payload.order.amount"


def test_path_that_a_table_lacks_is_null():
    rows = [{"at": 1, "payload": {"order": {"amount": 7}}}]
    assert read("delta", written("delta", rows), Order).records[0].note is None
    assert read("parquet", written("parquet", rows), Order).records[0].note == "none"


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka", "avro"])
def test_near_first_name_of_path_is_refused(kind):
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int | None, field(name="payload.x", default=None))])
    rows = [{"at": 1, "Payload": {"x": 1}}]
    part = {"type": "record", "name": "P", "fields": [{"name": "x", "type": "long"}]}
    content = avro_bytes({"at": "long", "Payload": part}, rows) if kind == "avro" else written(kind, rows)
    outcome = read(kind, content, record)
    assert "payload is missing, but there is 'Payload'" in (outcome.refused or outcome.errors[0])


def test_name_that_a_file_has_twice_is_refused():
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int | None, field(name="US Gross", default=None))])
    twice = pa.Table.from_arrays([pa.array([1])] * 3, ["at", "US Gross", "US Gross"])
    assert read_bytes("parquet", parquet_bytes(twice), record).refused == "more than one column US Gross"
    assert "more than one column US Gross" in str(read_bytes("csv", b"at,US Gross,US Gross\n1,2,3\n", record).refused)


def test_path_to_two_fields_is_refused():
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int | None, field(name="a.b", default=None))])
    node = Pipeline("rows").source("rows", record, event_time="at").sink("taken").operators[0]
    parts = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["b", "b"])
    with pytest.raises(DamagedFileError, match="more than one field a.b"):
        located(pa.table({"at": [1], "a": parts}), node)


def test_transforms_of_spark_name_fields():
    rows = Pipeline("rows").source("rows", Sale, event_time="at").sql("SELECT * FROM rows", record=Sale)
    (node,) = sources_of(rows.sink("taken"))
    assert input_schema(node.stored).names == ["at", "list_price", "all_prices", "by_shop"]
    price = pa.array([{"unitPrice": 3, "ofCurrency": "CHF"}])
    checked = RowCheck(node).check(pa.table({"at": [1], "list_price": price}))
    assert from_struct_array(checked.columns, Sale) == [Sale(1, Price(3, "CHF"))]


# ---------------------------------------------------------------------------------------------------- structs and errors


@pytest.mark.parametrize("kind", ["parquet", "delta", "json", "kafka"])
def test_parts_of_structs_are_renamed(kind):
    price = {"unitPrice": 3, "ofCurrency": "CHF"}
    rows = [{"at": 1, "listPrice": price, "allPrices": [price]}]
    (sale,) = read(kind, written(kind, rows), Sale).records
    assert sale == Sale(1, Price(3, "CHF"), [Price(3, "CHF")])


def test_parts_of_structs_of_csv_are_renamed():
    content = written(
        "csv", [{"at": 1, "listPrice": json.dumps({"unitPrice": 3}), "byShop": '{"a": {"unitPrice": 4}}'}]
    )
    assert read("csv", content, Sale).records == [Sale(1, Price(3), [], {"a": Price(4)})]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stored", ["us gross", "US_Gross", "USGross"])
def test_near_name_is_refused_with_stored_name(kind, stored):
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int | None, field(name="US Gross", default=None))])
    outcome = read(kind, written(kind, [{"at": 1, stored: 7}]), record)
    assert f"US Gross is missing, but there is {stored!r}" in (outcome.refused or outcome.errors[0])


@pytest.mark.parametrize("kind", KINDS)
def test_error_of_value_has_stored_name(kind):
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name="US Gross"))])
    outcome = read(kind, written(kind, [{"at": 1, "US Gross": 1}, {"at": 1, "US Gross": None}]), record)
    assert outcome.records[0] == record(1, 1)
    assert "US Gross is null" in outcome.errors[1]


def test_error_within_struct_has_stored_name():
    outcome = read("json", b'{"at": 1, "listPrice": {"unitPrice": "x"}}', Sale)
    assert "listPrice.unitPrice is 'x'" in outcome.errors[0]
    assert "listPrice.unitPrice is missing" in read("json", b'{"at": 1, "listPrice": {}}', Sale).errors[0]


def test_own_name_of_renamed_field_is_no_column():
    record = msgspec.defstruct("Row", [("at", Timestamp), ("value", int, field(name="US Gross"))])
    assert read("parquet", written("parquet", [{"at": 1, "value": 7}]), record).refused == "no column US Gross"
