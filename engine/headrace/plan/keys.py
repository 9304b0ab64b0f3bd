"""The key of a record: what `key_by` makes of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import get_args

import msgspec

from headrace.api.graph import KeyBy

_Scalar = str | int | float | bool | bytes


def key_reader(key: KeyBy) -> Callable[[msgspec.Struct], object]:
    """Return what gives a record's key: a scalar, a tuple of several, or None when any part of it is null.

    What it returns raises `TypeError` for a key that a function has made of something else, and `ValueError` for NaN and
    infinity.
    """
    if key.function is None:
        fields = key.fields
        return lambda record: stage_key(record, fields)
    function = key.function
    return lambda record: _made(function(record))


def stage_key(record: msgspec.Struct, fields: tuple[str, ...]) -> object:
    """A record's key: the field, or a tuple of several; None when any of them is null.

    It is what the key is after the record was stored and read again, so 5 in a field of type float is 5.0. And
    -0.0 is 0.0, as it is to SQL: a table has one row for both.
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
    """Return those of the fields that hold floats alone."""
    types = {field.name: [*_parts(field.type)] for field in msgspec.structs.fields(record)}
    return frozenset(name for name in fields if float in types[name] and int not in types[name])


def _made(key: object) -> object:
    """A key that a function has made, with -0.0 as 0.0."""
    if isinstance(key, tuple):
        parts = [_made(part) for part in key]
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
    """An annotation, and what it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)
