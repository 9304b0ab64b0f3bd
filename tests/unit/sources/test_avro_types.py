"""Types of Avro that other formats lack: recursive ones, unions of several types, and named types."""

from __future__ import annotations

import datetime as dt
import io
from typing import Any

import fastavro
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import NaiveDatetime, Struct, Timestamp, TimestampMicros
from tests.unit.sources.drawn_tables import read_avro
from tests.unit.sources.source_reading import avro_bytes, read_bytes
from tests.unit.support.fuzzing import examples


class Leaf(Struct, frozen=True):
    n: int


class Branch(Struct, frozen=True):
    n: int
    next: Leaf | None = None


class Row(Struct, frozen=True):
    id: str
    at: Timestamp


class WithLeaf(Row, frozen=True):
    tree: Leaf | None = None


class WithBranch(Row, frozen=True):
    tree: Branch | None = None


class WithLeaves(Row, frozen=True):
    tree: list[Branch] | None = None


class Inner(Struct, frozen=True):
    n: Leaf | None


class Outer(Struct, frozen=True):
    n: int
    next: Inner | None


class WithOuter(Row, frozen=True):
    tree: Outer | None


TREE = {
    "type": "record",
    "name": "Tree",
    "namespace": "org.trees",
    "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", "Tree"]}],
}
VALUE = {"n": 1, "next": {"n": 2, "next": {"n": 3, "next": None}}}


def tree_file(kind: Any, value: Any) -> bytes:
    return avro_bytes({"id": "string", "at": "long", "tree": kind}, [{"id": "a", "at": 1, "tree": value}])


@pytest.mark.parametrize(
    ("kind", "logical"),
    [
        (TimestampMicros, "timestamp-millis"),
        (dt.datetime, "timestamp-millis"),
        (NaiveDatetime, "local-timestamp-millis"),
        (Timestamp, "timestamp-millis"),
    ],
)
def test_times_beyond_all_years_are_bad_rows(kind, logical):
    record = msgspec.defstruct("Far", [("at", Timestamp), ("far", kind)], bases=(Struct,), frozen=True)
    types = {"at": "long", "far": {"type": "long", "logicalType": logical}}
    content = avro_bytes(types, [{"at": 5, "far": far} for far in (2**63 - 1, 1, -(2**63))])
    outcome = read_bytes("avro", content, record)
    assert [row.at for row in outcome.records if row is not None] == [5]
    why = "which is outside the years 1 to 9999"
    assert [why in error for error in outcome.errors.values()] == [True, True]


def test_recursive_types_are_refused_by_name():
    for record, kind, value, path in (
        (WithBranch, ["null", TREE], VALUE, "tree.next"),
        (WithLeaves, {"type": "array", "items": TREE}, [VALUE], "tree[].next"),
    ):
        refused = read_bytes("avro", tree_file(kind, value), record).refused or ""
        assert refused.startswith(f"{path} is of the type org.trees.Tree, which contains itself")


def test_columns_beside_recursive_types_are_read():
    content = tree_file(["null", TREE], VALUE)
    assert read_bytes("avro", content, Row).records == [Row("a", 1)]
    assert read_bytes("avro", content, WithLeaf).records == [WithLeaf("a", 1, Leaf(1))]


def nested_file(kind: Any, written: bytes) -> bytes:
    """Return a file with one record, whose field `tree` is written by these bytes."""
    head = avro_bytes({"id": "string", "at": "long", "tree": kind}, [])
    content = b"\2a\2" + written
    return head + b"\2" + zigzag(len(content)) + content + head[-16:]


def zigzag(number: int) -> bytes:
    number, written = 2 * number, b""
    while number > 0x7F:
        written, number = written + bytes([number & 0x7F | 0x80]), number >> 7
    return written + bytes([number])


CHAIN = {"type": "record", "name": "Chain", "fields": [{"name": "below", "type": ["null", "Chain"]}]}
ENDLESS = {"type": "record", "name": "Endless", "fields": [{"name": "in", "type": "Endless"}]}
LOOP = {
    "type": "record",
    "name": "Loop",
    "fields": [{"name": "x", "type": {"type": "record", "name": "Via", "fields": [{"name": "y", "type": "Loop"}]}}],
}


@pytest.mark.parametrize(
    ("kind", "written"),
    [
        (["null", CHAIN], b"\2" * 10_000 + b"\0"),
        (["null", CHAIN], b"\2" * 1_000_000 + b"\0"),
        (["null", ENDLESS], b"\2"),
        (["null", LOOP], b"\2"),
    ],
)
def test_deep_files_end_no_process(kind, written):
    assert read_bytes("avro", nested_file(kind, written), Row).refused == "its records are nested too deep"


@pytest.mark.parametrize("depth", [100, 480])
def test_nested_rows_are_shown_in_the_quarantine(depth):
    content = nested_file(["null", CHAIN], b"\2" * depth + b"\0")
    assert read_bytes("avro", content, Row).records == [Row("a", 1)]


def test_types_within_each_other_are_refused():
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "n", "type": ["null", "Outer"]}]}
    outer = {
        "type": "record",
        "name": "Outer",
        "fields": [{"name": "n", "type": "int"}, {"name": "next", "type": ["null", inner]}],
    }
    content = tree_file(["null", outer], {"n": 1, "next": {"n": None}})

    assert (read_bytes("avro", content, WithOuter).refused or "").startswith("tree.next.n is of the type Outer, which")


def test_recursive_files_are_read():
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [
            {"name": "id", "type": "string"}, {"name": "at", "type": "long"}, {"name": "tree", "type": ["null", "Root"]},
        ],
    }  # fmt: skip
    file = io.BytesIO()
    fastavro.writer(file, schema, [{"id": "a", "at": 1, "tree": {"id": "b", "at": 2, "tree": None}}])
    assert read_bytes("avro", file.getvalue(), Row).records == [Row("a", 1)]

    class Nested(Row, frozen=True):
        tree: Row | None = None

    assert "tree is of the type Root, which contains itself" in (
        read_bytes("avro", file.getvalue(), Nested).refused or ""
    )


def test_types_used_twice_are_not_recursive():
    leaf = {"type": "record", "name": "Leaf", "fields": [{"name": "n", "type": "int"}]}

    class Twice(Row, frozen=True):
        one: Leaf
        two: list[Leaf]
        three: dict[str, Leaf]

    types = {
        "one": leaf,
        "two": {"type": "array", "items": "Leaf"},
        "three": {"type": "map", "values": ["null", "Leaf"]},
    }
    row = {"id": "a", "at": 1, "one": {"n": 1}, "two": [{"n": 2}], "three": {"x": {"n": 3}}}
    content = avro_bytes({"id": "string", "at": "long", **types}, [row])
    assert read_bytes("avro", content, Twice).records == [Twice("a", 1, Leaf(1), [Leaf(2)], {"x": Leaf(3)})]


BRANCHES: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "null": ("null", st.none()),
    "boolean": ("boolean", st.booleans()),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "double": ("double", st.floats(allow_nan=False, allow_infinity=False)),
    "string": ("string", st.text(max_size=4)),
    "bytes": ("bytes", st.binary(max_size=4)),
    "array": ({"type": "array", "items": "long"}, st.lists(st.integers(0, 9), max_size=2)),
    "org.x.Color": (
        {"type": "enum", "name": "Color", "namespace": "org.x", "symbols": ["red", "blue"]},
        st.sampled_from(["red", "blue"]),
    ),
    "Leaf": ({"type": "record", "name": "Leaf", "fields": [{"name": "n", "type": "int"}]}, st.fixed_dictionaries({"n": st.integers(0, 9)})),
}  # fmt: skip
TAKES: dict[Any, Any] = {
    str: {str},
    int: {int, float},
    float: {int, float},
    bool: {bool},
    bytes: {bytes},
    list[int]: {list},
    Leaf: {dict},
}


@examples(60)
@given(
    data=st.data(),
    names=st.lists(st.sampled_from([*BRANCHES]), min_size=1, max_size=6, unique=True),
    kind=st.sampled_from([*TAKES]),
)
def test_unions_equal_fastavro(data, names, kind):
    record_type = msgspec.defstruct("Union", [("value", kind | None)], bases=(Row,), frozen=True)
    rows: list[dict[str, Any]] = []
    names = [
        name for name in names if kind is not bytes or name not in {"string", "org.x.Color"}
    ]  # a text may be base64
    for number in range(3 if names else 0):
        name = data.draw(st.sampled_from(names))
        rows.append({"id": "a", "at": number, "value": (name, data.draw(BRANCHES[name][1]))})
    content = avro_bytes({"id": "string", "at": "long", "value": [BRANCHES[name][0] for name in names]}, rows)
    outcome = read_bytes("avro", content, record_type)
    for number, row in enumerate(read_avro(content)):
        value, record = row["value"], outcome.records[number]
        if value is not None and type(value) not in TAKES[kind]:
            assert record is None
            assert outcome.errors[number].startswith("value is ")
        elif record is not None:
            plain = {"n": record.value.n} if isinstance(record.value, Leaf) else record.value
            assert plain == value
        else:
            assert isinstance(value, int | float)  # a number that the field cannot hold without loss


@pytest.mark.parametrize(
    "schema", [b'"long"', b'["null"]', b'{"type":"record","name":"R","fields":[{"name":"id","type":"Unknown"}]}']
)
def test_files_without_a_readable_schema_are_refused(schema):
    content = avro_bytes({"id": "string", "at": "long"}, [{"id": "a", "at": 1}])
    header = fastavro.reader(io.BytesIO(content)).metadata["avro.schema"].encode()
    outcome = read_bytes("avro", content.replace(header, schema.ljust(len(header))), Row)
    assert outcome.refused is not None
