"""Arrow columns of any type, with any value that Parquet can store: for properties of column readers."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import strategies as st

WORDS = st.sampled_from(
    ["", "a", "1", "true", "2024-01-01T00:00:00Z", "\x00", "é", "+I", "\N{GRINNING FACE}"]
) | st.text(max_size=3)
_INT64 = st.sampled_from([0, -1, 2**63 - 1, -(2**63), 253_402_300_800, -62_135_596_801]) | st.integers(
    -(2**63), 2**63 - 1
)
_INT32 = st.sampled_from([0, 2**31 - 1, -(2**31), 2_932_897, -719_163]) | st.integers(-(2**31), 2**31 - 1)
_ZONES = st.sampled_from([None, "UTC", "+05:30", "America/New_York", "Nowhere/At_All", ""])
_UNITS = st.sampled_from(["s", "ms", "us", "ns"])


def _lists(values, size):
    return st.lists(st.none() | values, min_size=size, max_size=size)


def _arrays(values, kind, size):
    return _lists(values, size).map(lambda values: pa.array(values, kind))


def _viewed(values, stored, kind, size):
    """Draw the numbers behind a type, also numbers that represent no value of it."""
    return _lists(values, size).map(lambda values: pa.array(values, stored).view(kind))


def texts(size):
    """Draw text, also invalid UTF-8."""
    broken = _lists(st.sampled_from([b"a", b"", b"\xff", b"\xc3", b"a\xed\xa0\x80"]) | st.binary(max_size=3), size)

    def unchecked(values, kind, stored):
        return pa.Array.from_buffers(kind, size, pa.array(values, stored).buffers())

    kinds = st.sampled_from([(pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())])
    return st.builds(lambda values, kind: unchecked(values, *kind), broken, kinds) | _arrays(WORDS, pa.string(), size)


def _numbers(size):
    floats = st.floats(allow_nan=True, allow_infinity=True)
    decimals = st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-(10**30), max_value=10**30)
    return st.one_of(
        _arrays(_INT64, pa.int64(), size),
        _arrays(_INT32, pa.int32(), size),
        _arrays(st.integers(0, 2**64 - 1), pa.uint64(), size),
        _arrays(st.integers(-128, 127), pa.int8(), size),
        _arrays(floats, pa.float64(), size),
        _arrays(st.floats(width=32), pa.float32(), size),
        _arrays(decimals, pa.decimal128(38, 2), size),
        _arrays(decimals, pa.decimal256(60, 4), size),
    )


def times(size):
    """Draw timestamps in all units and time zones, also outside any calendar, and days, times and durations."""
    stamps = st.tuples(_UNITS, _ZONES).flatmap(
        lambda parts: _viewed(_INT64, pa.int64(), pa.timestamp(parts[0], tz=parts[1] or None), size)
    )
    return st.one_of(
        stamps,
        _viewed(_INT32, pa.int32(), pa.date32(), size),
        _viewed(_INT64, pa.int64(), pa.date64(), size),
        _viewed(_INT32, pa.int32(), pa.time32("ms"), size),
        _viewed(_INT64, pa.int64(), pa.time64("us"), size),
        _viewed(_INT64, pa.int64(), pa.time64("ns"), size),
        _UNITS.flatmap(lambda unit: _viewed(_INT64, pa.int64(), pa.duration(unit), size)),
    )


def _plain(size):
    return st.one_of(
        texts(size),
        _numbers(size),
        times(size),
        _arrays(st.booleans(), pa.bool_(), size),
        _arrays(st.binary(max_size=4), pa.binary(), size),
        _arrays(st.binary(min_size=2, max_size=2), pa.binary(2), size),
        st.just(pa.nulls(size)),
        _arrays(WORDS, pa.string(), size).map(pa.Array.dictionary_encode),
    )


def _nested(size, depth):
    if not depth:
        return _plain(size)

    def as_list(lengths, items):
        offsets = [0]
        for length in lengths:
            offsets.append(min(offsets[-1] + length, len(items)))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), items)

    def as_map(lengths, keys, items):
        offsets = [0]
        for length in lengths:
            offsets.append(min(offsets[-1] + length, len(items)))
        return pa.MapArray.from_arrays(pa.array(offsets, pa.int32()), keys, items)

    lengths = st.lists(st.integers(0, 2), min_size=size, max_size=size)
    inner = _nested(2 * size, depth - 1)
    keys = _arrays(WORDS, pa.string(), 2 * size).map(lambda values: values.fill_null("none"))
    structs = st.dictionaries(st.sampled_from(["a", "b", "n"]), _nested(size, depth - 1), min_size=1, max_size=2)
    mask = st.lists(st.booleans(), min_size=size, max_size=size).map(lambda values: pa.array(values, pa.bool_()))
    return st.one_of(
        _plain(size),
        st.builds(as_list, lengths, inner),
        st.builds(as_map, lengths, keys, inner),
        st.builds(
            lambda fields, nulls: pa.StructArray.from_arrays([*fields.values()], [*fields], mask=nulls), structs, mask
        ),
    )


def columns(size, depth=2):
    """Draw columns of any type, including lists, maps and structs."""
    return _nested(size, depth)
