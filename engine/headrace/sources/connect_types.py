"""Types that schemas of Kafka Connect and Debezium name: days, times, durations and decimals, which JSON has as numbers or in Base64."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final

import msgspec

Type = Callable[[Any], Any]
"""Maker of the plain value, which records take, of a value of JSON. Raises `ValueError` and the like where it does not fit."""


class _Field(msgspec.Struct):
    """Field or type in a schema; the schema of a whole event, too."""

    field: str = ""
    name: str | None = None
    fields: list[_Field] = []
    items: _Field | None = None
    parameters: dict[str, str] | None = None


@lru_cache(64)
def types_of_rows(schema: bytes) -> Mapping[str, Type]:
    """Return the types of the fields of `before` and `after` whose values JSON has in a form of its own; of none without a schema.

    Raises `msgspec.MsgspecError` and `RecursionError` for a schema that is none of Kafka Connect.
    """
    parts = {part.field: part.fields for part in _fields(schema)}
    return _types(parts.get("after") or parts.get("before") or ())


@lru_cache(64)
def types_of_key(schema: bytes) -> Mapping[str, Type]:
    """Return the types of the fields of a key. Raises as `types_of_rows` does."""
    return _types(_fields(schema))


def _fields(schema: bytes) -> Sequence[_Field]:
    whole = msgspec.json.decode(schema, type=_Field | None) if schema else None
    return () if whole is None else whole.fields


def _types(fields: Sequence[_Field]) -> dict[str, Type]:
    return {field.field: kind for field in fields if (kind := _type_of(field)) is not None}


def _type_of(field: _Field) -> Type | None:
    """Return the type of a field; None where records take its values as they are."""
    if field.name == "org.apache.kafka.connect.data.Decimal":
        return partial(_decimal, (field.parameters or {}).get("scale", "0"))
    if (kind := NAMED_TYPES.get(field.name or "")) is not None:
        return kind
    if field.items is not None and (inner := _type_of(field.items)) is not None:
        return partial(_list, inner)
    return partial(_struct, types) if (types := _types(field.fields)) else None


def _list(inner: Type, values: list[Any]) -> list[Any]:
    return [None if value is None else inner(value) for value in values]


def _struct(types: Mapping[str, Type], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value if value is None or name not in types else types[name](value) for name, value in values.items()}


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - times of databases without a zone


def _whole(number: Any) -> int:
    if type(number) is not int:
        msg = "it is no integer"
        raise ValueError(msg)
    return number


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=_whole(days))).isoformat()


def _time_of(units: int, number: int) -> str:
    """Return the time of a number of units after 1970, a second having that many `units`: to the unit, without a zone."""
    seconds, parts = divmod(_whole(number), units)
    whole = _EPOCH + timedelta(seconds=seconds)
    return f"{whole.isoformat()}.{parts:0{len(str(units)) - 1}d}"


def _time_of_day(units: int, number: int) -> str:
    if not 0 <= _whole(number) < 86_400 * units:
        msg = "a day has 24 hours"
        raise ValueError(msg)
    return _time_of(units, number).partition("T")[2]


def _duration(microseconds: int) -> str:
    sign, (seconds, parts) = "-" if _whole(microseconds) < 0 else "", divmod(abs(microseconds), 1_000_000)
    return f"{sign}PT{seconds}.{parts:06d}S"


def _decimal(scale: int | str, value: Any) -> Any:
    """Return a decimal from its unscaled value, the bytes of an integer in Base64; a number as it is (`decimal.format=NUMERIC`)."""
    if type(value) is not str:
        return value
    unscaled = int.from_bytes(base64.b64decode(value, validate=True), signed=True)
    if not (places := int(scale)):
        return unscaled
    digits = tuple(map(int, str(abs(unscaled))))
    return f"{Decimal((int(unscaled < 0), digits, -places)):f}"


def _decimal_of_any_scale(value: Mapping[str, Any]) -> Any:
    return _decimal(value["scale"], value["value"])


ANY_SCALE: Final = "io.debezium.data.VariableScaleDecimal"
NAMED_TYPES: Final[Mapping[str, Type]] = {
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.Timestamp": partial(_time_of, 1_000),
    "org.apache.kafka.connect.data.Timestamp": partial(_time_of, 1_000),
    "io.debezium.time.MicroTimestamp": partial(_time_of, 1_000_000),
    "io.debezium.time.NanoTimestamp": partial(_time_of, 1_000_000_000),
    "io.debezium.time.Time": partial(_time_of_day, 1_000),
    "org.apache.kafka.connect.data.Time": partial(_time_of_day, 1_000),
    "io.debezium.time.MicroTime": partial(_time_of_day, 1_000_000),
    "io.debezium.time.NanoTime": partial(_time_of_day, 1_000_000_000),
    "io.debezium.time.MicroDuration": _duration,
    ANY_SCALE: _decimal_of_any_scale,
}
"""Types by their names in schemas. Values of all others stand in JSON as records take them."""
