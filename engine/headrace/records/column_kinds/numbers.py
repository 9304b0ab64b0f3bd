"""Kinds of columns: numbers, and truth values."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from types import NoneType
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.records import MOST_DIGITS, nearest_float32, with_digits
from headrace.records.array_rules import short_decimals
from headrace.records.column_kinds.kind import Misfits, ScalarKind, ValueNotation
from headrace.records.foreign_values import is_number, shown, shown_plain
from headrace.records.problems import Problem, Problems, UnfitValue, refuse
from headrace.records.value_rules import (
    INEXACT,
    exact_decimal,
    nearest_float,
    parsed_decimal,
    parsed_float,
    parsed_number,
    parsed_truth,
    whole_number,
)

NUMBERS: Final = frozenset({int, float, Decimal})
"""Types of plain numbers."""


class Integer(ScalarKind):
    """Whole numbers of 64 bits."""

    type = sink_type = through = pa.int64()
    python = int
    annotation: Any = int
    contentless = 0
    parse = staticmethod(parsed_number)
    notation: ValueNotation = "number"

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def read(self, value: Any) -> Any:
        """Return a whole number."""
        number = whole_number(value) if type(value) in NUMBERS else None
        return self._refuse(value) if number is None else number


class SizedInteger(Integer):
    """Whole numbers of fewer bits, or of declared 64 bits."""

    annotation: Any = None  # msgspec would take larger numbers

    def __init__(self, bits: int) -> None:
        """Take the number of bits."""
        self.type = self.sink_type = self.through = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
        self._bits = bits
        self._range = range(-(1 << bits - 1), 1 << bits - 1)

    def __str__(self) -> str:
        """Return what an error calls such a number."""
        return f"a whole number of {self._bits} bits"

    def exact(self, value: Any) -> Any:
        """Return a whole number that has a place in the bits."""
        number = super().exact(value)
        return number if number is None or number in self._range else self._refuse(number)

    def read(self, value: Any) -> Any:
        """Return a whole number that has a place in the bits."""
        number = super().read(value)
        return number if number in self._range else self._refuse(value)


class Float(ScalarKind):
    """Numbers of which a float keeps all digits."""

    type = sink_type = through = pa.float64()
    python = float
    annotation: Any = float
    contentless = 0.0
    parse = staticmethod(parsed_float)
    notation = "number"
    can_be_map_key = False

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def exact(self, value: Any) -> Any:
        """Return a float, also for an integer."""
        plain = value.value if isinstance(value, enum.Enum) else value
        if type(plain) is not int:
            return super().exact(value)
        try:
            return float(plain)
        except OverflowError:
            why = "is too large for a float"
            raise UnfitValue(why) from None

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which numbers JSON cannot hold: NaN and infinity."""
        return None if sink else (pc.invert(pc.is_finite(array)), ", which JSON cannot hold")

    def read(self, value: Any) -> Any:
        """Return the float nearest to a number, which must show all of its digits."""
        if isinstance(value, float):
            return value
        if type(value) not in NUMBERS:
            self._refuse(value)
        number = nearest_float(value)
        if number is None:
            raise UnfitValue(f"is {shown_plain(value)}{INEXACT}")
        return number

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return floats, null for NaN: JSON writes NaN as null. It would write infinity as null, too, which is refused."""
        array = _floats(array, problems)
        array = refuse(array, pc.is_inf(array), problems, ", which JSON cannot hold")
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)


def _floats(array: pa.Array, problems: Problems) -> pa.Array:
    """Return numbers as floats. A number whose digits no float shows is refused."""
    if pa.types.is_decimal(array.type):
        floats = short_decimals(array)
        return _nearest_floats(array, problems) if floats is None else floats
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:  # Arrow refuses all integers from 2**53 on
        return _nearest_floats(array, problems)


def _nearest_floats(array: pa.Array, problems: Problems) -> pa.Array:
    values = array.to_pylist()
    floats = [None if value is None else nearest_float(value) for value in values]
    for position, (value, number) in enumerate(zip(values, floats, strict=True)):
        if number is None and value is not None:
            problems.setdefault(position, Problem("", f"is {value}{INEXACT}"))
    return pa.array(floats, pa.float64())


class Float32(Float):
    """Floats of 32 bits. Computed values are rounded to the nearest one; foreign values must show all their digits."""

    type = sink_type = through = pa.float32()
    annotation: Any = None  # msgspec would take larger numbers

    def __str__(self) -> str:
        """Return what an error calls such a number."""
        return "a float of 32 bits"

    def keeps(self, values: Sequence[Any]) -> bool:
        """Return whether all values are floats of 32 bits, or None."""
        return {*map(type, values)} <= {float, NoneType} and all(
            value is None or value == nearest_float32(value) for value in values
        )

    def exact(self, value: Any) -> Any:
        """Return the nearest float of 32 bits."""
        number = super().exact(value)
        nearest = number if number is None else nearest_float32(number)
        if nearest is not None and math.isinf(nearest) and math.isfinite(number):
            why = f"is {shown(value)}, which is too large for a float of 32 bits"
            raise UnfitValue(why)
        return nearest

    def read(self, value: Any) -> Any:
        """Return the float nearest to a number, which must show all of its digits."""
        number = super().read(value)
        return number if _shown_by_32_bits(number) else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return floats, null for NaN."""
        if pa.types.is_float32(array.type):
            array = refuse(array, pc.is_inf(array), problems, ", which JSON cannot hold")
            return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
        numbers = super().fit(array, problems)
        shows = pa.array([value is None or _shown_by_32_bits(value) for value in numbers.to_pylist()], pa.bool_())
        return refuse(numbers, pc.invert(shows), problems, ", of which a float of 32 bits loses digits").cast(self.type)


def _shown_by_32_bits(number: float) -> bool:
    """Return whether the shortest text of the nearest float of 32 bits is that of a number."""
    nearest = nearest_float32(number)
    return math.isfinite(number) == math.isfinite(nearest) and (
        nearest == number or float(str(np.float32(number))) == number
    )


class DecimalNumber(ScalarKind):
    """Decimals of a declared number of digits. They are exact: one with more digits is refused and never rounded."""

    python = Decimal
    annotation = None  # msgspec would take floats and texts for decimals
    parse = staticmethod(parsed_decimal)
    notation = "number"

    def __init__(self, precision: int, scale: int) -> None:
        """Take the number of all digits, and of those behind the point."""
        self.precision, self.scale = precision, scale
        self.type = self.sink_type = self.through = pa.decimal128(precision, scale)
        self._last_place = Decimal(1).scaleb(-scale)
        self.contentless = Decimal(0)

    def keeps(self, values: Sequence[Any]) -> bool:
        """Return whether all values have the column's digits behind the point.

        Arrow would make them of others, but pyarrow 26 gives wrong numbers where it drops 39 zeros and more: `1.55` and 39 zeros is 0.00.
        """
        numbers = values if None not in values else [value for value in values if value is not None]
        return super().keeps(values) and all(map(self._last_place.same_quantum, numbers))

    def __str__(self) -> str:
        """Return what an error calls such a number."""
        return f"a decimal of {self.precision} digits, {self.scale} of them behind the point"

    def values(self, array: pa.Array) -> list[Any]:
        """Return decimals. By way of texts this takes a third of the time of `to_pylist` (timeit)."""
        return [None if text is None else Decimal(text) for text in array.cast(pa.string()).to_pylist()]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds numbers."""
        return is_number(kind)

    def exact(self, value: Any) -> Any:
        """Return a decimal, also for an integer."""
        if value is None:
            return None
        if type(value) not in {Decimal, int}:
            return super().exact(value)
        return self._fitting(value)

    def read(self, value: Any) -> Any:
        """Return a number, which JSON may write as a text to keep its digits."""
        return self._fitting(value) if type(value) in NUMBERS or isinstance(value, str) else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return decimals."""
        if pa.types.is_floating(array.type):
            return self._shown_by(array, problems)
        if pa.types.is_integer(array.type):
            array = array.cast(pa.decimal128(_DIGITS_OF_INTEGERS, 0))
        return self._cast(array, problems)

    def _shown_by(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the decimals that floats show: a float of 32 bits shows 0.1, though as one of 64 bits it is 0.10000000149."""
        texts = (array.cast(pa.float32()) if pa.types.is_float16(array.type) else array).cast(pa.string())
        return pa.array(self._parsed(array, texts.to_pylist(), self._exactly, problems), self.type)

    def _exactly(self, value: float | Decimal | str) -> Decimal | None:
        """Return the number that a value shows at the column's digits; None for one that needs more, and for no number."""
        number = exact_decimal(value)
        return None if number is None else with_digits(number, self.precision, self.scale)

    def _fitting(self, value: float | Decimal | str) -> Decimal:
        number = self._exactly(value)
        return self._refuse(value) if number is None else number


_DIGITS_OF_INTEGERS: Final = 20
"""Digits of the largest integer of 64 bits."""


class UndeclaredDecimal(DecimalNumber):
    """Decimals without declared digits, which no column has."""

    def __init__(self) -> None:
        """Make a kind of any digits."""
        super().__init__(MOST_DIGITS, 0)


class Truth(ScalarKind):
    """Truth values."""

    type = sink_type = through = pa.bool_()
    python = annotation = bool
    contentless = False
    parse = staticmethod(parsed_truth)
    notation = "truth"
    can_be_map_key = False

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds truth values."""
        return bool(pa.types.is_boolean(kind))

    def read(self, value: Any) -> Any:
        """Return a truth value."""
        return value if isinstance(value, bool) else self._refuse(value)


WIDTHS: Final[Mapping[str, ScalarKind]] = {
    "int8": SizedInteger(8),
    "int16": SizedInteger(16),
    "int32": SizedInteger(32),
    "int64": SizedInteger(64),
}
"""Kinds of whole numbers by the marks of their annotations."""
