"""Conversion between Arrow columns and records."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import FlooredTimestamp, Json, Struct, Timestamp
from headrace.errors import ConfigError
from headrace.records.column_types import columns_of
from headrace.records.columns import BadRow, RecordReader, sink_schema, to_columns


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Everything(Struct, frozen=True):
    number: int
    share: float
    text: str
    flag: bool
    data: bytes
    at: Timestamp
    kind: Literal["a", "b"]
    colour: Colour
    maybe: int | None = None
    maybe_at: Timestamp | None = None
    maybe_colour: Colour | None = None


FULL = Everything(1, 0.5, "x", True, b"\x00\xff", 1_357_034_400_000, "a", Colour.RED, 2, 3, Colour.BLUE)


def read(record, row_kind=None, **columns):
    """Return records, row kinds, and errors by position."""
    records, kinds, bad = RecordReader(record, row_kind).read(pa.table(columns))
    return records, kinds, {row.position: row.error for row in bad}


def one(kind, values, default=None):
    """Read a table with a single column `x` of a record with that field."""
    record = msgspec.defstruct("One", [("x", kind)])
    records, _, errors = read(record, x=values)
    return [record.x if record is not None else default for record in records], errors


def test_each_type_has_its_column():
    result = {column.name: (str(column.type), column.nullable, column.required) for column in columns_of(Everything)}
    assert result == {
        "number": ("int64", False, True),
        "share": ("double", False, True),
        "text": ("string", False, True),
        "flag": ("bool", False, True),
        "data": ("binary", False, True),
        "at": ("int64", False, True),
        "kind": ("string", False, True),
        "colour": ("string", False, True),
        "maybe": ("int64", True, False),
        "maybe_at": ("int64", True, False),
        "maybe_colour": ("string", True, False),
    }


def test_sink_has_microsecond_times_and_non_null_keys():
    schema = sink_schema(Everything, ("maybe",))
    assert schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert schema.field("maybe_at").nullable
    assert not schema.field("maybe").nullable
    assert schema.names == list(Everything.__struct_fields__)


class Leaf(Struct, tag=True):
    x: int


class Twig(Struct, tag=True):
    x: int


class Pair(Struct, array_like=True):
    x: int


@pytest.mark.parametrize(
    "kind",
    [
        set[int],
        frozenset[str],
        tuple[int, str],
        list,
        dict,
        dict[bool, str],
        dict[float, str],
        dict[Json, str],
        dict[str | None, int],
        int | str,
        list[int | str],
        Leaf | Twig,
        Any,
        list[Any],
        Pair,
        Annotated[time, msgspec.Meta(tz=True)],
        Literal["a", 1],
        enum.Enum("N", {"ONE": 1, "TWO": "two"}),
        enum.Enum("N", {"ONE": 1.5}),
        Struct,
    ],
)
def test_type_without_column_is_refused_by_name(kind):
    record = msgspec.defstruct("Odd", [("x", kind)])
    with pytest.raises(ConfigError, match=r"field 'x' of Odd is .*, which has no column: use int"):
        columns_of(record)


class Camel(Struct, rename="camel"):
    some_name: int
    other_name: int = 0


def test_renamed_field_has_both_names():
    assert [(column.name, column.stored) for column in columns_of(Camel)] == [
        ("some_name", "someName"),
        ("other_name", "otherName"),
    ]
    (first, _) = columns_of(Camel, (("some_name", "a.b"),))
    assert (first.stored, first.path) == ("a.b", ("a", "b"))


@pytest.mark.parametrize(
    ("names", "error"),
    [((("none", "x"),), "Camel has no field none"), ((("some_name", "otherName"),), "have the name 'otherName'")],
)
def test_wrong_names_are_refused(names, error):
    with pytest.raises(ConfigError, match=error):
        columns_of(Camel, names)


floats = st.floats(allow_nan=False, allow_infinity=False)
timestamps = st.integers(-62_135_596_800_000, 253_402_300_799_999)
everything = st.builds(
    Everything,
    number=st.integers(-(2**63), 2**63 - 1),
    share=floats,
    text=st.text(),
    flag=st.booleans(),
    data=st.binary(),
    at=timestamps,
    kind=st.sampled_from(["a", "b"]),
    colour=st.sampled_from(Colour),
    maybe=st.none() | st.integers(-5, 5),
    maybe_at=st.none() | timestamps,
    maybe_colour=st.none() | st.sampled_from(Colour),
)


@given(records=st.lists(everything, max_size=5))
def test_records_survive_a_sink_and_a_source(records):
    table = to_columns(records, sink_schema(Everything))
    table.validate(full=True)
    result, kinds, bad = RecordReader(Everything, None).read(table)
    assert (result, kinds, bad) == (records, [0] * len(records), [])


def test_missing_column_is_reported_unless_it_defaults():
    reader = RecordReader(Everything, "op")
    assert reader.missing(["number", "share", "text", "flag", "data", "at", "kind"]) == ["colour", "op"]
    required = to_columns([FULL], sink_schema(Everything)).drop_columns(["maybe", "maybe_at", "maybe_colour"])
    (record,), _, bad = RecordReader(Everything, None).read(required)
    assert (record.maybe, record.maybe_at, record.maybe_colour, bad) == (None, None, None, [])


def test_table_without_wanted_columns_gives_defaults():
    record = msgspec.defstruct("Free", [("x", int, 7)])
    records, _, errors = read(record, other=[1, 2])
    assert ([record.x for record in records], errors) == ([7, 7], {})


def test_misfit_rows_are_named_and_others_read():
    records, _, errors = read(
        msgspec.defstruct("Two", [("x", int), ("kind", Literal["a", "b"])]),
        x=pa.array([1, None, 3, 4], pa.int64()),
        kind=["a", "b", "c", None],
    )
    assert [record is not None for record in records] == [True, False, False, False]
    assert errors == {1: "x is null", 2: "kind is 'c', not one of a, b", 3: "kind is null"}


def test_only_first_error_of_row_is_reported():
    record = msgspec.defstruct("Two", [("x", int), ("y", int)])
    assert read(record, x=pa.nulls(1), y=["text"])[2] == {0: "x is null"}


#    read as they are, or with their meaning kept


@pytest.mark.parametrize(
    ("kind", "values", "expected"),
    [
        (int, pa.array([1, 2], pa.int8()), [1, 2]),
        (int, pa.array([1.0, -2.0]), [1, -2]),
        (int, pa.array([Decimal("3.00")], pa.decimal128(5, 2)), [3]),
        (float, pa.array([1, 2]), [1.0, 2.0]),
        (str, pa.array(["a"], pa.large_string()), ["a"]),
        (str, pa.array(["a"], pa.string_view()), ["a"]),
        (str, pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (bytes, pa.array([b"a"], pa.large_binary()), [b"a"]),
        (bytes, pa.array([b"ab"], pa.binary(2)), [b"ab"]),
        (int | None, pa.nulls(2), [None, None]),
        (Timestamp, pa.array([5, -5]), [5, -5]),
        (FlooredTimestamp, pa.array([1_999, -1], pa.timestamp("us")), [1, -1]),
        (Timestamp, pa.array([2_000], pa.timestamp("us")), [2]),
        (float, pa.array([Decimal("0.35")], pa.decimal128(20, 2)), [0.35]),
        (float, pa.array([2**60]), [2.0**60]),
        (Timestamp, pa.array([1], pa.timestamp("s", tz="Europe/Berlin")), [1_000]),
        (Timestamp, pa.array([datetime(2013, 1, 1, 10, tzinfo=UTC)]), [1_357_034_400_000]),
        (Literal["a", None], pa.array(["a", None]), ["a", None]),  # noqa: PYI061 - the other spelling is the usual one
        (float | None, pa.array([float("nan"), 1.0]), [None, 1.0]),
    ],
)
def test_columns_of_kindred_types_are_read(kind, values, expected):
    result, errors = one(kind, values)
    assert errors == {}
    assert result == expected
    assert [type(value) for value in result] == [type(value) for value in expected]


#    never guessed


@pytest.mark.parametrize("text", [pa.string(), pa.large_string(), pa.string_view()])
@pytest.mark.parametrize("kind", [int, float, bool, bytes, Timestamp])
def test_text_is_never_converted_to_other_types(text, kind):
    result, errors = one(kind, pa.array(["1", "2"], text))
    assert result == [None, None]
    assert "x is '1', which is not" in errors[0]
    assert one(kind, pa.array(["1"]).dictionary_encode())[1].keys() == {0}


@pytest.mark.parametrize(
    ("kind", "values", "error"),
    [
        (str, pa.array([1]), "x is 1, which is not string"),
        (str, pa.array([12]).dictionary_encode(), "x is 12, which is not string"),
        (str, pa.array([b"a"]), "x is b'a', which is not string"),
        (int, pa.array([1.5]), "x is 1.5, which is not int64"),
        (int, pa.array([2**63], pa.uint64()), "x is 9223372036854775808, which is not int64"),
        (int, pa.array([True]), "x is True, which is not int64"),
        (int, pa.array([1], pa.timestamp("ms")), "which is not int64"),
        (float, pa.array([2**53 + 1]), "x is 9007199254740993, of which a float loses digits"),
        (float, pa.array([float("nan")]), "x is null"),
        (float, pa.array([float("-inf")]), "x is -inf, which JSON cannot hold"),
        (float | None, pa.array([float("inf")]), "x is inf, which JSON cannot hold"),
        (bool, pa.array([1]), "x is 1, which is not bool"),
        (Timestamp, pa.array(["2013-1-1"]), "x is '2013-1-1', which is not a timestamp"),
        (Timestamp, pa.array([time(1)]), "which is not a timestamp"),
        (str, pa.array([date(2013, 1, 1)]), "which is not string"),
        (Colour, pa.array(["green"]), "x is 'green', not one of red, blue"),
        (Colour, pa.array([1]), "x is 1, which is not string"),
    ],
)
def test_value_of_other_type_fails_only_its_row(kind, values, error):
    result, errors = one(kind, pa.chunked_array([values, pa.nulls(1, values.type)]), default="bad")
    assert result[0] == "bad"
    assert error in errors[0]
    assert errors.keys() <= {0, 1}


def test_right_values_among_wrong_ones_are_read():
    result, errors = one(int, pa.chunked_array([pa.array([1.0, 1.5]), pa.array([None, 4.0])]))
    assert (result, errors) == ([1, None, None, 4], {1: "x is 1.5, which is not int64", 2: "x is null"})


def test_enums_are_members_in_records_texts_in_columns():
    assert one(Colour, ["red", "blue"])[0] == [Colour.RED, Colour.BLUE]
    table = to_columns([FULL], sink_schema(Everything))
    assert table["colour"].to_pylist() == ["red"]


def test_annotation_constraints_apply_to_sources():
    # Later stages decode records, and decoding checks them: there it would fail the run.
    kind = Annotated[int, msgspec.Meta(ge=0, lt=10)]
    result, errors = one(kind, [3, -1, 10], default="bad")
    assert result == [3, "bad", "bad"]
    assert errors == {1: "Expected `int` >= 0 - at `$.x`", 2: "Expected `int` <= 9 - at `$.x`"}


def test_record_that_refuses_values_is_bad_row():
    class Even(Struct):
        x: int

        def __post_init__(self):
            if self.x % 2:
                raise ValueError(f"{self.x} is odd")

    records, _, errors = read(Even, x=[2, 3, 4])
    assert ([record and record.x for record in records], errors) == ([2, None, 4], {1: "3 is odd"})


def test_keyword_only_records_are_read():
    class Keywords(Struct, kw_only=True):
        b: int
        a: str = "x"

    records, _, errors = read(Keywords, a=["y"], b=[1])
    assert (records, errors) == ([Keywords(b=1, a="y")], {})


def test_row_kinds_are_read_from_their_column():
    record = msgspec.defstruct("One", [("x", int)])
    _, kinds, errors = read(record, "op", x=[1] * 6, op=["+I", "-U", "+U", "-D", "I", None])
    assert kinds[:4] == [0, 1, 2, 3]
    assert errors == {4: "op is 'I', not one of +I, -U, +U, -D", 5: "op is None, not one of +I, -U, +U, -D"}


def test_empty_table_has_no_records_or_errors():
    table = sink_schema(Everything).empty_table()
    assert RecordReader(Everything, None).read(table) == ([], [], [])
    assert to_columns([], sink_schema(Everything)).num_rows == 0
    assert BadRow(0, "x") == BadRow(0, "x")
