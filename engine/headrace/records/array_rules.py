"""The rules of `headrace.records.value_rules` for whole arrays of timestamps and decimals."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.value_rules import EXACT_DIGITS, EXACT_SCALE, FIRST_TIME, LAST_TIME

PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Number of Arrow's units of time in a second."""
_DECIMAL_BITS: Final = 128


def whole_units(array: pa.Array, unit: str) -> pa.Array | None:
    """Return timestamps as numbers of a unit, "ms" or "us"; None if some are between two of them."""
    try:
        return array.cast(pa.timestamp(unit, tz=array.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def outside_calendar(array: pa.Array) -> pa.BooleanArray:
    """Return which of these timestamps are outside the years that records have."""
    if array.type.unit == "ns":  # 64 bits of nanoseconds end within those years
        return pa.repeat(False, len(array))
    numbers, per_second = array.cast(pa.int64()), PER_SECOND[array.type.unit]
    first, end = FIRST_TIME // 1_000 * per_second, (LAST_TIME + 1) // 1_000 * per_second
    return pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))


def between_units(array: pa.Array, unit: str) -> pa.BooleanArray:
    """Return which of these timestamps are finer than a unit, "ms" or "us"."""
    numbers, step = array.cast(pa.int64()), max(PER_SECOND[array.type.unit] // PER_SECOND[unit], 1)
    is_finer = pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)
    return pc.and_(is_finer, pc.invert(outside_calendar(array)))


def floored_units(array: pa.Array, unit: str) -> pa.Array:
    """Return timestamps that are finer than a unit, "ms" or "us", as numbers of it, rounded down."""
    numbers, step = array.cast(pa.int64()), PER_SECOND[array.type.unit] // PER_SECOND[unit]
    cut = pc.divide(numbers, step)
    return pc.if_else(pc.less(numbers, pc.multiply(cut, step)), pc.subtract(cut, 1), cut)


def short_decimals(array: pa.Array) -> pa.Array | None:
    """Return decimals as floats if none has more digits than any float shows; else None.

    The quotient of two integers that are floats is correctly rounded; Arrow's own cast of decimals is not.
    """
    scale = array.type.scale
    if array.type.bit_width != _DECIMAL_BITS or not 0 <= scale <= EXACT_SCALE:
        return None
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset)
    try:
        numbers = unscaled.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    ends = pc.min_max(numbers).as_py()
    longest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
    return pc.divide(numbers.cast(pa.float64()), 10.0**scale) if longest < 10**EXACT_DIGITS else None
