"""Key of a record, as `key_by` defines it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, partial
from typing import Any, Final, get_args
from uuid import UUID

import msgspec

from headrace.api.declared_values import Ends, form_of_results, form_of_type, scaled
from headrace.api.graph import KeyBy
from headrace.api.records import Float32, digits_of, nearest_float32, shortest

_Form = Callable[[Any], object]
_AS_THEY_ARE: Final = frozenset({str, int, bool})
_Scalar = str | int | float | bool | bytes | date | timedelta | UUID


def key_reader(key: KeyBy) -> Callable[[msgspec.Struct], object]:
    """Return the function that computes a record's key: a scalar, a tuple of several, or None when any part of it is null.

    What a user's function returns becomes what a field of the type holds that the function declares to return: then equal values are one key,
    whatever Python's type of them is. The function raises `TypeError` for a result that such a field refuses and for anything that is no key, and
    `ValueError` for NaN, infinity and too many digits.
    """
    if key.function is None:
        fields = key.fields
        return lambda record: stage_key(record, fields)
    function, form = key.function, form_of_results(key.function, _OF_KEYS)
    return lambda record: form(function(record))


def stage_key(record: msgspec.Struct, fields: tuple[str, ...]) -> object:
    """Return a record's key: the field, or a tuple of several; None when any of them is null.

    The key equals that of the record after it was stored and read again, so 5 in a field of type float is 5.0, and a decimal
    has its declared digits. And -0.0 is 0.0, as in SQL: a table has one row for both.
    """
    values = [getattr(record, field) for field in fields]
    for place, as_stored in _stored_forms(type(record), fields):
        if values[place] is not None:
            values[place] = as_stored(values[place])
    if len(values) == 1:
        return values[0]
    return None if None in values else tuple(values)


def typed_key(value: Any, types: Sequence[Any] | None, key: KeyBy) -> object:
    """Return a key that was read from JSON as `key_reader` makes it. `types` are those of its parts; None: nothing declares them.

    Raises `ValueError` for another number of parts and for a null, `msgspec.ValidationError` for a part of another type, and the
    errors of `key_reader`.
    """
    if types is None:
        return tuple(value) if isinstance(value, list) else value
    if len(types) == 1:
        value = [value]
    if not isinstance(value, list) or len(value) != len(types):
        msg = f"the key has {len(types)} parts: write them as a JSON list"
        raise ValueError(msg)
    if None in value:
        msg = "no part of the key is null"
        raise ValueError(msg)
    parts = [_typed_part(part, type_, key) for part, type_ in zip(value, types, strict=True)]
    return parts[0] if len(parts) == 1 else tuple(parts)


def _typed_part(part: Any, type_: Any, key: KeyBy) -> object:
    typed = msgspec.convert(part, type=type_)
    if key.function is not None:
        return form_of_type(type_, _OF_KEYS)(typed)
    form = _stored_form(type_)
    return typed if form is None else form(typed)


@cache
def _stored_forms(record: type[msgspec.Struct], fields: tuple[str, ...]) -> tuple[tuple[int, _Form], ...]:
    """Return the places of the fields whose values have another form once they are stored, each with what makes that form."""
    types = {field.name: field.type for field in msgspec.structs.fields(record)}
    forms = [(place, _stored_form(types[name])) for place, name in enumerate(fields)]
    return tuple((place, form) for place, form in forms if form is not None)


def _stored_form(annotation: object) -> _Form | None:
    parts = [*_parts(annotation)]
    if Float32 in parts:
        return _plain_float32
    if float in parts and int not in parts:
        return _plain_float
    if datetime in parts:
        return _in_utc
    digits = digits_of(annotation)
    return None if digits is None else partial(scaled, digits)


def _plain_float(value: Any) -> float:
    return float(value) + 0.0


def _plain_float32(value: Any) -> float:
    return nearest_float32(float(value)) + 0.0


def _in_utc(value: datetime) -> datetime:
    """Return a time with a zone in UTC: equal instants are one key. One without a zone stays as it is."""
    return value if value.tzinfo is None else value.astimezone(UTC)


def _normalised(key: object) -> object:
    """Return a key of any type, with -0.0 as 0.0. Raises `TypeError` for what is no key, `ValueError` for NaN."""
    if type(key) in _AS_THEY_ARE:
        return key
    if isinstance(key, tuple):
        return _without_null([_normalised(part) for part in key])
    if isinstance(key, float):
        return _finite(key) + 0.0
    if isinstance(key, Decimal):
        return _shortest(key)
    if isinstance(key, datetime):
        return _in_utc(key)
    if key is None or isinstance(key, _Scalar) or (isinstance(key, time) and key.tzinfo is None):
        return key
    msg = f"a key is text, a number, a truth value, a UUID, a time or a tuple of them, not {type(key).__name__}: {key!r:.100}"
    raise TypeError(msg)


def _without_null(parts: list[Any]) -> object:
    return None if None in parts else tuple(parts)


_OF_KEYS: Final = Ends(_normalised, _without_null)
"""What a user's function returns is a key at last."""


def _shortest(key: Decimal) -> Decimal:
    """Return a decimal without zeros at the end: 1.0 and 1.00 are one key, and so are 0 and -0."""
    if not key.is_finite():
        msg = f"a key cannot be {key}: return another value, or None to put the record aside"
        raise ValueError(msg)
    return shortest(key)


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
