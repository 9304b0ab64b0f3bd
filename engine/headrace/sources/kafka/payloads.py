"""Keys and values of messages as objects: from JSON, Avro or Protobuf, with the number of their schema before them or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec

from headrace.records.column_types import Column
from headrace.records.value_rules import written_number
from headrace.sources.avro_values import record_text
from headrace.sources.kafka.avro import avro_reader
from headrace.sources.kafka.payload import PayloadError
from headrace.sources.kafka.protobuf import protobuf_reader
from headrace.sources.kafka.schemas import HEAD, RegisteredSchema, SchemaStore, number_of

Read = Callable[[bytes], Any]
"""Reader of one payload. Raises `PayloadError`."""

_TYPES: Final = {"avro": "AVRO", "protobuf": "PROTOBUF"}
_SHOWN: Final = 8


class Payloads:
    """Reader of the keys, or the values, of one source's messages."""

    def __init__(
        self,
        form: str,
        store: SchemaStore | None,
        columns: Sequence[Column],
        schema: str | None = None,
        *,
        as_objects: bool = False,
    ) -> None:
        """Make a reader of a form (text, json, avro or protobuf) for these columns.

        With a `store`, payloads begin with the numbers of schemas in it; else all have the one `schema`, if the form has schemas. JSON
        stays text, unless it is read `as_objects`.
        """
        self.form, self._store, self._columns = form, store, columns
        self._of_text = _json if as_objects and form == "json" else _text
        self._by_number: dict[int, Read | PayloadError] = {}
        self._is_framed = store is not None and form != "text"
        self._schema = None if schema is None else RegisteredSchema(schema, _TYPES[form])

    @property
    def are_objects(self) -> bool:
        """Return whether payloads become objects of Python, and not text or bytes."""
        return self.form in _TYPES or self._of_text is _json

    def read(self, payloads: Sequence[bytes | None], problems: dict[int, str], what: str) -> list[Any]:
        """Return the objects of payloads, None for one that is null or cannot be read; `problems` gets the reasons, which begin with `what`."""
        if not (self._is_framed or self.are_objects):
            with suppress(UnicodeDecodeError):
                return [None if payload is None else payload.decode() for payload in payloads]
        objects: list[Any] = []
        for position, payload in enumerate(payloads):
            try:
                objects.append(None if payload is None else self.one(payload))
            except PayloadError as error:
                problems.setdefault(position, f"{what} {error}")
                objects.append(None)
        return objects

    def one(self, payload: bytes) -> Any:
        """Return the object of a payload. Raises `PayloadError` where it cannot be read."""
        if not self._is_framed:
            return self._unnumbered(payload) if self.form in _TYPES else self._of_text(payload)
        number = number_of(payload)
        if number is None:
            begins = f"begins with {payload[:_SHOWN].hex(' ')}" if payload else "is empty"
            msg = (
                f"{begins}, not with the byte 0 and the number of a schema, as writers with a schema registry begin it"
            )
            raise PayloadError(msg)
        body = payload[HEAD:]
        return self._of_text(body) if self.form == "json" else self._numbered(number)(body)

    def shown(self, payload: bytes | None) -> Any:
        r"""Return a payload as JSON can have it: an object where it can be read, else text; a byte that is not UTF-8 is written as `\xff`."""
        if payload is None:
            return None
        if self.form in _TYPES:
            with suppress(PayloadError, RecursionError):
                return msgspec.Raw(record_text(self.one(payload)).encode())
        return payload.decode(errors="backslashreplace")

    @cached_property
    def _unnumbered(self) -> Read:
        """Reader by the one schema of all payloads."""
        if self._schema is None:
            msg = "has no schema: the job's file names none"
            raise PayloadError(msg)
        return self._reader(self._schema)

    def _numbered(self, number: int) -> Read:
        if number not in self._by_number:
            try:
                self._by_number[number] = self._reader(self._registered(number))
            except PayloadError as error:
                self._by_number[number] = PayloadError(f"has the schema {number}, {error}")
        read = self._by_number[number]
        if isinstance(read, PayloadError):
            raise read
        return read

    def _registered(self, number: int) -> RegisteredSchema:
        schema = None if self._store is None else self._store.find(number)
        if schema is None:
            msg = "which the registry does not know"
            raise PayloadError(msg)
        if schema.type != _TYPES[self.form]:
            msg = f"which is of the type {schema.type}, not {_TYPES[self.form]}"
            raise PayloadError(msg)
        return schema

    def _reader(self, schema: RegisteredSchema) -> Read:
        """Return the reader by a schema. Raises `PayloadError` where the schema cannot be read."""
        return protobuf_reader(schema) if self.form == "protobuf" else avro_reader(schema, self._columns)


def _text(payload: bytes) -> str:
    try:
        return payload.decode()
    except UnicodeDecodeError as error:
        msg = f"is not UTF-8 ({error.reason} at byte {error.start})"
        raise PayloadError(msg) from error


_decode: Final = msgspec.json.Decoder(float_hook=written_number).decode


def _json(payload: bytes) -> Any:
    text = _text(payload)
    try:
        return _decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"is not JSON ({error})"
        raise PayloadError(msg) from error
