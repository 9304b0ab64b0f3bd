"""Texts that sort like values: rankings compare them, and their state is sorted by them.

A text is ASCII, and no text is a prefix of another one for values of the same type. So texts of several values can be
concatenated, and JSON keeps their order.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any, NoReturn, get_args, get_origin

from headrace.operators._value_types import ValueType, annotated_type

SortText = Callable[[Any], str]

_TOP_BIT = 1 << 63
_ALL_BITS = (1 << 64) - 1
_REVERSED = str.maketrans("0123456789abcdef.", "fedcba9876543210~")
_NULL, _VALUE = "0", "1"


def sort_text(shown: str, by: ValueType, *, descending: bool) -> SortText:
    """Return the function that makes texts of values of a type. None sorts before all values; `descending` reverses the order.

    `shown` names the values in errors. The function raises `ValueError` for a whole number of more than 64 bits, and a
    float that is NaN or infinite, and `TypeError` for a value of another type. Raises `TypeError` where the type is not
    known, or has no order.
    """
    ascending = _text_of(shown, by)
    if descending:
        return lambda value: ascending(value).translate(_REVERSED)
    return ascending


def _text_of(shown: str, by: ValueType) -> SortText:
    if by.type is None:
        msg = f"annotate what the function {shown} returns, or give a field"
        raise TypeError(msg)
    if get_origin(by.type) is tuple and Ellipsis not in get_args(by.type):
        return _or_null(_tuple_text(shown, by))
    maker = _MAKERS.get(by.type)
    if maker is None:
        msg = f"{shown} is {by}, and only int, float, str, bool, bytes and tuples of them can be compared"
        raise TypeError(msg)
    held = (int, float) if by.type is float else by.type

    def text(value: Any) -> str:
        if not isinstance(value, held):
            _refuse(shown, by, value)
        return maker(value, shown)

    return _or_null(text)


def _tuple_text(shown: str, by: ValueType) -> SortText:
    parts = [_text_of(shown, annotated_type(part)) for part in get_args(by.type)]

    def text(values: Any) -> str:
        if not isinstance(values, tuple) or len(values) != len(parts):
            _refuse(shown, by, values)
        return "".join(part(value) for part, value in zip(parts, values, strict=True))

    return _or_null(text)


def _refuse(shown: str, by: ValueType, value: object) -> NoReturn:
    msg = f"{shown} is annotated as {by}, but gave {value!r:.100}"
    raise TypeError(msg)


def _or_null(text: SortText) -> SortText:
    return lambda value: _NULL if value is None else _VALUE + text(value)


def _integer(value: int, shown: str) -> str:
    if not -_TOP_BIT <= value < _TOP_BIT:
        msg = f"{shown} is {value}, more than 64 bits can hold"
        raise ValueError(msg)
    return f"{value + _TOP_BIT:016x}"


def _float(value: float, shown: str) -> str:
    if not math.isfinite(value):
        msg = f"{shown} is {value}, which can be neither compared nor stored: filter() such records"
        raise ValueError(msg)
    (bits,) = struct.unpack(">Q", struct.pack(">d", value + 0.0))  # -0.0 and 0.0 are equal
    return f"{bits ^ (_ALL_BITS if bits & _TOP_BIT else _TOP_BIT):016x}"


def _text(value: str, _: str) -> str:
    return f"{value.encode().hex()}."


def _bytes(value: bytes, _: str) -> str:
    return f"{value.hex()}."


def _bool(value: bool, _: str) -> str:  # noqa: FBT001 - it is the value
    return str(int(value))


_MAKERS: dict[Any, Callable[[Any, str], str]] = {
    int: _integer,
    float: _float,
    str: _text,
    bytes: _bytes,
    bool: _bool,
}
