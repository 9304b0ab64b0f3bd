"""What makes two rows of a key the same: all of the row, or its upsert key. NULL equals NULL (FLIP-544).

Rows are compared as JSON, in the one text that equal rows have: their fields are as declared (5.0 where a float is, never 5),
and sets and dicts have no order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import inspect

from headrace.execution.element import Element
from headrace.execution.record_codec import RecordCodec
from headrace.materializer.ordered_multiset import Identity

canonical = msgspec.json.Encoder(decimal_format="string", order="deterministic").encode
"""The one text of a record that was decoded as its type."""

IdentityOf = Callable[[bytes], Identity]
"""The identity of a row, from its JSON."""


@functools.cache
def projection(fields: tuple[str, ...]) -> IdentityOf:
    """The JSON of the fields as they stand in a row; the whole row where there are no fields."""
    if not fields:
        return bytes
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def project(raw: bytes) -> bytes:
        row = decode(raw)
        # A record type with `omit_defaults` leaves fields out: then absent equals absent.
        values = [bytes(row.get(field, b"")) for field in fields]
        return values[0] if len(values) == 1 else b"[%b]" % b",".join(values)

    return project


class IdentifiedRows:
    """The rows that reach one operator: their texts, and their identities."""

    def __init__(
        self, operator: str, record: type[msgspec.Struct] | None, fields: tuple[str, ...], *, one_a_key: bool
    ) -> None:
        """Rows of type `record`, found by `fields`; without fields as a whole. `one_a_key` if a key never has two."""
        self._codec = None if record is None else RecordCodec(operator, (record,))
        self._whole = not fields
        self._one_a_key = one_a_key
        self._field = _comparable(record, fields)
        self._parse: Callable[[bytes], Any] = projection(fields)
        self._value: Callable[[Any], Identity] = _itself
        if self._field is not None:
            self._parse, self._value = _typed(record, self._field)
        self.identity_of: IdentityOf = (lambda _: b"") if one_a_key else (lambda raw: self._value(self._parse(raw)))

    def read(self, batch: Sequence[Element]) -> tuple[Sequence[bytes], Sequence[Identity]]:
        """The texts and identities of a batch's rows.

        Raises `UserFunctionError` for a row with a number that JSON has not.
        """
        records = [element.record for element in batch]
        texts = list(map(canonical, records))
        if self._codec is not None:
            self._check(batch, texts, self._codec)
        if self._one_a_key:
            return texts, [b""] * len(texts)
        if self._field is not None:
            return texts, list(map(attrgetter(self._field), records))
        return texts, texts if self._whole else list(map(self._value, map(self._parse, texts)))

    @staticmethod
    def _check(batch: Sequence[Element], texts: Sequence[bytes], codec: RecordCodec) -> None:
        """Refuse rows that could not be read back. JSON writes a number that it has not as null: all others are read."""
        for element, text in zip(batch, texts, strict=True):
            if b"null" in text:
                codec.decode(element.key_json, text)


@functools.cache
def _comparable(record: type[msgspec.Struct] | None, fields: tuple[str, ...]) -> str | None:
    """The one field whose value is as good as its JSON for telling rows apart: a text or an integer, or none."""
    if record is None or len(fields) != 1 or record.__struct_config__.omit_defaults:
        return None
    (field,) = (field for field in inspect.type_info(record).fields if field.name == fields[0])  # type: ignore[attr-defined]
    kind = field.type
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    kinds = tuple(each.type if isinstance(each, inspect.Metadata) else each for each in kinds)
    return fields[0] if all(type(each) in _COMPARABLE for each in kinds) else None


@functools.cache
def _typed(record: type[msgspec.Struct] | None, name: str) -> tuple[Callable[[bytes], Any], Callable[[Any], Identity]]:
    """What reads one field of a row, and nothing else of it; and what then takes its value."""
    assert record is not None  # noqa: S101 - a comparable field is one of a record
    kind = next(field.type for field in msgspec.structs.fields(record) if field.name == name)
    return msgspec.json.Decoder(msgspec.defstruct("Identified", [(name, kind)], gc=False)).decode, attrgetter(name)


def _itself(value: Identity) -> Identity:
    return value


# No bool: True is 1 to Python, and a union may have both.
_COMPARABLE = frozenset({inspect.IntType, inspect.StrType, inspect.NoneType})
