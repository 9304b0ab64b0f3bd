"""INT96 times of Parquet files and Delta tables are read exactly, in any year and in any part of a column."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import FlooredTimestamp, Struct, Timestamp
from tests.unit.sources.source_reading import parquet_bytes, read_bytes
from tests.unit.support.fuzzing import examples

LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
FIRST = datetime(1, 1, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Inner(Struct, frozen=True):
    seen: Timestamp | None


class Outer(Struct, frozen=True):
    at: Timestamp
    inner: Inner | None
    many: list[Timestamp | None]
    by: dict[str, Timestamp | None]


class Timed(Struct, frozen=True):
    at: Timestamp


def milliseconds(timestamp):
    return None if timestamp is None else (timestamp - EPOCH) // timedelta(milliseconds=1)


TIMESTAMPS = st.none() | st.datetimes(timezones=st.just(UTC)).map(
    lambda timestamp: timestamp.replace(microsecond=timestamp.microsecond // 1_000 * 1_000)
)


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@examples(20)
@given(timestamps=st.lists(TIMESTAMPS, min_size=1, max_size=5), at=TIMESTAMPS.filter(bool))
@example(timestamps=[LAST, FIRST, None], at=LAST)
@example(timestamps=[], at=FIRST)
def test_int96_times_are_exact(kind, timestamps, at):
    time = pa.timestamp("us")
    naive = [timestamp and timestamp.replace(tzinfo=None) for timestamp in timestamps]
    count = len(naive) + 1
    table = pa.table(
        {
            "at": pa.array([at.replace(tzinfo=None)] * count, time),
            "inner": pa.array([*({"seen": timestamp} for timestamp in naive), None], pa.struct([("seen", time)])),
            "many": pa.array([naive] * count, pa.list_(time)),
            "by": pa.array([[("a", timestamp)] for timestamp in naive] + [[]], pa.map_(pa.string(), time)),
        }
    )
    content = parquet_bytes(table, use_deprecated_int96_timestamps=True)
    records, errors, refused = read_bytes(kind, content, Outer)
    assert (errors, refused) == ({}, None)
    expected = [milliseconds(timestamp) for timestamp in timestamps]
    assert [record.at for record in records] == [milliseconds(at)] * count
    assert [record.inner and record.inner.seen for record in records] == [*expected, None]
    assert [record.many for record in records] == [expected] * count
    assert [record.by for record in records] == [*({"a": timestamp} for timestamp in expected), {}]


@pytest.mark.parametrize("finer", [1, 999, 1_000, 999_999, -1])
def test_int96_remainder_is_refused_or_floored(finer):
    def int96(*nanoseconds):
        table = pa.table({"at": pa.array(nanoseconds, pa.timestamp("ns"))})
        return parquet_bytes(table, use_deprecated_int96_timestamps=True)

    class Floored(Struct, frozen=True):
        at: FlooredTimestamp

    assert "finer than a millisecond" in (read_bytes("parquet", int96(0, finer, None), Timed).refused or "")
    assert read_bytes("parquet", int96(finer), Floored).records == [Floored(finer // 1_000_000)]


def test_int96_beyond_both_units_is_refused():
    table = pa.table({"at": pa.array([1, 0], pa.timestamp("ns"))})
    content = parquet_bytes(table, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False)
    epoch, last = (
        struct.pack("<qi", 0, day) for day in (2_440_588, 5_373_484)
    )  # Julian days of 1970 and of the end of 9999
    assert content.count(epoch) == 1
    outcome = read_bytes("parquet", content.replace(epoch, last), Timed)
    assert (
        outcome.refused
        == "column at has INT96 times that are finer than a microsecond, and others outside the years 1678 to 2261"
    )


def test_int96_of_no_year_is_a_bad_row():
    table = pa.table({"at": pa.array([86_400_000_000_000, 0], pa.timestamp("ns"))})
    content = parquet_bytes(table, use_deprecated_int96_timestamps=True, compression="none", use_dictionary=False)
    far = struct.pack("<qi", 3_600_000_000_000, 108_360_000)  # in about the year 290,000, as a file of Spark has it
    outcome = read_bytes("parquet", content.replace(struct.pack("<qi", 0, 2_440_588), far), Timed)
    assert outcome.records == [Timed(86_400_000), None]
    assert "outside the years 1 to 9999" in outcome.errors[1]
