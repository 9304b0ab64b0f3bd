"""Numbers and times have one rule: each format and each source gives the same value, or refuses it."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import field

from headrace import FlooredTimestamp, Struct, Timestamp
from headrace.api.graph import SourceNode
from headrace.records.source_columns import arrival_order
from headrace.records.value_rules import iso_time, written_number
from tests.unit.sources.source_reading import Outcome, avro_bytes, parquet_bytes, read_bytes, read_messages
from tests.unit.support.fuzzing import examples


class Whole(Struct, frozen=True):
    x: int
    at: Timestamp = 0


class Real(Struct, frozen=True):
    x: float
    at: Timestamp = 0


class Timed(Struct, frozen=True):
    at: Timestamp


class Floored(Struct, frozen=True):
    at: FlooredTimestamp


class Inner(Struct, frozen=True):
    seen: Timestamp | None = None


class Outer(Struct, frozen=True):
    at: Timestamp
    inner: list[Inner] = field(default_factory=list)
    by: dict[str, Timestamp] = field(default_factory=dict)


DIGITS = Context(prec=60)
PLACES = st.integers(0, 20)
SHORT = st.integers(-(10**15), 10**15)
LONG = st.integers(-(10**37), 10**37)
AROUND = st.builds(lambda power, step: 2**power + step, st.integers(50, 64), st.integers(-2, 2))
NUMBERS = st.builds(lambda number, places: Decimal(number).scaleb(-places, DIGITS), SHORT | LONG | AROUND, PLACES)


def in_all_formats(number: Decimal, record: type[msgspec.Struct]) -> dict[str, Outcome]:
    """Read a number that each format writes in its own way."""
    text = f"{number:f}"
    scale = max(0, -int(number.as_tuple().exponent))
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": scale}
    json = f'{{"x": {text}, "at": 1}}'.encode()
    return {
        "json": read_bytes("json", json, record),
        "kafka": read_messages([json], record),
        "csv": read_bytes("csv", f"x,at\n{text},1".encode(), record),
        "avro": read_bytes("avro", avro_bytes({"x": decimal, "at": "long"}, [{"x": number, "at": 1}]), record),
        "parquet": read_bytes("parquet", parquet_of(number, scale), record),
        "delta": read_bytes("delta", parquet_of(number, scale), record),
    }


def parquet_of(number: Decimal, scale: int) -> bytes:
    return parquet_bytes(pa.table({"x": pa.array([number], pa.decimal256(60, scale)), "at": [1]}))


def whole(number: Decimal) -> int | None:
    value = int(number)
    return value if number == value and -(2**63) <= value < 2**63 else None


def real(number: Decimal) -> float | None:
    value = float(number)
    places = -int(number.as_tuple().exponent)
    shown = {Decimal(repr(value)), Decimal(f"{value:.{places}f}")}
    return value if number in shown else None


@examples(20)
@given(number=NUMBERS)
@example(number=Decimal("0.35"))
@example(number=Decimal("12345678901234567.89"))
@example(number=Decimal("9007199254740993.0"))
@example(number=Decimal("-0.0"))
def test_numbers_are_equal_in_all_formats(number):
    for record, expected in ((Whole, whole(number)), (Real, real(number))):
        for kind, (records, errors, refused) in in_all_formats(number, record).items():
            assert refused is None, kind
            assert [row.x for row in records if row] == [value for value in [expected] if value is not None], kind
            assert bool(errors) == (expected is None), kind


@examples(25)
@given(values=st.lists(st.decimals(allow_nan=False, places=4, min_value=-(10**9), max_value=10**9), min_size=1))
def test_decimals_become_nearest_floats(values):
    for kind in (pa.decimal128(20, 4), pa.decimal128(38, 4), pa.decimal256(40, 4)):
        column = pa.chunked_array([pa.array([Decimal(7), *values], kind).slice(1)])
        table = pa.table({"x": column, "at": [0] * len(values)})
        assert [row.x for row in read_bytes("parquet", parquet_bytes(table), Real).records] == [*map(float, values)]


@given(
    number=st.floats(allow_nan=False, allow_infinity=False),
    form=st.sampled_from(["r", ".16e", ".17g", ".25e", ".330f"]),
)
def test_any_writer_of_floats_is_read_back(number, form):
    text = repr(number) if form == "r" else format(number, form)
    content = f'{{"x": {text}, "at": 1}}'.encode()
    if form != ".330f" or float(text) == number:  # the last one may cut digits off
        assert read_bytes("json", content, Real).records == [Real(number, 1)]
        assert read_bytes("csv", f"x,at\n{text},1".encode(), Real).records == [Real(number, 1)]


@pytest.mark.parametrize(("text", "value"), [("5.0", 5), ("1e3", 1000), ("1E+18", 10**18), ("-0.0", 0), ("2.50e1", 25)])
def test_whole_numbers_may_be_written_as_floats(text, value):
    json = f'{{"x": {text}, "at": 1}}'.encode()
    for outcome in (
        read_bytes("json", json, Whole),
        read_messages([json], Whole),
        read_bytes("csv", f"x,at\n{text},1".encode(), Whole),
    ):
        assert outcome.records == [Whole(value, 1)]


@pytest.mark.parametrize("text", ["1e19", "1e400", "1e-400", "1e999999999", "1e-99999999999999999999", "5.5", "1e-3"])
def test_numbers_that_do_not_fit_are_refused(text):
    json = f'{{"x": {text}, "at": 1}}'.encode()
    for outcome in (
        read_bytes("json", json, Whole),
        read_messages([json], Whole),
        read_bytes("csv", f"x,at\n{text},1".encode(), Whole),
    ):
        assert outcome.records == [None]


# ---------------------------------------------------------------------------------------------------------------- times

TIMESTAMPS = st.datetimes(timezones=st.just(UTC), min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30))  # noqa: DTZ001


@examples(60)
@given(
    timestamp=TIMESTAMPS,
    step=st.sampled_from([1, 1_000]),
    zone=st.sampled_from(["Z", "z", " UTC", "+00:00", "+00", "", " +0000"]),
)
def test_times_are_equal_in_all_formats(timestamp, step, zone):
    timestamp = timestamp.replace(microsecond=timestamp.microsecond // step * step)
    micros = pc.cast(pa.scalar(timestamp), pa.timestamp("us", "UTC")).value
    text = f"{timestamp:%H:%M:%S.%f}"
    text = f"{timestamp.date().isoformat()} {text}{zone}"
    json = msgspec.json.encode({"at": text})
    avro: dict[str, Any] = {"at": {"type": "long", "logicalType": "local-timestamp-micros"}}
    table = pa.table({"at": pa.array([micros], pa.timestamp("us", "UTC"))})
    texts = pa.table({"at": [text]})
    for record in (Timed, Floored):
        outcomes = {
            "json": read_bytes("json", json, record),
            "csv": read_bytes("csv", b"at\n" + text.encode(), record),
            "avro": read_bytes("avro", avro_bytes(avro, [{"at": micros}]), record),
            "parquet": read_bytes("parquet", parquet_bytes(table), record),
            "delta": read_bytes("delta", parquet_bytes(table), record),
            "texts in parquet": read_bytes("parquet", parquet_bytes(texts), record),
            "texts in delta": read_bytes("delta", parquet_bytes(texts), record),
            "kafka": read_messages([json], record),
        }
        for kind, outcome in outcomes.items():
            if micros % 1_000 and record is Timed:
                assert outcome.records in ([], [None]), kind
                why = outcome.refused or outcome.errors[0]
                assert "finer than a millisecond" in why, kind
                assert "FlooredTimestamp" in why, kind
                assert (outcome.refused is None) == (kind == "kafka")
            else:
                assert outcome.records == [record(micros // 1_000)], kind


def test_fine_times_in_nests_refuse_the_file():
    fine = pa.array([1], pa.timestamp("ns"))
    inner = pa.array([[{"seen": fine[0]}]], pa.list_(pa.struct([("seen", pa.timestamp("ns"))])))
    by = pa.array([[("a", fine[0])]], pa.map_(pa.string(), pa.timestamp("ns")))
    for more in ({"inner": inner}, {"by": by}):
        outcome = read_bytes("parquet", parquet_bytes(pa.table({"at": [1], **more})), Outer)
        assert "finer than a millisecond" in (outcome.refused or "")


@pytest.mark.parametrize(
    ("text", "milliseconds", "is_finer"),
    [
        ("2024-01-05", 1704412800000, False),
        ("2024-01-05T00:00Z", 1704412800000, False),
        ("2024-01-05t00:00:00z", 1704412800000, False),
        ("2026-01-01 10:00:00 UTC", 1767261600000, False),
        ("2026-01-01 10:00:00 GMT", 1767261600000, False),
        ("2026-01-01 12:00:00+02", 1767261600000, False),
        ("2024-01-05 01:00:00.0019+01:00", 1704412800001, True),
        ("2024-01-05T00:00:00.001000000000Z", 1704412800001, False),
        ("1969-12-31T23:59:59.9994Z", -1, True),
        ("0001-01-01T00:00:00Z", -62135596800000, False),
    ],
)
def test_times_are_read_as_iso_text(text, milliseconds, is_finer):
    assert iso_time(text).in_units(1_000) == (milliseconds, is_finer)


@pytest.mark.parametrize(
    "text",
    ["2024-02-30", "2024-01-05T25:00", "2024-01-05T24:00", "2024-01-05T24:00:00.5Z", "20240105", "2024-1-5", "",
     " 2024-01-05", "2024-W01-1", "2024-01-05T10:00.5", "2024-01-05 10:00 CET", "1767261600"],
)  # fmt: skip
def test_other_texts_are_no_times(text):
    assert iso_time(text) is None
    assert read_bytes("json", msgspec.json.encode({"at": text}), Timed).records == [None]
    assert read_messages([msgspec.json.encode({"at": text})], Timed).records == [None]
    outcome = read_bytes("parquet", parquet_bytes(pa.table({"at": [text, "2024-01-05"]})), Timed)
    assert outcome.records == [None, Timed(1704412800000)]
    assert outcome.errors == {0: f"at is {text!r}, which is not a timestamp"}


def test_days_are_the_first_moments_of_days():
    days = [date(2024, 1, 5), date(1, 1, 1), date(1969, 12, 31), None]
    for kind in (pa.date32(), pa.date64()):
        content = parquet_bytes(pa.table({"at": pa.array(days, kind)}))
        for outcome in (read_bytes("parquet", content, Timed), read_bytes("delta", content, Timed)):
            assert outcome.records == [Timed(1704412800000), Timed(-62135596800000), Timed(-86400000), None]
    far = parquet_bytes(pa.table({"at": pa.array([2**30], pa.int32()).view(pa.date32())}))
    assert "outside the years" in read_bytes("parquet", far, Timed).errors[0]


class Annotated(Struct, frozen=True):
    at: Timestamp
    id: str
    content: str | None
    ids: list[str]


@pytest.mark.parametrize("store_schema", [True, False])
def test_annotated_texts_are_read_as_texts(store_schema):
    ids = [UUID("0123ABCD-0000-1000-8000-00805F9B34FB"), UUID(int=5)]
    stored = pa.array([value.bytes for value in ids], pa.uuid())
    lists = pa.ListArray.from_arrays([0, 2, 2], stored)
    contents = pa.array(['{"a": 1}', None], pa.json_())
    table = pa.table({"at": [1, 2], "id": stored, "content": contents, "ids": lists})
    content = parquet_bytes(table, store_schema=store_schema)
    first = Annotated(1, str(ids[0]), '{"a": 1}', [*map(str, ids)])
    for kind in ("parquet", "delta"):
        assert read_bytes(kind, content, Annotated).records == [first, Annotated(2, str(ids[1]), None, [])]
    wrong = read_bytes("parquet", parquet_bytes(pa.table({"x": stored, "at": [1, 2]})), Whole)
    assert wrong.records == [None, None]
    assert "0123abcd-0000-1000-8000-00805f9b34fb, which is not int64" in wrong.errors[0]


def test_texts_of_times_sort_as_times():
    texts = ["2024-01-01T10:00+05:00", "2024-01-01T06:00Z", "2024-01-01T00:00-08:00", "2023-12-31"]
    node = SourceNode("rows", Timed, "at", ("at",), None, timedelta(0))
    assert arrival_order(pa.table({"at": texts}), node).to_pylist() == [3, 0, 1, 2]
    by_id = SourceNode("rows", Annotated, "at", ("id",), None, timedelta(0))
    ids = pa.array([UUID(int=7).bytes, UUID(int=5).bytes], pa.uuid())
    assert arrival_order(pa.table({"id": ids}), by_id).to_pylist() == [1, 0]


@examples(100)
@given(text=st.from_regex(r"-?(0|[1-9][0-9]{0,18})(\.[0-9]{1,19})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_written_numbers_lose_nothing(text):
    number = written_number(text)
    assert isinstance(number, Decimal) or number in {0.0, float(text)}
    if not isinstance(number, Decimal):
        assert Decimal(repr(number)) == Decimal(text)
