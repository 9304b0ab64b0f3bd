"""Sources read without record objects: the same rows, the same bad rows, and no failure on odd rows."""

from __future__ import annotations

import enum
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import FlooredTimestamp, Struct, Timestamp
from headrace.api.graph import SourceNode
from headrace.records.columns import RecordReader
from headrace.records.foreign_values import raw_row
from headrace.records.keys import stage_key
from headrace.records.order import record_order
from headrace.records.record_columns import from_struct_array
from headrace.records.source_columns import order_column
from headrace.sources.row_check import RowCheck
from headrace.state.codec import encode
from headrace.state.key_columns import key_json_column

FIRST, LAST = -62_135_596_800_000, 253_402_300_799_999


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Flat(Struct, frozen=True):
    n: int
    share: float | None
    text: str
    flag: bool
    data: bytes
    at: Timestamp
    kind: Literal["a", "b"] | None = None
    colour: Colour = Colour.RED
    note: str = "none"


SOURCE = SourceNode("rows", Flat, "at", (), None, timedelta(0))


def broken(*texts):
    """Text that is not UTF-8, as a Parquet file may hold it."""
    return pa.Array.from_buffers(pa.string(), len(texts), pa.array(texts, pa.binary()).buffers())


def lists(values, kind):
    return st.lists(st.none() | values, min_size=3, max_size=3).map(lambda values: pa.array(values, kind))


WORDS = st.sampled_from(["a", "b", "red", "blue", "", "é"])
INTS = lists(st.integers(-(2**63), 2**63 - 1), pa.int64())
COLUMNS = {
    "n": INTS | lists(st.floats(), pa.float64()) | lists(WORDS, pa.string()) | lists(st.integers(0, 5), pa.uint8()),
    "share": lists(st.floats(), pa.float64()) | INTS | lists(st.booleans(), pa.bool_()),
    "text": lists(WORDS, pa.string())
    | lists(WORDS, pa.large_string())
    | lists(WORDS, pa.string()).map(pa.Array.dictionary_encode)
    | st.just(broken(b"a", b"\xff", None)),
    "flag": lists(st.booleans(), pa.bool_()) | lists(st.integers(0, 1), pa.int8()),
    "data": lists(st.binary(), pa.binary()) | lists(WORDS, pa.string()),
    "at": INTS
    | lists(st.integers(-(2**40), 2**40), pa.timestamp("s"))
    | lists(st.integers(-(2**62), 2**62), pa.timestamp("us", "UTC"))
    | lists(st.integers(-(2**62), 2**62), pa.timestamp("ns"))
    | lists(WORDS, pa.string()),
    "kind": lists(WORDS, pa.string()) | st.just(pa.nulls(3)),
    "colour": lists(WORDS, pa.string()),
    "note": lists(WORDS, pa.string_view()),
    "op": lists(st.sampled_from(["+I", "-U", "+U", "-D", "X"]), pa.string()) | lists(st.integers(0, 3), pa.int8()),
}
TABLES = st.fixed_dictionaries(
    {name: COLUMNS[name] for name in ("n", "share", "text", "flag", "data", "at", "op")},
    optional={name: COLUMNS[name] for name in ("kind", "colour", "note")},
).map(pa.table)


@given(table=TABLES)
def test_columns_and_records_read_equally(table):
    reader = RecordReader(Flat, "op")
    records, kinds, bad = reader.read(table)
    array, kind_column, bad_rows = reader.read_columns(table)
    array.validate(full=True)
    assert repr(from_struct_array(array, Flat)) == repr(records)
    assert (kind_column.to_pylist(), bad_rows) == (kinds, bad)
    assert [position for position, record in enumerate(records) if record is None] == [row.position for row in bad]
    for row in range(3):
        msgspec.json.decode(raw_row(table, row))


GOOD = {"n": [1], "share": [0.5], "text": ["x"], "flag": [True], "data": [b""], "at": [5]}


def test_good_rows_are_read_as_columns():
    array, kinds, bad = RecordReader(Flat, None).read_columns(pa.table(GOOD))
    assert from_struct_array(array, Flat) == [Flat(1, 0.5, "x", True, b"", 5)]
    assert (kinds, bad) == (pa.array([0], pa.int32()), [])


def test_checking_records_are_not_read_as_columns():
    class Checked(Struct):
        n: int

        def __post_init__(self):
            pass

    fields = [
        ("n", Annotated[int, msgspec.Meta(ge=0)]),
        ("n", list[int]),
        ("m", dict, msgspec.field(default_factory=dict)),
    ]
    others = [msgspec.defstruct("One", [field]) for field in fields[:2]]
    for record in (Checked, *others):
        assert RecordReader(record, None).read_columns(pa.table({"n": [1]}))[0] is None


def test_default_factory_is_not_read_as_column():
    record = msgspec.defstruct("One", [("n", int), ("m", int, msgspec.field(default_factory=int))])
    reader = RecordReader(record, None)
    assert reader.read_columns(pa.table({"n": [1]}))[0] is None
    assert from_struct_array(reader.read_columns(pa.table({"n": [1], "m": [2]}))[0], record) == [record(1, 2)]


def test_empty_table_is_read_as_columns():
    table = pa.table(GOOD).slice(0, 0)
    assert len(RecordReader(Flat, None).read_columns(table)[0]) == 0


#    bad rows


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        (pa.array([LAST + 1]), f"{LAST + 1} ms since 1970"),
        (pa.array([FIRST - 1]), f"{FIRST - 1} ms since 1970"),
        (pa.array([LAST // 1000 + 1], pa.timestamp("s")), "'253402300800 s'"),
        (pa.array([2**62], pa.timestamp("s", "UTC")), f"'{2**62} s'"),
        (pa.array([-(2**62)], pa.timestamp("us", "UTC")), f"'{-(2**62)} us'"),
        (pa.array([(FIRST - 1) * 1000], pa.timestamp("us")), f"'{(FIRST - 1) * 1000} us'"),
    ],
)
def test_time_out_of_range_is_a_bad_row(values, shown):
    record = msgspec.defstruct("One", [("at", Timestamp)])
    records, _, bad = RecordReader(record, None).read(pa.table({"at": values}))
    assert records == [None]
    assert bad[0].error == f"at is {shown}, which is outside the years 1 to 9999"


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
def test_first_and_last_time_are_read(unit):
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000}[unit]
    numbers = [FIRST // 1_000 * per_second, (LAST + 1) // 1_000 * per_second - 1]
    record = msgspec.defstruct("One", [("at", FlooredTimestamp)])
    records, _, bad = RecordReader(record, None).read(pa.table({"at": pa.array(numbers, pa.timestamp(unit))}))
    assert bad == []
    assert [record.at // 1_000 for record in records] == [FIRST // 1_000, LAST // 1_000]


def test_text_not_in_utf8_is_bad_row():
    record = msgspec.defstruct("One", [("x", str)])
    reader: Any = RecordReader(record, None)
    records, _, bad = reader.read(pa.table({"x": broken(b"a", b"\xffb")}))
    assert [record and record.x for record in records] == ["a", None]
    assert bad[0].error == r"x is '\\xffb', which is not UTF-8"


def test_constraint_error_names_its_field():
    record = msgspec.defstruct("One", [("x", Annotated[str, msgspec.Meta(pattern="^a")])])
    _, _, bad = RecordReader(record, None).read(pa.table({"x": ["b"]}))
    assert bad[0].error == "Expected `str` matching regex '^a' - at `$.x`"


def test_raw_row_holds_any_cell_value():
    late = pa.array([2**62], pa.timestamp("us", "UTC"))
    table = pa.table(
        {
            "late": late,
            "text": broken(b"a\xff"),
            "large": broken(b"\xff").cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string()),
            "list": pa.ListArray.from_arrays([0, 1], late),
            "struct": pa.StructArray.from_arrays([broken(b"\xfe"), late], ["a", "b"]),
            "twice": pa.StructArray.from_arrays([pa.array([1]), late], ["a", "a"]),
            "map": pa.MapArray.from_arrays([0, 1], pa.array(["k"]), late),
            "dictionary": broken(b"\xff").dictionary_encode(),
            "day": pa.array([2**30], pa.date32()),
            "pause": pa.array([2**62], pa.duration("s")),
            "decimal": pa.array([Decimal("1.50")]),
            "nan": pa.array([float("nan")]),
            "bytes": pa.array([b"\xff"]),
            "timestamp": pa.array([datetime(2013, 1, 1, tzinfo=UTC)]),
            "none": pa.nulls(1),
        }
    )
    assert msgspec.json.decode(raw_row(table, 0)) == {
        "late": f"{2**62} us",
        "text": "a\\xff",
        "large": "\\xff",
        "list": [f"{2**62} us"],
        "struct": {"a": "\\xfe", "b": f"{2**62} us"},
        "twice": {"a": f"{2**62} us"},
        "map": [{"key": "k", "value": f"{2**62} us"}],
        "dictionary": "\\xff",
        "day": "1073741824 date32[day]",
        "pause": f"{2**62} s",
        "decimal": "1.50",
        "nan": None,
        "bytes": "/w==",
        "timestamp": "2013-01-01T00:00:00Z",
        "none": None,
    }


#    columns that the engine adds


@given(ordinals=st.lists(st.integers(0, 2**63 - 1)), start=st.integers(0, 3))
def test_order_column_has_record_orders(ordinals, start):
    column = order_column(pa.array(ordinals, pa.int64())[start:])
    column.validate(full=True)
    assert column.to_pylist() == list(map(record_order, ordinals[start:]))


def test_event_times_are_milliseconds_or_null():
    class Timed(Struct, frozen=True):
        at: Timestamp

    def times_of(values):
        return (
            RowCheck(SourceNode("rows", Timed, "at", (), None, timedelta(0)))
            .times_in_order(pa.table({"at": values}))
            .to_pylist()
        )

    assert times_of(pa.array([2_000, None, 2**62], pa.timestamp("us", "UTC"))) == [2, None, None]
    assert times_of(pa.array([2_000, 1_999], pa.timestamp("us", "UTC"))) == [None, None]
    assert times_of(pa.array([1.0, 1.5, float("nan"), 1e30])) == [1, None, None, None]
    assert times_of(pa.array([FIRST, FIRST - 1, LAST, LAST + 1])) == [FIRST, None, LAST, None]
    assert times_of(pa.array([2**63, 7], pa.uint64())) == [None, 7]
    assert times_of(pa.array(["1", "2"])) == [None, None]
    assert times_of(pa.array([1]).dictionary_encode()) == [1]
    assert times_of(pa.nulls(2)) == [None, None]
    assert RowCheck(SOURCE).times_in_order(pa.table({"x": [1]})).to_pylist() == [None]


@given(table=TABLES)
def test_only_good_records_have_event_times(table):
    records: list[Any] = RecordReader(Flat, None).read(table)[0]
    assert RowCheck(SOURCE).times_in_order(table).to_pylist() == [record and record.at for record in records]


KEYS = [
    (int, st.integers(-(2**63), 2**63 - 1), pa.int64()),
    (float, st.floats(allow_nan=False, allow_infinity=False) | st.just(-0.0), pa.float64()),
    (str, st.text() | st.sampled_from(['"', "\\", "\x1f", "\x7f", "", "é"]), pa.string()),
    (bool, st.booleans(), pa.bool_()),
    (bytes, st.binary(), pa.binary()),
]


@given(data=st.data(), kinds=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3), start=st.integers(0, 2))
def test_key_column_has_encoded_stage_keys(data, kinds, start):
    names = tuple(f"k{number}" for number in range(len(kinds)))
    listed = [(name, annotation | None) for name, (annotation, _, _) in zip(names, kinds, strict=True)]
    record = msgspec.defstruct("Keyed", listed)
    rows = data.draw(st.lists(st.tuples(*(st.none() | values for _, values, _ in kinds)), max_size=6))
    keys = [stage_key(record(*row), names) for row in rows]
    columns = [pa.array([row[at] for row in rows], kind)[start:] for at, (_, _, kind) in enumerate(kinds)]
    column = key_json_column(*columns)
    column.validate(full=True)
    assert column.to_pylist() == [None if key is None else encode(key) for key in keys[start:]]
    assert column.type == pa.binary()


def test_nested_values_can_be_keys():
    assert key_json_column(pa.array([[1, 2], None])).to_pylist() == [b"[1,2]", None]
