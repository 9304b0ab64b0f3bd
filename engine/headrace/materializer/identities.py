"""What makes two rows of a key the same: all of the row, or its upsert key. NULL equals NULL (FLIP-544).

Rows are compared as JSON. Given the record type, a row is first made the one text that equal rows have: a function may
put `5` where a float is declared, and read it back from its state as `5.0`; sets and dicts have no order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import inspect

from headrace.errors import UserFunctionError
from headrace.execution.element import Element
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


class Rows:
    """The rows that reach one operator: their texts, and their identities."""

    def __init__(
        self,
        operator: str,
        record: type[msgspec.Struct] | None,
        fields: tuple[str, ...],
        *,
        one_a_key: bool,
        checks: bool = True,
    ) -> None:
        """Rows of type `record`, found by `fields`; without fields as a whole. `one_a_key` if a key never has two.

        Without `checks` they are known to be what encoding a record of the type gives.
        """
        self._operator = operator
        self._decode = None if record is None or not checks else msgspec.json.Decoder(record).decode
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

        Raises `UserFunctionError` for a row that does not fit the record type.
        """
        texts: Sequence[bytes]
        if self._decode is None:
            texts = [element.raw for element in batch]
        else:
            records = self._records(batch)
            texts = list(map(canonical, records))
            if self._field is not None and not self._one_a_key:
                return texts, list(map(attrgetter(self._field), records))
        if self._one_a_key:
            return texts, [b""] * len(texts)
        return texts, texts if self._whole else list(map(self._value, map(self._parse, texts)))

    def _records(self, batch: Sequence[Element]) -> list[msgspec.Struct]:
        assert self._decode is not None  # noqa: S101 - called only with a record type
        decode = self._decode
        found: list[msgspec.Struct] = []
        try:
            for element in batch:
                found.append(decode(element.raw))  # noqa: PERF401 - how many were decoded tells which one failed
        except msgspec.ValidationError as error:
            element = batch[len(found)]
            key, row = element.key_json.decode(), element.raw[:500].decode(errors="replace")
            why = f"the operator before it sent a row that does not fit: {error}{_nulls(error)}"
            raise UserFunctionError(self._operator, key, row, why) from error
        return found


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


def _nulls(error: msgspec.ValidationError) -> str:
    return (
        ". (JSON has no NaN and no infinity: they become null.)" if "Expected `float`, got `null`" in str(error) else ""
    )


def _itself(value: Identity) -> Identity:
    return value


# No bool: True is 1 to Python, and a union may have both.
_COMPARABLE = frozenset({inspect.IntType, inspect.StrType, inspect.NoneType})
