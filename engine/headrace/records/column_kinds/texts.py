"""Kinds of columns: texts, values that are stored as texts, choices, and bytes."""

from __future__ import annotations

import base64
import binascii
import enum
import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, Literal
from uuid import UUID

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from headrace.api.records import canonical_encoder
from headrace.records.array_rules import PER_SECOND
from headrace.records.column_kinds.kind import PythonType, ScalarKind
from headrace.records.column_kinds.numbers import Integer
from headrace.records.foreign_values import is_text, readable, shown, shown_plain
from headrace.records.problems import Problem, Problems, UnfitValue, refuse, utf8
from headrace.records.value_rules import (
    FINER_THAN_MICROSECOND,
    INEXACT,
    OtherType,
    iso_time_of_day,
    nearest_float,
    parsed_json,
)


class Text(ScalarKind):
    """Texts of UTF-8. UUIDs, and texts marked as JSON, are texts as well."""

    type = sink_type = through = pa.string()
    python: PythonType = str
    annotation: Any = str
    contentless: Any = ""

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds texts."""
        return is_text(kind) or isinstance(kind, pa.UuidType | pa.JsonType)

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type sort in the order of the values: texts do where these are the texts."""
        return super().sorts_like(kind) or (self.is_plain and is_text(kind))

    def read(self, value: Any) -> Any:
        """Return a text."""
        if not isinstance(value, str):
            self._refuse(value)
        try:
            value.encode()
        except UnicodeEncodeError:
            why = f"is {shown(value)}, which is not UTF-8"
            raise UnfitValue(why) from None
        return value

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts."""
        if isinstance(array.type, pa.UuidType):
            array = pa.array(map(_uuid_text, array.storage.to_pylist()), pa.string())
        elif isinstance(array.type, pa.JsonType):
            array = array.storage
        return utf8(self._cast(array, problems), problems)


def _uuid_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


class Uuid(Text):
    """UUIDs. Columns hold their texts of 36 characters, in lower case."""

    python: PythonType = UUID
    is_plain = False
    annotation = None  # msgspec would take texts
    contentless = str(UUID(int=0))

    def __str__(self) -> str:
        """Return what an error calls a UUID."""
        return "a UUID such as 123e4567-e89b-12d3-a456-426614174000"

    def exact(self, value: Any) -> Any:
        """Return the text of a UUID."""
        return str(value) if type(value) is UUID else super().exact(value)

    def values(self, array: pa.Array) -> list[Any]:
        """Return UUIDs."""
        return [None if text is None else UUID(text) for text in array.to_pylist()]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds UUIDs, texts or 16 bytes."""
        is_bytes = pa.types.is_fixed_size_binary(kind) and kind.byte_width == _UUID_BYTES
        return is_bytes or is_text(kind) or isinstance(kind, pa.UuidType)

    def read(self, value: Any) -> Any:
        """Return a UUID's text, in lower case, of a text with or without dashes or of 16 bytes."""
        text = _uuid_text(value) if isinstance(value, bytes) and len(value) == _UUID_BYTES else value
        uuid = _uuid(text) if isinstance(text, str) else None
        return self._refuse(value) if uuid is None else uuid

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the texts of UUIDs."""
        if not is_text(array.type):
            array = array.storage if isinstance(array.type, pa.UuidType) else array
            return pa.array(map(_uuid_text, array.to_pylist()), pa.string())
        texts = utf8(array, problems)
        return pa.array(self._parsed(texts, texts.to_pylist(), _uuid, problems), pa.string())


_UUID_BYTES: Final = 16
_UUID: Final = re.compile(
    r"[0-9a-f]{8}(-?)[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.ASCII | re.IGNORECASE
)


def _uuid(text: str) -> str | None:
    """Return the plain text of a UUID; None for a text that is none."""
    return str(UUID(text)) if _UUID.fullmatch(text) else None


class TimeOfDay(Text):
    """Times of day, without a zone. Delta has no type for them, so columns hold their texts of ISO 8601, which sort as they do."""

    python: PythonType = time
    is_plain = False
    annotation = None  # msgspec would take texts
    contentless = "00:00:00"

    def __str__(self) -> str:
        """Return what an error calls a time of day."""
        return "a time of day such as 23:59:59"

    def declared(self, info: inspect.Type) -> ScalarKind | None:
        """Return the kind; None for a time with a zone, whose offset depends on the day."""
        return None if getattr(info, "tz", None) else self

    def exact(self, value: Any) -> Any:
        """Return the text of a time of day."""
        if type(value) is not time:
            return super().exact(value)
        if value.tzinfo is not None:
            why = f"is {shown(value)}, which has a zone"
            raise UnfitValue(why)
        return value.isoformat()

    def values(self, array: pa.Array) -> list[Any]:
        """Return times of day."""
        return [None if text is None else time.fromisoformat(text) for text in array.to_pylist()]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds times of day or texts."""
        return bool(pa.types.is_time(kind)) or is_text(kind)

    def read(self, value: Any) -> Any:
        """Return the text of a time of day, also for one that is written in another way."""
        timestamp = iso_time_of_day(value) if isinstance(value, str) else value
        return timestamp.isoformat() if type(timestamp) is time else self._refuse(value)

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return the texts of times of day."""
        if is_text(array.type):
            texts = utf8(array, problems)
            times = self._parsed(texts, texts.to_pylist(), iso_time_of_day, problems)
            return pa.array([None if value is None else value.isoformat() for value in times], pa.string())
        return pa.array([self._in_day(value, at, problems) for at, value in enumerate(array)], pa.string())

    @staticmethod
    def _in_day(value: pa.Scalar, position: int, problems: Problems) -> str | None:
        """Return the text of a stored time of day; None, and a problem, for one outside the day or between microseconds."""
        number, per_second = value.value, PER_SECOND[value.type.unit]
        if number is None:
            return None
        microseconds, rest = divmod(number * 1_000_000, per_second)
        if rest or not 0 <= microseconds < _MICROSECONDS_OF_DAY:
            why = FINER_THAN_MICROSECOND if rest else ", which is no time of a day"
            problems.setdefault(position, Problem("", f"is {number} {value.type.unit} since midnight{why}"))
            return None
        return (_MIDNIGHT + timedelta(microseconds=microseconds)).time().isoformat()


_MICROSECONDS_OF_DAY: Final = 86_400_000_000
_MIDNIGHT: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Json(Text):
    """Free JSON. Records hold what it stands for (dicts, lists, texts, numbers, truth values, None), and columns hold its text."""

    python: PythonType = object
    is_plain = False
    annotation = None  # msgspec would take what JSON cannot hold
    contentless = "null"
    can_be_key = False
    parse = staticmethod(parsed_json)
    can_be_map_key = False

    def __str__(self) -> str:
        """Return what an error calls it."""
        return "JSON"

    def exact(self, value: Any) -> Any:
        """Return the text of a value that JSON can hold, null as None."""
        return None if value is None else self._written(value)

    def values(self, array: pa.Array) -> list[Any]:
        """Return what the texts stand for."""
        return [None if text is None else msgspec.json.decode(text) for text in array.to_pylist()]

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds texts, lists, maps or structs."""
        return is_text(kind) or isinstance(kind, pa.JsonType) or bool(pa.types.is_nested(kind))

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type sort in the order of JSON, which has none."""
        del kind
        return True

    def read(self, value: Any) -> Any:
        """Return the text of a value of a file."""
        return self._written(_with_floats(value))

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return texts of JSON; a null is null, and so is the JSON null."""
        if is_text(array.type) or isinstance(array.type, pa.JsonType):
            texts = utf8(array.storage if isinstance(array.type, pa.JsonType) else array, problems)
            values = [None if text is None else parsed_json(text) for text in texts.to_pylist()]
        else:
            values = [readable(value) for value in array]
        return pa.array([self._or_problem(value, at, problems) for at, value in enumerate(values)], pa.string())

    def _or_problem(self, value: Any, position: int, problems: Problems) -> str | None:
        try:
            return None if value is None else self.read(value)
        except UnfitValue as error:
            problems.setdefault(position, error.problem)
            return None

    def _written(self, value: Any) -> str:
        try:
            return _canonical(_checked_json(value)).decode()
        except (UnicodeEncodeError, RecursionError):
            self._refuse(value)


_canonical: Final = canonical_encoder("deterministic")
"""Encoder by which equal values of JSON have equal texts."""


def _checked_json(value: Any) -> Any:
    """Return a value that JSON can hold. Raises `UnfitValue` for another one, and for one with a part that is another."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                why = f"has the key {shown(key)}, which is no text"
                raise UnfitValue(why)
        return {key: _checked_json(item) for key, item in value.items()}
    if type(value) in {list, tuple}:  # a named tuple is a value of a type that JSON lacks
        return [*map(_checked_json, value)]
    if isinstance(value, str | bool | int) or value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    why = f"has {shown_plain(value)}, which JSON cannot hold"
    raise UnfitValue(f"is {value}, which is not JSON" if isinstance(value, OtherType) else why)


def _with_floats(value: Any) -> Any:
    """Return a plain value with floats in place of decimals. Raises `UnfitValue` for one of which a float loses digits."""
    if isinstance(value, dict):
        return {key: _with_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [*map(_with_floats, value)]
    if not isinstance(value, Decimal):
        return value
    number = nearest_float(value)
    if number is None:
        raise UnfitValue(f"has {shown_plain(value)}{INEXACT}")
    return number


class _Chosen(ScalarKind):
    """What choices have beside their texts or numbers: records hold members of an enum, and columns their values."""

    allowed: Mapping[Any, Any]

    def __init__(self, allowed: Mapping[Any, Any]) -> None:
        """Take what records hold, by what columns hold."""
        self.allowed = allowed
        self.annotation = Literal.__getitem__(tuple(allowed))
        self.contentless = next(iter(allowed))
        self._is_enum = any(value is not held for held, value in allowed.items())
        self._why = f", not one of {', '.join(map(str, allowed))}"

    def without_names(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the values of members of an enum."""
        if not self._is_enum:
            return values
        return [value._value_ if isinstance(value, enum.Enum) else value for value in values]

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values as records hold them."""
        values = self.plain(array)
        return [*map(self.allowed.get, values)] if self._is_enum else values

    def plain(self, array: pa.Array) -> list[Any]:
        """Return the values without the enum that names them."""
        values: list[Any] = array.to_pylist()
        return values

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return values that are allowed."""
        array = super().fit(array, problems)
        wrong = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(self.allowed, self.type))))
        return refuse(array, wrong, problems, self._why)


class Choice(_Chosen, Text):
    """Texts of a literal or enum."""


class NumberChoice(_Chosen, Integer):
    """Whole numbers of a literal or enum."""


class Binary(ScalarKind):
    """Bytes, in texts as base64."""

    type = sink_type = through = pa.binary()
    python = bytes
    annotation = None  # msgspec would take text for base64
    contentless = b""

    def takes(self, kind: pa.DataType) -> bool:
        """Return whether a foreign type holds bytes."""
        is_variable = pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
        return bool(is_variable or pa.types.is_fixed_size_binary(kind))

    def exact(self, value: Any) -> Any:
        """Return bytes, also for a bytearray."""
        return bytes(value) if isinstance(value, bytearray) else super().exact(value)

    def read(self, value: Any) -> Any:
        """Return bytes, also for a text of base64."""
        if isinstance(value, bytes):
            return value
        if not isinstance(value, str):
            self._refuse(value)
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError):
            why = f"is {shown(value)}, which is not base64"
            raise UnfitValue(why) from None
