"""Keys and values as JSON by declared type, and keys as columns and texts.

Keys and values as JSON, by declared type. The same bytes are in the backends and in Delta.

Keys of whole columns as JSON: the same bytes as `codec.encode` of each key, without a Python object for each row.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.errors import StateSchemaError

T = TypeVar("T")

encode = msgspec.json.Encoder(decimal_format="string").encode
"""Encode a key, a value or a record."""


class Codec(Generic[T]):
    """Encodes and decodes one declared type. It can decode everything that it has encoded."""

    __slots__ = ("_decoder", "_what", "type")

    def __init__(self, type: type[T], what: str) -> None:  # noqa: A002
        """Take the type; `what` names the state in errors, as in "state 'last_leg' of operator 'delay'"."""
        self.type = type
        self._decoder = msgspec.json.Decoder(type)
        self._what = what

    def encode(self, value: T) -> bytes:
        """Return the JSON bytes of a value.

        Raises `StateSchemaError` when `decode` could not read them back: if they were committed, no run
        could continue from them.
        """
        try:
            raw = encode(value)
            self._decoder.decode(raw)
        except (ValueError, TypeError, OverflowError) as error:  # msgspec's own errors are ValueErrors
            msg = (
                f"{self._what} was given {value!r:.200}, which does not fit the declared type {self._type_name}: "
                f"{error}. (JSON has no NaN and no infinity: they become null.)"
            )
            raise StateSchemaError(msg) from error
        return raw

    def decode(self, raw: bytes) -> T:
        """Return the value in `raw`.

        Raises `StateSchemaError` when the bytes do not fit the declared type.
        """
        try:
            return self._decoder.decode(raw)
        except (msgspec.ValidationError, msgspec.DecodeError) as error:
            msg = (
                f"{self._what} is stored as {raw[:200].decode(errors='replace')}, which does not fit the "
                f"declared type {self._type_name}: {error}. Fields may be added with "
                "defaults; for anything else give the state a migration, or restore an older checkpoint."
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
        return encode(self.decode(super().encode(value)))


_ESCAPED = bytes(range(0x20)) + b'"\\'
"""Bytes that JSON escapes in a text."""


def key_json_column(*columns: pa.Array) -> pa.BinaryArray:
    """Return the key of each row as JSON: the value of one column, or a list of several.

    The columns have types that records have between stages. A key is null if any of its values is; -0.0 becomes 0.0, as
    in `plan.stages.stage_key`.
    """
    texts = [_json(column) for column in columns]
    if len(texts) == 1:
        return texts[0]
    listed = pc.binary_join_element_wise(*texts, pa.scalar(b","))
    return pc.binary_join_element_wise(pa.scalar(b"["), listed, pa.scalar(b"]"), pa.scalar(b""))


def _json(column: pa.Array) -> pa.BinaryArray:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_string(kind) and _is_plain(column):
        quote = pa.scalar(b'"')
        return pc.binary_join_element_wise(quote, column.cast(pa.binary()), quote, pa.scalar(b""))
    if pa.types.is_nested(kind):
        return _encoded(column.to_pylist(maps_as_pydicts="strict"))
    distinct = (pc.add(column, 0.0) if pa.types.is_floating(kind) else column).dictionary_encode()
    return _encoded(distinct.dictionary.to_pylist()).take(distinct.indices)


def _is_plain(column: pa.StringArray) -> bool:
    """Return whether JSON escapes none of the texts."""
    _, offsets, data = column.buffers()
    if data is None:
        return True
    bounds = memoryview(offsets).cast("b").cast("i")
    text = data[bounds[column.offset] : bounds[column.offset + len(column)]].to_pybytes()
    return len(text.translate(None, _ESCAPED)) == len(text)


def _encoded(values: list[Any]) -> pa.BinaryArray:
    return pa.array([None if value is None else encode(value) for value in values], pa.binary())


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
