"""Lists, maps and structs as columns of sources and sinks."""

from __future__ import annotations

import enum
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.errors import ConfigError
from headrace.log.declared import to_schemas, to_stored
from headrace.records.column_types import columns_of
from headrace.records.columns import RecordReader, sink_schema, to_columns
from headrace.records.value_arrays import UnfitRecord
from headrace.storage.storage import Storage


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Line(Struct, frozen=True):
    price: float
    at: Timestamp
    tags: tuple[Literal["a", "b"], ...] = ()
    colour: Colour | None = None


class Order(Struct, frozen=True):
    lines: list[Line]
    stock: dict[str, int | None]
    first: Line | None = None
    by_day: dict[str, list[Timestamp]] | None = None
    matrix: tuple[tuple[float, ...], ...] = ()


class Plain(Struct, frozen=True):
    xs: list[int]


NOON = 1_357_034_400_000
FULL = Order(
    [Line(1.5, NOON, ("a",), Colour.RED), Line(2.0, NOON + 1)],
    {"x": 1, "y": None},
    Line(3.0, NOON),
    {"d": [NOON]},
    ((1.0,), (), (2.0, 3.0)),
)


def read(record, **columns):
    records, _, bad = RecordReader(record, None).read(pa.table(columns))
    return records, {row.position: row.error for row in bad}


def errors_of(annotation, values, kind=None):
    """Errors by position for a table with one column `x`."""
    record = msgspec.defstruct("One", [("x", annotation)])
    return read(record, x=pa.array(values, kind) if kind else values)[1]


def test_nested_fields_have_nested_columns():
    types = {column.name: str(column.type) for column in columns_of(Order)}
    line = "struct<price: double, at: int64, tags: list<element: string>, colour: string>"
    assert types == {
        "lines": f"list<element: {line}>",
        "stock": "map<string, int64>",
        "first": line,
        "by_day": "map<string, list<element: int64>>",
        "matrix": "list<element: list<element: double>>",
    }


def test_nested_times_of_a_sink_are_timestamps():
    schema = sink_schema(Order)
    assert schema.field("first").type.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("by_day").type.item_type.value_type == pa.timestamp("us", tz="UTC")
    table = to_columns([FULL], schema)
    table.validate(full=True)
    assert table["first"].to_pylist()[0]["at"] == datetime.fromtimestamp(NOON / 1000, UTC)


def test_delta_keeps_nested_sink_schemas():
    schemas = {"orders": (sink_schema(Order), ())}
    assert to_schemas(to_stored(schemas)) == schemas


timestamps = st.integers(-62_135_596_800_000, 253_402_300_799_999)
floats = st.floats(allow_nan=False, allow_infinity=False)
lines = st.builds(
    Line,
    price=floats,
    at=timestamps,
    tags=st.lists(st.sampled_from("ab"), max_size=3).map(tuple),
    colour=st.none() | st.sampled_from(Colour),
)
orders = st.builds(
    Order,
    lines=st.lists(lines, max_size=3),
    stock=st.dictionaries(st.text(), st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
    first=st.none() | lines,
    by_day=st.none() | st.dictionaries(st.text(), st.lists(timestamps, max_size=2), max_size=2),
    matrix=st.lists(st.lists(floats, max_size=2).map(tuple), max_size=2).map(tuple),
)


@given(records=st.lists(orders, max_size=4))
def test_nested_records_survive_sink_and_source(records):
    table = to_columns(records, sink_schema(Order))
    table.validate(full=True)
    assert RecordReader(Order, None).read(table)[0::2] == (records, [])


@given(records=st.lists(orders, min_size=2, max_size=4))
def test_slices_and_chunks_read_equally(records):
    table = to_columns(records, sink_schema(Order))
    parts = pa.concat_tables([table.slice(1), table.slice(0, 1)])
    assert RecordReader(Order, None).read(parts)[0] == [*records[1:], records[0]]


def test_large_and_fixed_lists_are_read():
    kinds = pa.large_list(pa.int32()), pa.list_(pa.int64(), 2)
    assert [read(Plain, xs=pa.array([[1, 2]], kind))[0] for kind in kinds] == [[Plain([1, 2])]] * 2


#    bad rows name the path


LINE = {"price": 1.0, "at": NOON, "tags": [], "colour": None}


NULLS = pa.field("element", pa.null())


@pytest.mark.parametrize("kind", [pa.list_(NULLS), pa.large_list(NULLS)])
def test_lists_of_nulls_lose_no_row(kind):
    values = [[None] * 5, [], None, [None]]
    assert errors_of(list[int] | None, values, kind) == {0: "x[0] is null", 3: "x[0] is null"}
    assert errors_of(list[int | None] | None, values, kind) == {}
    records, _ = read(msgspec.defstruct("One", [("x", list[int | None] | None)]), x=pa.array(values, kind))
    assert [record.x for record in records] == values
    assert errors_of(list[list[int]] | None, [[[None] * 3, []], [], [[None]]], pa.list_(pa.list_(NULLS))) == {
        0: "x[0][0] is null",
        2: "x[0][0] is null",
    }


def test_fixed_lists_of_nulls_lose_no_row():
    values = pa.array([[None, None], None, [None, None], [None, None]], pa.list_(pa.null(), 2))
    assert errors_of(list[int] | None, values.slice(1)) == {1: "x[0] is null", 2: "x[0] is null"}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"price": None}, "x[1].price is null"),
        ({"price": float("nan")}, "x[1].price is null"),
        ({"price": float("inf")}, "x[1].price is inf, which JSON cannot hold"),
        ({"tags": ["a", "c"]}, "x[1].tags[1] is 'c', not one of a, b"),
        ({"colour": "green"}, "x[1].colour is 'green', not one of red, blue"),
        ({"at": 2**60}, f"x[1].at is {2**60} ms since 1970, which is outside the years 1 to 9999"),
    ],
)
def test_bad_nested_value_names_its_path(changes, error):
    rows = [[LINE, LINE | changes], [LINE], []]
    assert errors_of(list[Line], rows) == {0: error}


@pytest.mark.parametrize(
    ("annotation", "values", "error"),
    [
        (list[int], pa.array([[1, None]]), "x[1] is null"),
        (list[int], pa.array([["a"]]), "x[0] is 'a', which is not int64"),
        (list[int], pa.array([1]), "x is 1, which is not list<element: int64>"),
        (list[int], pa.array(["[1]"]), "x is '[1]', which is not list<element: int64>"),
        (list[int], pa.array([[1.0, 1.5]]), "x[1] is 1.5, which is not int64"),
        (list[list[int]], pa.array([[[1], [2, None]]]), "x[1][1] is null"),
        (Line, pa.array([[1]]), "x is [1], which is not struct<"),
        (Line, pa.array([{"price": 1.0}]), "x.at is missing"),
        (dict[str, int], pa.array([{"a": 1}]), "x is {'a': 1}, which is not map<string, int64>"),
        (dict[str, int], pa.array([{"a": None}], pa.map_(pa.string(), pa.int64())), "x['a'] is null"),
        (dict[str, int], pa.array([[("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())), "x has a key twice"),
        (dict[str, int], pa.array([[(1, 1)]], pa.map_(pa.int64(), pa.int64())), "x[1] is 1, which is not string"),
        (
            list[Annotated[int, msgspec.Meta(ge=0)]],
            pa.array([[1, -1]]),
            "Expected `int` >= 0 - at `$.x[1]`",
        ),
        (
            Annotated[list[int], msgspec.Meta(min_length=1)],
            pa.array([[]], pa.list_(pa.int64())),
            "Expected `array` of length >= 1 - at `$.x`",
        ),
    ],
)
def test_wrong_shape_is_a_bad_row(annotation, values, error):
    errors = errors_of(annotation, pa.concat_arrays([values, pa.nulls(1, values.type)]))
    assert errors[0].startswith(error)
    assert errors[1] == "x is null"


def test_values_below_a_null_are_no_fault():
    child = pa.array([None, 2], pa.int64())
    struct = pa.StructArray.from_arrays([child], ["x"], mask=pa.array([True, False]))
    inner = msgspec.defstruct("Inner", [("x", int)])
    record = msgspec.defstruct("Outer", [("inner", inner | None)])
    records, errors = read(record, inner=struct)
    assert ([record.inner for record in records], errors) == ([None, inner(2)], {})


def test_missing_nested_field_takes_its_default():
    (record,), errors = read(msgspec.defstruct("One", [("x", Line)]), x=[{"price": 1.0, "at": NOON, "more": 5}])
    assert (record.x, errors) == (Line(1.0, NOON), {})


def test_struct_without_wanted_fields_takes_defaults():
    inner = msgspec.defstruct("Inner", [("y", int, 7)])
    records, errors = read(msgspec.defstruct("One", [("x", inner)]), x=pa.array([{"z": 1}, None]))
    assert (records[0].x.y, errors) == (7, {1: "x is null"})


def test_refusing_nested_struct_is_a_bad_row():
    class Even(Struct):
        n: int

        def __post_init__(self):
            if self.n % 2:
                raise ValueError(f"{self.n} is odd")

    assert errors_of(list[Even], [[{"n": 2}, {"n": 3}], [{"n": 4}]]) == {0: "3 is odd - at `$.x[1]`"}


#    refused types


class Node(Struct):
    children: list[Node]


def test_struct_that_contains_itself_is_refused():
    with pytest.raises(ConfigError, match=r"Node contains itself \(Node > Node\)"):
        columns_of(Node)


def test_nested_field_without_column_is_named():
    inner = msgspec.defstruct("Inner", [("bad", Any)])
    with pytest.raises(ConfigError, match="field 'bad' of Inner is typing.Any, which has no column"):
        columns_of(msgspec.defstruct("Outer", [("inner", list[inner])]))


def test_nested_primary_key_is_refused():
    with pytest.raises(ConfigError, match="the primary key of Order has lines, which is a list, map, struct or Json"):
        sink_schema(Order, ("lines",))


def test_sink_refuses_value_of_wrong_type():
    with pytest.raises(UnfitRecord, match=r"record 1: xs\[0\] is 'a', which is not int") as caught:
        to_columns([Plain([1]), Plain(["a"])], sink_schema(Plain))
    assert (caught.value.index, caught.value.field) == (1, "xs[0]")


def test_delta_merges_nested_columns(tmp_path):
    keyed = msgspec.defstruct("Keyed", [("id", int), ("order", Order)])
    schema = sink_schema(keyed, ("id",))
    uri = str(tmp_path / "orders")
    Storage(uri).table().create(schema)
    other = Order([], {"z": 3})
    for records in ([keyed(1, FULL), keyed(2, FULL)], [keyed(2, other), keyed(3, other)]):
        merge = DeltaTable(uri).merge(
            to_columns(records, schema),
            predicate="target.id = source.id",
            source_alias="source",
            target_alias="target",
            streamed_exec=False,
        )
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
    rows = pa.RecordBatchReader.from_stream(DeltaTable(uri).scan()).read_all()
    merged, _, bad = RecordReader(keyed, None).read(rows)
    assert sorted(merged, key=lambda row: row.id) == [keyed(1, FULL), keyed(2, other), keyed(3, other)]
    assert bad == []
