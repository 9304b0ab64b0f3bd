"""Keys and values as JSON, by declared type, and the texts of a key that a user has written. The same bytes are in the backends and in Delta."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any, Generic, TypeVar, get_args

import msgspec

from headrace.api.records import shortest
from headrace.errors import StateSchemaError

T = TypeVar("T")

_NO_NAN = "(JSON has no NaN and no infinity: they become null.) "

encode = msgspec.json.Encoder(decimal_format="string").encode
"""Encode a key, a value or a record."""


class Codec(Generic[T]):
    """Encodes and decodes one declared type. It can decode everything that it has encoded."""

    __slots__ = ("_what", "read", "type")

    read: Callable[[bytes], T]
    """Returns the value in some bytes, as `decode` does, but raises msgspec's own errors."""

    def __init__(self, type: type[T], what: str) -> None:  # noqa: A002
        """Take the type; `what` names the state in errors, as in "state 'last_leg' of operator 'delay'"."""
        self.type = type
        self.read = msgspec.json.Decoder(type).decode
        self._what = what

    def encode_all(self, values: Sequence[T]) -> list[bytes]:
        """Return the JSON bytes of each value, as `encode` does, in less time. Raises its errors."""
        try:
            raws = [*map(encode, values)]
            deque(map(self.read, raws), maxlen=0)
        except (ValueError, TypeError, OverflowError):
            return [*map(self.encode, values)]  # raises the error that names the value
        return raws

    def encode(self, value: T) -> bytes:
        """Return the JSON bytes of a value.

        Raises `StateSchemaError` when `decode` could not read them back: if they were committed, no run
        could continue from them.
        """
        try:
            raw = encode(value)
            self.read(raw)
        except (ValueError, TypeError, OverflowError) as error:  # msgspec's own errors are ValueErrors
            msg = (
                f"{self._what} was given {value!r:.200}, which does not fit the declared type {self._type_name}: "
                f"{error}. {_NO_NAN if 'null' in str(error) else ''}Nothing was committed. Correct the function, or the "
                "declared type, then run again."
            )
            raise StateSchemaError(msg) from error
        return raw

    def decode(self, raw: bytes) -> T:
        """Return the value in `raw`.

        Raises `StateSchemaError` when the bytes do not fit the declared type.
        """
        try:
            return self.read(raw)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            msg = (
                f"{self._what} is stored as {raw[:200].decode(errors='replace')}, which does not fit the "
                f"declared type {self._type_name}: {error}. Nothing was committed. Fields may be added with defaults; for anything else "
                "give the state a migration, or restore an older checkpoint ('headrace checkpoints' lists them)"
            )
            raise StateSchemaError(msg) from error

    @property
    def _type_name(self) -> str:
        name: str = getattr(self.type, "__qualname__", "")
        return name if name and not get_args(self.type) else str(self.type)


def decode_key(raw: bytes) -> Any:
    """Return a key from its JSON bytes."""
    return msgspec.json.decode(raw)


class KeyCodec(Codec[T]):
    """Encodes the keys of a map: equal keys have the same text."""

    __slots__ = ("_is_plain",)

    def __init__(self, type: type[T], what: str) -> None:  # noqa: A002
        """Take the type of the keys; `what` names the state in errors."""
        super().__init__(type, what)
        self._is_plain = type in {str, int, bool}

    def encode(self, value: T) -> bytes:
        """Return the JSON text of a key. Raises `StateSchemaError` when `decode` could not read it back."""
        if self._is_plain and type(value) is self.type:
            try:
                return encode(value)
            except (ValueError, OverflowError):
                return super().encode(value)  # raises the error
        # 1 and 1.0 are one key of type float, so the text is made from the decoded value.
        decoded = self.decode(super().encode(value))
        return encode(_one_form(decoded))


def _one_form(key: Any) -> Any:
    """Return a key in the form that all equal keys share."""
    if type(key) is float:
        return key + 0.0  # -0.0 is 0.0
    if isinstance(key, Decimal):
        return shortest(key) if key.is_finite() else key
    if isinstance(key, datetime) and key.tzinfo is not None:
        return key.astimezone(UTC)
    return tuple(map(_one_form, key)) if isinstance(key, tuple) else key


_EXACT = 1 << 53
"""First integer from which on some integers are no floats."""


def key_texts(key: str) -> list[str]:
    """Return the JSON texts that a user may mean with `key`.

    These are `key` as a JSON string; if it is JSON, also `key` itself; if it is a whole number, also the number as a float.
    """
    texts = [msgspec.json.encode(key).decode()]
    try:
        value = msgspec.json.decode(key)
    except msgspec.DecodeError:
        return texts
    texts.insert(0, msgspec.json.encode(value).decode())
    if type(value) is int and abs(value) < _EXACT:
        texts.append(msgspec.json.encode(float(value)).decode())
    return texts


def written_keys(key: str) -> list[str]:
    """Return the JSON texts that a person may mean with `key`: those of `key_texts`, and those in which texts of times are stored times.

    A number that is followed by its time, as commands print it, means the number. Of a list with more than four times, the times stay texts.
    """
    number = without_times(key)
    texts = [*key_texts(key), *(key_texts(number) if number != key else ())]
    try:
        value = msgspec.json.decode(number)
    except msgspec.DecodeError:
        value = key
    else:
        if not isinstance(value, list):
            return texts  # a text in quotes is that text
    forms = [[part, *_forms_of_time(part)] for part in (value if isinstance(value, list) else [value])]
    if sum(len(own) > 1 for own in forms) <= _MOST_TIMES:
        whole = ([*parts] if isinstance(value, list) else parts[0] for parts in product(*forms))
        texts += (encode(own).decode() for own in whole)
    return [*dict.fromkeys(texts)]


_MOST_TIMES = 4
_TIME = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d.*)?")
_NUMBER_WITH_TIME = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])(-?\d+) \(\d{4}-\d\d-\d\dT[\d:.]+Z\)')
"""A text in quotes, which stays as it is; or a number with its time."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def without_times(text: str) -> str:
    """Return a text without the times that commands print after numbers."""
    return _NUMBER_WITH_TIME.sub(lambda match: match[0] if match[1] is None else match[1], text)


def time_of(text: str) -> datetime | None:
    """Return the time that a text is, such as `2013-01-05 06:00`; None for any other text, and for a time outside of the years 1 to 9999 in UTC."""
    if not _TIME.fullmatch(text):
        return None
    try:
        time = datetime.fromisoformat(text)
        time.replace(tzinfo=time.tzinfo or UTC).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return time


def microseconds_of(time: datetime) -> int:
    """Return a time in microseconds since 1970. One without an offset is in UTC."""
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1)


def _forms_of_time(part: object) -> list[object]:
    """Return the values as which a time that a person has written is stored, by the type of its field; none for what is no time."""
    time = time_of(part) if isinstance(part, str) else None
    if time is None:
        return []
    instant = microseconds_of(time)
    forms: list[object] = [instant, _EPOCH + timedelta(microseconds=instant)]
    if instant % 1000 == 0:
        forms.append(instant // 1000)
    return forms if time.tzinfo is not None else [*forms, time]
