"""Key of a record, as `key_by` defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args

import msgspec

from headrace.api.graph import KeyBy

_Scalar = str | int | float | bool | bytes


def key_reader(key: KeyBy) -> Callable[[msgspec.Struct], object]:
    """Return the function that computes a record's key: a scalar, a tuple of several, or None when any part of it is null.

    It raises `TypeError` where a user's function returns anything else, and `ValueError` for NaN and infinity.
    """
    if key.function is None:
        fields = key.fields
        return lambda record: stage_key(record, fields)
    function = key.function
    return lambda record: _normalised(function(record))


def stage_key(record: msgspec.Struct, fields: tuple[str, ...]) -> object:
    """Return a record's key: the field, or a tuple of several; None when any of them is null.

    The key equals that of the record after it was stored and read again, so 5 in a field of type float is 5.0. And
    -0.0 is 0.0, as in SQL: a table has one row for both.
    """
    floats = float_fields(type(record), fields)
    values = [getattr(record, field) for field in fields]
    if floats:
        values = [
            float(value) + 0.0 if name in floats and value is not None else value
            for name, value in zip(fields, values, strict=True)
        ]
    if len(values) == 1:
        return values[0]
    return None if None in values else tuple(values)


@cache
def float_fields(record: type[msgspec.Struct], fields: tuple[str, ...]) -> frozenset[str]:
    """Return the fields that hold only floats."""
    types = {field.name: [*_parts(field.type)] for field in msgspec.structs.fields(record)}
    return frozenset(name for name in fields if float in types[name] and int not in types[name])


def _normalised(key: object) -> object:
    """Return a key of a user's function, with -0.0 as 0.0. Raises `TypeError` for another type, `ValueError` for NaN."""
    if isinstance(key, tuple):
        parts = [_normalised(part) for part in key]
        return None if None in parts else tuple(parts)
    if isinstance(key, float):
        return _finite(key) + 0.0
    if key is None or isinstance(key, _Scalar):
        return key
    msg = f"a key is text, a number, a truth value or a tuple of them, not {type(key).__name__}: {key!r:.100}"
    raise TypeError(msg)


def _finite(key: float) -> float:
    if math.isfinite(key):
        return key
    msg = f"a key cannot be {key}, since JSON cannot hold it: return another value, or None to put the record aside"
    raise ValueError(msg)


def _parts(annotation: object) -> Iterator[object]:
    """Yield an annotation and the types that it contains."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
