"""Values of the type VARIANT as texts of JSON (Parquet specification, "Variant Binary Encoding" and "Variant Shredding").

JSON has fewer types: days, times and UUIDs are texts of ISO 8601, bytes are texts in base 64, NaN and infinity are texts.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Context, Decimal
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
import numpy as np
import pyarrow as pa

from headrace.names import counted
from headrace.sources.folder.format import DamagedFileError

_PRIMITIVE, _SHORT_TEXT, _OBJECT, _ARRAY = range(4)
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")
_EXACT: Final = Context(prec=40)
_NUMBERS: Final = {3: "<b", 4: "<h", 5: "<i", 6: "<q", 7: "<d", 14: "<f"}
_DECIMALS: Final = {8: 4, 9: 8, 10: 16}
_TIMES: Final[Mapping[int, tuple[Literal["us", "ns"], str]]] = {
    12: ("us", "Z"),
    13: ("us", ""),
    18: ("ns", "Z"),
    19: ("ns", ""),
}
_ABSENT: Final = object()


def json_texts(variants: Any) -> pa.Array:
    """Return an array of variants as texts of JSON, null for null. Raises `DamagedFileError` for bytes that are no variant."""
    try:
        texts = [None if row is None else _ENCODER.encode(_whole(row)).decode() for row in variants.to_pylist()]
    except (struct.error, LookupError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
        msg = f"a value of the type VARIANT is damaged: {error}"
        raise DamagedFileError(msg) from error
    return pa.array(texts, pa.large_string())


def _whole(row: Mapping[str, Any]) -> Any:
    value = _shredded(row, _Names(row["metadata"]))
    return None if value is _ABSENT else value


class _Names:
    """Names of fields that a variant refers to by number."""

    def __init__(self, metadata: bytes) -> None:
        if metadata[0] & 0x0F != 1:
            msg = f"its version is {metadata[0] & 0x0F}"
            raise ValueError(msg)
        size = (metadata[0] >> 6) + 1
        count = _number(metadata, 1, size)
        self._ends = [_number(metadata, 1 + size * (place + 1), size) for place in range(count + 1)]
        self._text = metadata[1 + size * (count + 2) :]

    def __getitem__(self, place: int) -> str:
        return self._text[self._ends[place] : self._ends[place + 1]].decode()


def _shredded(row: Mapping[str, Any], names: _Names) -> Any:
    """Return a value of which parts may be in columns of their own: in `typed_value`, those that fit its type."""
    typed, rest = row.get("typed_value"), row.get("value")
    if typed is None:
        return _ABSENT if rest is None else _value(rest, 0, names)
    if isinstance(typed, Mapping):
        fields = {name: _shredded(own, names) for name, own in typed.items()}
        others = {} if rest is None else _value(rest, 0, names)
        return {**others, **{name: value for name, value in fields.items() if value is not _ABSENT}}
    if isinstance(typed, list):
        return [_shredded(own, names) for own in typed]
    return _plain(typed)


def _value(content: bytes, at: int, names: _Names) -> Any:
    kind, header = content[at] & 0x03, content[at] >> 2
    if kind == _PRIMITIVE:
        return _primitive(content, at + 1, header)
    if kind == _SHORT_TEXT:
        return _part(content, at + 1, header).decode()
    if kind == _OBJECT:
        fields, values = _parts(content, at + 1, header & 0x03, (header >> 2 & 0x03) + 1, is_large=bool(header >> 4))
        return {names[field]: _value(content, value, names) for field, value in zip(fields, values, strict=True)}
    _, values = _parts(content, at + 1, header & 0x03, 0, is_large=bool(header >> 2))
    return [_value(content, value, names) for value in values]


def _parts(
    content: bytes, at: int, offset_header: int, field_size: int, *, is_large: bool
) -> tuple[Sequence[int], Sequence[int]]:
    """Return the numbers of an object's fields, none for an array, and the places of the values."""
    count_size, size = (4 if is_large else 1), offset_header + 1
    count = _number(content, at, count_size)
    fields = [_number(content, at + count_size + field_size * place, field_size) for place in range(count)]
    offsets = at + count_size + field_size * count
    begin = offsets + size * (count + 1)
    places = [begin + _number(content, offsets + size * place, size) for place in range(count)]
    return (fields if field_size else range(count)), places


def _primitive(content: bytes, at: int, kind: int) -> Any:
    if kind in {0, 1, 2}:
        return (None, True, False)[kind]
    if kind in _NUMBERS:
        return _plain(*struct.unpack_from(_NUMBERS[kind], content, at))
    if kind in _DECIMALS:
        digits = int.from_bytes(_part(content, at + 1, _DECIMALS[kind]), "little", signed=True)
        return _plain(Decimal(digits).scaleb(-content[at], _EXACT))
    if kind == 11:  # noqa: PLR2004 - the number of the type in the specification
        (days,) = struct.unpack_from("<i", content, at)
        return str(np.datetime64(days, "D"))
    if kind in _TIMES:
        unit, zone = _TIMES[kind]
        return f"{_time(content, at, unit)}{zone}"
    if kind in {15, 16}:
        part = _part(content, at + 4, _number(content, at, 4))
        return _plain(part) if kind == 15 else part.decode()  # noqa: PLR2004 - as above
    if kind == 17:  # noqa: PLR2004 - as above
        return _time(content, at, "us").partition("T")[2]
    if kind == 20:  # noqa: PLR2004 - as above
        return str(UUID(bytes=_part(content, at, 16)))
    msg = f"its type {kind} is not known"
    raise ValueError(msg)


def _time(content: bytes, at: int, unit: Literal["us", "ns"]) -> str:
    """Return a time of ISO 8601, without zeros at the end of a second's fraction."""
    (number,) = struct.unpack_from("<q", content, at)
    whole, _, fraction = str(np.datetime64(number, unit)).partition(".")
    digits = fraction.rstrip("0")
    return f"{whole}.{digits}" if digits else whole


def _plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
    if isinstance(value, Decimal):
        return Decimal(format(value.normalize(_EXACT), "f"))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, date | datetime | time | UUID):
        text = str(value) if isinstance(value, UUID) else value.isoformat()
        return text.replace("+00:00", "Z")
    return value


def _part(content: bytes, at: int, size: int) -> bytes:
    if at + size > len(content):
        msg = f"it ends after {counted(len(content), 'byte')}"
        raise ValueError(msg)
    return content[at : at + size]


def _number(content: bytes, at: int, size: int) -> int:
    return int.from_bytes(_part(content, at, size), "little")
