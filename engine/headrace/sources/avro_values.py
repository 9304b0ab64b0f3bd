"""Values of Avro, in files and in messages: what their logical types stand for, and records as text.

fastavro itself makes Python's `datetime`, and fails for a whole file if one value is outside its years.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from typing import Any, Final

import msgspec

from headrace.records.value_rules import Instant, OtherType
from headrace.sources.connect_types import ANY_SCALE, NAMED_TYPES, Type

_PER_SECOND: Final = {"millis": 1_000, "micros": 1_000_000, "nanos": 1_000_000_000}
_TIMES: Final = ("timestamp", "local-timestamp")
_PREFIX: Final = "headrace-"
_LARGEST_SCALE: Final = 1_000
_ALL_DIGITS: Final = Context(prec=1_000_000)
_CONNECT_NAME: Final = "connect.name"
_Read = Callable[[Any, dict[str, Any]], Any]


def register_readers() -> None:
    """Let fastavro call our readers for values of the types that `with_own_types` names."""
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS.update(_READERS)


def with_own_types(schema: Any, *, of_connect: bool = False) -> Any:
    """Return a schema whose logical types have our names, so that fastavro calls our readers wherever such a value is.

    That is also behind a named type that is used again, and in any branch of a union. Other logical types are left out. `of_connect`: types
    that Kafka Connect and Debezium name are taken for what they say.
    """
    if isinstance(schema, list):
        return [with_own_types(part, of_connect=of_connect) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {
        name: part if name in {"default", "doc", "aliases", "symbols"} else with_own_types(part, of_connect=of_connect)
        for name, part in schema.items()
        if name != "logicalType"
    }
    names = (schema.get(_CONNECT_NAME) if of_connect else None, schema.get("logicalType"))
    kind = schema.get("type")
    known = next((name for name in names if isinstance(name, str) and f"{kind}-{_PREFIX}{name}" in _READERS), None)
    return own if known is None else own | {"logicalType": f"{_PREFIX}{known}"}


def _instant(per_second: int, *, is_local: bool) -> _Read:
    return lambda value, _: Instant(value, per_second, is_local)


def _time_of_day(per_second: int) -> _Read:
    def read(value: int, schema: dict[str, Any]) -> Any:
        if not 0 <= value < _SECONDS_OF_DAY * per_second:
            return _other(value, schema)
        return (_MIDNIGHT + timedelta(microseconds=value * 1_000_000 // per_second)).time()

    return read


def _duration(value: bytes, schema: dict[str, Any]) -> Any:
    """Return a duration of days and milliseconds; months have no length."""
    months, days, milliseconds = struct.unpack("<III", value)
    try:
        return _other(value, schema) if months else timedelta(days=days, milliseconds=milliseconds)
    except OverflowError:
        return _other(value, schema)


def _decimal(value: bytes, schema: dict[str, Any]) -> Any:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= _LARGEST_SCALE:
        return OtherType(f"{value!r} (decimal of scale {scale!r:.20})")
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _ALL_DIGITS)


def _decimal_of_any_scale(value: dict[str, Any], schema: dict[str, Any]) -> Any:
    unscaled = value.get("value")
    return _decimal(unscaled, schema | value) if isinstance(unscaled, bytes) else _other(value, schema)


def _of_connect(kind: Type) -> _Read:
    def read(value: Any, schema: dict[str, Any]) -> Any:
        try:
            return kind(value)
        except (ValueError, OverflowError):
            return _other(value, schema)

    return read


def _day(value: int, schema: dict[str, Any]) -> Any:
    try:
        return _EPOCH + timedelta(days=value)
    except OverflowError:
        return _other(value, schema)


def _other(value: Any, schema: dict[str, Any]) -> OtherType:
    return OtherType(f"{value!r} ({schema['logicalType'].removeprefix(_PREFIX)})")


_EPOCH: Final = date(1970, 1, 1)
_SECONDS_OF_DAY: Final = 86_400
_MIDNIGHT: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGICAL: Final[dict[tuple[str, str], _Read]] = {
    **{
        ("long", f"{name}-{unit}"): _instant(per, is_local=name.startswith("local"))
        for name in _TIMES
        for unit, per in _PER_SECOND.items()
    },
    **dict.fromkeys((("bytes", "decimal"), ("fixed", "decimal")), _decimal),
    ("int", "date"): _day,
    ("int", "time-millis"): _time_of_day(1_000),
    ("long", "time-micros"): _time_of_day(1_000_000),
    ("fixed", "duration"): _duration,
}
"""Readers of values by their type and logical type."""

_NAMED: Final[dict[tuple[str, str], _Read]] = {
    **{(kind, name): _of_connect(read) for name, read in NAMED_TYPES.items() for kind in ("int", "long")},
    ("record", ANY_SCALE): _decimal_of_any_scale,
}
"""The same by the names that Kafka Connect and Debezium give to types."""


def _reader(read: _Read) -> Callable[..., Any]:
    return lambda value, schema=None, _reader_schema=None: read(value, schema)


_READERS: Final = {f"{kind}-{_PREFIX}{logical}": _reader(read) for (kind, logical), read in (_LOGICAL | _NAMED).items()}
"""The same by the keys of fastavro."""


def record_text(record: Any) -> str:
    """Return a record as a JSON object, whatever values it has."""
    return msgspec.json.encode(_shown(record), enc_hook=str).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Instant):
        return value.milliseconds
    if isinstance(value, OtherType):
        return value.text
    if isinstance(value, dict):
        return {_shown(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
