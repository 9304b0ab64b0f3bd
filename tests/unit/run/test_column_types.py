"""Every type of a field on its whole way: files, keys, state, windows, joins, rankings, sinks. Compared with a plain loop."""

from __future__ import annotations

import csv
import enum
import io
import json
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    Digits,
    Float32,
    Int8,
    Int16,
    Int32,
    Int64,
    JoinType,
    Json,
    Lifetime,
    NaiveDatetime,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
    TimestampMicros,
    field,
)
from headrace.errors import ConfigError, UserFunctionError
from headrace.operators import Count, CountDistinct, Max, Min, Tumbling
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType
from headrace.records.column_types import columns_of
from headrace.records.columns import sink_schema
from headrace.records.record_columns import from_struct_array, to_struct_array
from headrace.records.source_columns import arrival_order
from headrace.state.codec import KeyCodec
from headrace.state.type_schema import differences, type_schema_of
from headrace.testing import PipelineHarness
from tests.unit.sources.source_reading import avro_bytes, parquet_bytes, read_bytes, read_messages
from tests.unit.support.fuzzing import examples

HOUR = timedelta(hours=1)
BERLIN = timezone(timedelta(hours=2))
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


class Level(enum.Enum):
    """Levels by numbers."""

    LOW = 1
    HIGH = 10


class Grade(enum.IntEnum):
    """Levels that are numbers as well."""

    LOW = 1
    HIGH = 10


ANY_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
INSTANTS = st.datetimes(timezones=st.sampled_from([UTC, BERLIN])).filter(
    lambda at: timedelta(days=1) < at - FIRST and at - LAST < timedelta(days=-1)
)
VALUES: dict[Any, st.SearchStrategy[Any]] = {
    datetime: INSTANTS,
    NaiveDatetime: st.datetimes(),
    time: st.times(),
    timedelta: st.timedeltas(timedelta(days=-106_000_000), timedelta(days=106_000_000)),
    UUID: st.uuids(),
    TimestampMicros: st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
    Int8: st.integers(-(2**7), 2**7 - 1),
    Int16: st.integers(-(2**15), 2**15 - 1),
    Int32: st.integers(-(2**31), 2**31 - 1),
    Int64: st.integers(-(2**63), 2**63 - 1),
    Float32: st.floats(width=32, allow_nan=False, allow_infinity=False),
    Level: st.sampled_from(Level),
    Grade: st.sampled_from(Grade),
    Literal[1, 2]: st.sampled_from([1, 2]),
    Json: ANY_JSON,
}
KEYS: dict[Any, st.SearchStrategy[Any]] = {
    kind: values for kind, values in VALUES.items() if kind not in {Json, Float32}
}
SINK_TYPES = {
    datetime: pa.timestamp("us", tz="UTC"),
    NaiveDatetime: pa.timestamp("us"),
    time: pa.string(),
    timedelta: pa.int64(),
    UUID: pa.string(),
    TimestampMicros: pa.timestamp("us", tz="UTC"),
    Int8: pa.int8(),
    Int16: pa.int16(),
    Int32: pa.int32(),
    Int64: pa.int64(),
    Float32: pa.float32(),
    Level: pa.int64(),
    Grade: pa.int64(),
    Literal[1, 2]: pa.int64(),
    Json: pa.string(),
}
ALL = sorted(VALUES, key=str)


@cache
def record_of(kind: Any) -> Any:
    return msgspec.defstruct(
        "Row",
        [
            ("at", Timestamp),
            ("value", kind),
            ("maybe", kind | None),
            ("items", list[kind | None]),
            ("by_name", dict[str, kind]),
        ],
        frozen=True,
    )


def rows_of(kind: Any, values: list[Any]) -> list[Any]:
    record = record_of(kind)
    others = [*values[1:], None]
    return [
        record(at, value, other, [value, other], {"a": value})
        for at, (value, other) in enumerate(zip(values, others, strict=True))
    ]


def is_equal(left: Any, right: Any) -> bool:
    return msgspec.to_builtins(left, builtin_types=(datetime,)) == msgspec.to_builtins(right, builtin_types=(datetime,))


# ---------------------------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("kind", ALL, ids=str)
@examples(30)
@given(st.data())
def test_records_travel_unchanged_between_stages(kind, data):
    rows = rows_of(kind, data.draw(st.lists(VALUES[kind], min_size=1, max_size=4)))
    travelled = from_struct_array(to_struct_array(rows, type(rows[0])), type(rows[0]))
    assert is_equal(travelled, rows)
    assert [*map(type, [row.value for row in travelled])] == [*map(type, [row.value for row in rows])]


@pytest.mark.parametrize("kind", sorted(KEYS, key=str), ids=str)
@examples(20)
@given(st.data())
def test_maps_have_keys_of_any_type(kind, data):
    record: Any = msgspec.defstruct("Row", [("counts", dict[kind, int])], frozen=True)
    rows = [record(data.draw(st.dictionaries(KEYS[kind], st.integers(0, 9), max_size=3)))]
    assert from_struct_array(to_struct_array(rows, record), record) == rows


@pytest.mark.parametrize("kind", ALL, ids=str)
def test_sinks_have_the_columns_of_their_types(kind):
    assert sink_schema(record_of(kind)).field("value").type == SINK_TYPES[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL, ids=str)
@pytest.mark.parametrize("form", ["parquet", "json"])
@examples(3)
@given(st.data())
def test_rows_go_through_a_job_and_back(kind, form, data):
    """The sink's table is read again as a source."""
    rows = rows_of(kind, data.draw(st.lists(VALUES[kind], min_size=1, max_size=3)))
    pipeline = Pipeline("types").source("rows", record_of(kind), event_time="at").sink("out")
    harness = PipelineHarness(pipeline, job={"sources": {"rows": {"format": form}}})
    if form == "parquet":
        harness.feed("rows", rows)
    else:
        harness.feed_bytes("rows", b"\n".join(map(msgspec.json.encode, rows)), file="rows.jsonl")
    harness.run(end_of_input=True)
    stored = harness.sink_table("out")
    assert is_equal(sorted(harness.sink("out"), key=lambda row: row.at), rows)
    harness = PipelineHarness(pipeline)
    harness.feed_table("rows", stored)
    harness.run(end_of_input=True)
    assert is_equal(sorted(harness.sink("out"), key=lambda row: row.at), rows)


# ------------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize("kind", sorted((kind for kind in VALUES if kind is not Json), key=str), ids=str)
@examples(5)
@given(st.data())
def test_aggregates_by_key_equal_a_plain_loop(kind, data):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    total: Any = msgspec.defstruct("Total", [("value", kind), ("n", Annotated[int, Count()])], frozen=True)
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=3))
    rows = [record(at, value) for at, value in enumerate([*values, *values])]
    pipeline = (
        Pipeline("types")
        .source("rows", record, event_time="at", order_by=("at",))
        .key_by("value")
        .window(Tumbling(HOUR))
        .aggregate("totals", total)
        .sink("out")
    )
    harness = PipelineHarness(pipeline)
    harness.feed("rows", rows)
    harness.run(end_of_input=True)
    assert {row.value: row.n for row in harness.sink("out")} == Counter(row.value for row in rows)


ORDERED = [datetime, NaiveDatetime, time, timedelta, UUID, TimestampMicros, Int8, Int32, Float32]


@pytest.mark.parametrize("kind", ORDERED, ids=str)
@examples(5)
@given(st.data())
def test_smallest_and_largest_equal_a_plain_loop(kind, data):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    total: Any = msgspec.defstruct(
        "Total",
        [("at", Timestamp), ("least", Annotated[kind, Min("value")]), ("most", Annotated[kind, Max("value")]),
         ("n", Annotated[int, CountDistinct("value")])],
        frozen=True,
    )  # fmt: skip
    values = data.draw(st.lists(VALUES[kind], min_size=1, max_size=4))
    pipeline = (
        Pipeline("types")
        .source("rows", record, event_time="at", order_by=("value",))
        .key_by("at")
        .window(Tumbling(HOUR))
        .aggregate("totals", total)
        .sink("out")
    )
    harness = PipelineHarness(pipeline)
    harness.feed("rows", [record(0, value) for value in [*values, *values]])
    harness.run(end_of_input=True)
    (row,) = harness.sink("out")
    assert (row.least, row.most, row.n) == (min(values), max(values), len({*values}))


@pytest.mark.parametrize("kind", [datetime, time, timedelta, UUID], ids=str)
@pytest.mark.parametrize("descending", [False, True])
@examples(50)
@given(st.data())
def test_values_rank_in_their_order(kind, descending, data):
    values = data.draw(st.lists(VALUES[kind], min_size=2, max_size=9))
    text = sort_text("value", ValueType(kind, may_be_none=False), descending=descending)
    assert sorted(values, key=text) == sorted(values, reverse=descending)


def test_equal_instants_are_one_key():
    class Event(Struct, frozen=True):
        at: datetime

    class Events(Struct, frozen=True):
        at: datetime
        n: Annotated[int, Count()]

    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    stream = Pipeline("types").source("rows", Event, event_time="at").key_by("at").window(Tumbling(HOUR))
    harness = PipelineHarness(stream.aggregate("totals", Events).sink("out"))
    harness.feed("rows", [Event(noon), Event(noon.astimezone(BERLIN))])
    harness.run(end_of_input=True)
    assert harness.sink("out") == [Events(noon, 2)]


# ------------------------------------------------------------------------------------------------------------- event times


@pytest.mark.parametrize("kind", [datetime, TimestampMicros], ids=str)
def test_microseconds_move_watermarks_by_whole_milliseconds(kind):
    record: Any = msgspec.defstruct("Row", [("at", kind), ("n", int)], frozen=True)
    counted: Any = msgspec.defstruct(
        "Counted", [("n", Annotated[int, Count()]), ("last", Annotated[int, Max("n")])], frozen=True
    )
    times = [
        datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, 0, 59, 59, 999_999, UTC),
    ]
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    rows = [
        record(at if kind is datetime else (at - epoch) // timedelta(microseconds=1), number)
        for number, at in enumerate(times)
    ]
    stream = Pipeline("types").source("rows", record, event_time="at").key_by(lambda _: "all").window(Tumbling(HOUR))
    pipeline = stream.aggregate("totals", counted).sink("out")
    harness = PipelineHarness(pipeline)
    harness.feed("rows", rows)
    harness.run(end_of_input=True)
    assert sorted((row.n, row.last) for row in harness.sink("out")) == [(1, 0), (2, 2)]


def test_naive_datetime_is_no_event_time():
    class Local(Struct, frozen=True):
        at: NaiveDatetime

    pipeline = Pipeline("types").source("rows", Local, event_time="at").sink("out")
    with pytest.raises(ConfigError, match="must be a Timestamp, and not optional"):
        PipelineHarness(pipeline).run()


# --------------------------------------------------------------------------------------------------------------- bad input

REFUSED = [
    (datetime, datetime(2026, 1, 31)),  # noqa: DTZ001 - it has no zone
    (NaiveDatetime, datetime(2026, 1, 31, tzinfo=UTC)),
    (datetime, datetime.max.replace(tzinfo=timezone(timedelta(hours=-1)))),
    (datetime, date(2026, 1, 31)),
    (datetime, 0),
    (time, time(1, tzinfo=UTC)),
    (time, "01:00:00"),
    (timedelta, timedelta.max),
    (timedelta, 5),
    (UUID, "123e4567-e89b-12d3-a456-426614174000"),
    (TimestampMicros, 1.5),
    (Int8, 128),
    (Int8, -129),
    (Int16, 2**15),
    (Int32, 2**31),
    (Int64, 2**63),
    (Int8, True),
    (Float32, 1e39),
    (Level, 1.5),
    (Level, 2),
    (Json, {1: 2}),
    (Json, {"a": datetime(2026, 1, 31, tzinfo=UTC)}),
    (Json, [float("nan")]),
    (Json, Decimal("1.5")),
    (Json, b"x"),
    (Json, "\ud800"),
]


@pytest.mark.parametrize(("kind", "value"), REFUSED, ids=str)
def test_value_of_no_column_fails_the_run(kind, value):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    start: Any = msgspec.defstruct("Start", [("at", Timestamp)], frozen=True)
    pipeline = (
        Pipeline("types")
        .source("rows", start, event_time="at")
        .map(lambda row: record(row.at, value), record=record)
        .sink("out")
    )
    harness = PipelineHarness(pipeline)
    harness.feed("rows", [start(0)])
    with pytest.raises(UserFunctionError, match="value"):
        harness.run()


AT_NOON = 1_769_860_800_000_000
FOREIGN: list[tuple[Any, str, Any]] = [
    (datetime, '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (datetime, '"2026-01-31T12:00:00.123456+02:00"', datetime(2026, 1, 31, 10, 0, 0, 123_456, UTC)),
    (datetime, '"2026-01-31"', datetime(2026, 1, 31, tzinfo=UTC)),
    (datetime, "1769860800000", None),
    (datetime, '"noon"', None),
    (NaiveDatetime, '"2026-01-31T12:00:00.5"', datetime(2026, 1, 31, 12, 0, 0, 500_000)),  # noqa: DTZ001
    (NaiveDatetime, '"2026-01-31T12:00:00Z"', None),
    (NaiveDatetime, "5", None),
    (TimestampMicros, str(AT_NOON + 1), AT_NOON + 1),
    (TimestampMicros, '"2026-01-31T12:00:00.000001Z"', AT_NOON + 1),
    (time, '"23:59:59.999999"', time(23, 59, 59, 999_999)),
    (time, '"23:59"', time(23, 59)),
    (time, '"24:00:00"', None),
    (time, '"12:00:00Z"', None),
    (time, '"12:00:00.1234567"', None),
    (time, "5", None),
    (timedelta, '"P1DT2H"', timedelta(days=1, hours=2)),
    (timedelta, '"-PT0.5S"', timedelta(seconds=-0.5)),
    (timedelta, '"P1M"', None),
    (timedelta, '"PT0.0000001S"', None),
    (timedelta, "5", None),
    (UUID, '"123E4567-E89B-12D3-A456-426614174000"', UUID("123e4567-e89b-12d3-a456-426614174000")),
    (UUID, '"123e4567e89b12d3a456426614174000"', UUID("123e4567-e89b-12d3-a456-426614174000")),
    (UUID, '"123e4567-e89b12d3-a456-426614174000"', None),
    (UUID, '"{123e4567-e89b-12d3-a456-426614174000}"', None),
    (UUID, "5", None),
    (Int8, "127", 127),
    (Int8, "1.27e2", 127),
    (Int8, "128", None),
    (Int32, "2147483648", None),
    (Int32, '"1"', None),
    (Float32, "0.1", 0.10000000149011612),
    (Float32, "16777216", 16777216.0),
    (Float32, "16777217", None),
    (Float32, "0.123456789", None),
    (Float32, "1e39", None),
    (Level, "10", Level.HIGH),
    (Level, "2", None),
    (Literal[1, 2], "2", 2),
    (Literal[1, 2], "3", None),
    (Json, '{"a": [1, 2.5, "x", null, true]}', {"a": [1, 2.5, "x", None, True]}),
    (Json, '"text"', "text"),
    (Json, "null", None),
    (dict[int, str], '{"1": "a", "-2": "b"}', {1: "a", -2: "b"}),
    (dict[int, str], '{"1": "a", "1.0": "b"}', None),
    (dict[int, str], '{"one": "a"}', None),
    (dict[date, int], '{"2026-01-31": 1}', {date(2026, 1, 31): 1}),
    (dict[Annotated[Decimal, Digits(4, 1)], int], '{"1.5": 1}', {Decimal("1.5"): 1}),
    (dict[Level, int], '{"10": 1}', {Level.HIGH: 1}),
]


@pytest.mark.parametrize(("kind", "text", "value"), FOREIGN, ids=str)
@pytest.mark.parametrize("form", ["json", "kafka"])
def test_foreign_json_is_exact_or_a_bad_row(kind, text, value, form):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    content = f'{{"at": 1, "value": {text}}}'.encode()
    outcome = read_bytes("json", content, record) if form == "json" else read_messages([content], record)
    assert outcome.refused is None
    if value is None and (kind, text) != (Json, "null"):
        assert outcome.records == [None]
        assert "value" in outcome.errors[0]
    else:
        assert (outcome.errors, outcome.records[0].value) == ({}, value)


@pytest.mark.parametrize(("kind", "text", "value"), FOREIGN, ids=str)
def test_foreign_csv_is_exact_or_a_bad_row(kind, text, value):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    held = json.loads(text)
    plain = held if isinstance(held, str) and kind is not Json else text
    content = io.StringIO()
    csv.writer(content, quoting=csv.QUOTE_ALL).writerows([["at", "value"], [1, plain]])
    outcome = read_bytes("csv", content.getvalue().encode(), record)
    assert outcome.refused is None
    if value is None and (kind, plain) not in {(Json, "null"), (Int32, "1")}:  # CSV has no types: the text is a number
        assert outcome.records == [None]
        assert "value" in outcome.errors[0]
    else:
        assert (outcome.errors, outcome.records[0].value) == ({}, 1 if kind is Int32 else value)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (datetime, "2026-01-31T12:00:00.1234567Z"),
        (TimestampMicros, "2026-01-31T12:00:00.1234567Z"),
        (NaiveDatetime, "2026-01-31T12:00:00.1234567"),
    ],
    ids=str,
)
def test_text_finer_than_microseconds_refuses_its_file(kind, text):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    outcome = read_bytes("json", f'{{"at": 1, "value": "{text}"}}\n'.encode(), record)
    assert "finer than a microsecond" in outcome.refused


def test_timestamp_of_avro_is_no_json():
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", Json)], frozen=True)
    kinds = {"at": "long", "value": {"type": "long", "logicalType": "timestamp-micros"}}
    outcome = read_bytes("avro", avro_bytes(kinds, [{"at": 1, "value": AT_NOON}]), record)
    assert outcome.records == [None]
    assert "which JSON cannot hold" in outcome.errors[0]


ARROW: list[tuple[Any, pa.Array, Any]] = [
    (datetime, pa.array([AT_NOON + 1], pa.timestamp("us", "Europe/Berlin")), datetime(2026, 1, 31, 12, 0, 0, 1, UTC)),
    (datetime, pa.array([AT_NOON * 1_000], pa.timestamp("ns")), datetime(2026, 1, 31, 12, tzinfo=UTC)),
    (datetime, pa.array([20_484], pa.date32()), datetime(2026, 1, 31, tzinfo=UTC)),
    (datetime, pa.array([AT_NOON], pa.int64()), None),
    (NaiveDatetime, pa.array([AT_NOON + 1], pa.timestamp("us")), datetime(2026, 1, 31, 12, 0, 0, 1)),  # noqa: DTZ001
    (NaiveDatetime, pa.array([AT_NOON], pa.timestamp("us", "UTC")), None),
    (TimestampMicros, pa.array([AT_NOON // 1_000], pa.timestamp("ms", "UTC")), AT_NOON),
    (time, pa.array([1], pa.time64("us")), time(0, 0, 0, 1)),
    (time, pa.array([86_399], pa.time32("s")), time(23, 59, 59)),
    (time, pa.array([1], pa.time64("ns")), None),
    (timedelta, pa.array([1_500], pa.duration("ms")), timedelta(seconds=1.5)),
    (timedelta, pa.array([1], pa.duration("ns")), None),
    (timedelta, pa.array([2**62], pa.duration("s")), None),
    (timedelta, pa.array([1_500], pa.int64()), timedelta(microseconds=1_500)),
    (UUID, pa.array([b"\x00" * 15 + b"\x05"], pa.binary(16)), UUID(int=5)),
    (UUID, pa.array([b"\x00" * 16], pa.binary()), None),
    (Int8, pa.array([127], pa.int64()), 127),
    (Int8, pa.array([128], pa.int64()), None),
    (Int16, pa.array([Decimal(5)], pa.decimal128(5, 2)), 5),
    (Float32, pa.array([0.1], pa.float64()), 0.10000000149011612),
    (Float32, pa.array([1 / 3], pa.float64()), None),
    (Float32, pa.array([0.1], pa.float32()), 0.10000000149011612),
    (Level, pa.array([10], pa.int8()), Level.HIGH),
    (Level, pa.array([11], pa.int64()), None),
    (Json, pa.array(['{"a": 1}']), {"a": 1}),
    (Json, pa.array(["{a: 1}"]), None),
    (Json, pa.array([{"a": [1, None]}]), {"a": [1, None]}),
    (dict[int, int], pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int64())), {1: 2}),
    (dict[int, int], pa.array([[("a", 2)]], pa.map_(pa.string(), pa.int64())), None),
    (dict[UUID, int], pa.array([[("A" * 32, 1), ("a" * 32, 2)]], pa.map_(pa.string(), pa.int64())), None),
]


@pytest.mark.parametrize(("kind", "values", "value"), ARROW, ids=str)
def test_stored_column_is_exact_or_a_bad_row(kind, values, value):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("value", kind)], frozen=True)
    table = pa.table({"at": pa.array([1], pa.int64()), "value": values})
    outcome = read_bytes("parquet", parquet_bytes(table), record)
    assert outcome.refused is None
    if value is None:
        assert outcome.records == [None]
        assert "value" in outcome.errors[0]
    else:
        assert (outcome.errors, outcome.records[0].value) == ({}, value)


# ------------------------------------------------------------------------------------------------ names, units, one form


class Named(Struct, frozen=True, rename="camel"):
    at: Timestamp
    the_key: str
    my_part: int
    my_id: UUID
    v: int = field(name="Value")


@pytest.mark.parametrize(
    "upsert_key", [("my_id",), ("my_part",), ("my_part", "my_id"), ("the_key", "my_part")], ids=str
)
def test_renamed_upsert_key_is_found_in_rows(upsert_key):
    def row(at, part, value):
        return Named(at, "k", part, UUID(int=part), value)

    stream = Pipeline("types").source("rows", Named, event_time="at", row_kind="op")
    harness = PipelineHarness(
        stream.upsert_materialize("m", primary_key=("the_key",), upsert_key=upsert_key).sink("out")
    )
    for record, kind in (
        (row(0, 1, 10), RowKind.INSERT),
        (row(1, 2, 20), RowKind.INSERT),
        (row(2, 2, 20), RowKind.DELETE),
    ):
        harness.feed("rows", [record], kinds=[kind])
        harness.run()
    assert [(record.my_part, record.v) for record in harness.sink("out")] == [(1, 10)]


class Seen(Struct, frozen=True):
    at: Timestamp
    k: str
    t: TimestampMicros = 0


def test_result_in_another_unit_is_refused():
    class Latest(Struct, frozen=True):
        k: str
        last: Annotated[TimestampMicros, Max("at")]

    class Window(Struct, frozen=True):
        k: str
        window_start: TimestampMicros

    stream = Pipeline("types").source("rows", Seen, event_time="at").key_by("k")
    with pytest.raises(TypeError, match=r"'last' of Latest is TimestampMicros, but Max\('at'\) gives Timestamp"):
        stream.window(Tumbling(HOUR)).aggregate("w", Latest)
    with pytest.raises(TypeError, match="'window_start' of Window is TimestampMicros"):
        stream.window(Tumbling(HOUR)).aggregate("w", Window)


def test_join_of_instants_in_other_units_is_refused():
    pipeline = Pipeline("types")
    left = pipeline.source("left", Seen, event_time="at").key_by("at")
    right = pipeline.source("right", Seen, event_time="at").key_by("t")
    with pytest.raises(TypeError, match="a key must have the same type on both sides"):
        left.join("j", right, emit=lambda one, _: one, how=JoinType.INNER, state_ttl=Lifetime.FOREVER)


def test_stored_milliseconds_are_no_microseconds():
    one, other = (msgspec.defstruct("S", [("t", kind)]) for kind in (Timestamp, TimestampMicros))
    assert differences(type_schema_of(one), type_schema_of(other))
    assert differences(type_schema_of(other), type_schema_of(one))
    assert not differences(type_schema_of(one), type_schema_of(msgspec.defstruct("S", [("t", int)])))


def test_equal_instants_are_one_key_of_a_map():
    codec, noon = KeyCodec(datetime, "state 'm'"), datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert codec.encode(noon) == codec.encode(noon.astimezone(BERLIN)) == b'"2026-01-31T12:00:00Z"'


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
@pytest.mark.parametrize(
    ("kind", "default"),
    [(datetime, datetime(2026, 1, 31, 12, tzinfo=UTC)), (Timestamp, AT_NOON // 1_000), (TimestampMicros, AT_NOON)],
    ids=str,
)
def test_default_has_its_place_among_stored_times(unit, kind, default):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("n", int), ("o", kind, default)], frozen=True)
    days = [datetime(2026, 2, 1, tzinfo=UTC), None, datetime(2026, 1, 30, tzinfo=UTC)]
    table = pa.table({"at": [1, 1, 1], "n": [0, 1, 2], "o": pa.array(days, pa.timestamp(unit, "UTC"))})
    node: Any = Pipeline("types").source("rows", record, event_time="at", order_by=("o",)).sink("out").operators[0]
    assert arrival_order(table, node).to_pylist() == [2, 1, 0]


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_duration_beyond_64_bits_is_a_bad_row(form):
    record: Any = msgspec.defstruct("Row", [("at", Timestamp), ("v", timedelta)], frozen=True)
    texts = ["P1D", "P200000000D"]
    if form == "parquet":
        content = parquet_bytes(pa.table({"at": [1, 2], "v": texts}))
    elif form == "csv":
        content = "".join(["at,v\n", *(f"{at},{text}\n" for at, text in enumerate(texts))]).encode()
    else:
        content = b"\n".join(msgspec.json.encode({"at": at, "v": text}) for at, text in enumerate(texts))
    outcome = read_bytes(form, content, record)
    assert [record and record.v for record in outcome.records] == [timedelta(days=1), None]
    assert "which is not a duration" in outcome.errors[1]


def test_enum_beyond_64_bits_is_refused():
    with pytest.raises(ConfigError, match="which has no column"):
        columns_of(msgspec.defstruct("Row", [("big", enum.Enum("Big", {"A": 2**64}))]))
