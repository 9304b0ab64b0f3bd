"""Identities of rows in a key's history, and the last changes of keys with one row at most.

The identity of a row is the whole row, or its upsert key. NULL equals NULL (FLIP-544). Rows are compared as canonical
JSON, which is the same for equal rows: fields have their declared types (5.0 for a float, never 5), and sets and dicts
have no order.

Where the primary key includes the upsert key, a key has a row or none: an addition sets it, whatever came before, and a
retraction removes it. The last changes undo the effect of earlier ones, so no records are made of those. Only a
retraction of no row is reported, too: it is the first change of its key, or follows another retraction.

    a key's changes     +a  -a  +b  -b  +c          -a  +b  -b  +c  -c          +a  -a  -a  +b
    those needed                        +c          -a          +c  -c          +a  -a  -a  +b
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import inspect

from headrace.api.records import RowKind, canonical_encoder
from headrace.execution.element import Element, RecordCodec
from headrace.materializer.ordered_multiset import Identity
from headrace.state.codec import encode

canonical = canonical_encoder("deterministic")
"""Encodes a record that was decoded as its type to its canonical JSON."""

_encode: Callable[[Any], bytes] = msgspec.json.Encoder(decimal_format="string", order="deterministic").encode
"""What `canonical` calls first."""


def _texts(records: Sequence[msgspec.Struct]) -> list[bytes]:
    """Return the canonical JSON of records."""
    try:
        return list(map(_encode, records))  # without a call of Python code for each: 0.05 of 1.7 us a change
    except TypeError:
        return list(map(canonical, records))


def _texts_of_additions(batch: Sequence[Element]) -> list[bytes]:
    """Return the canonical JSON of records that are added, and b"" for the others."""
    try:
        return [b"" if element[2] in _RETRACTED else _encode(element[4]) for element in batch]
    except TypeError:
        return [b"" if element[2] in _RETRACTED else canonical(element[4]) for element in batch]


IdentityOf = Callable[[bytes], Identity]
"""Function from a row's JSON to its identity."""


@functools.cache
def projection(fields: tuple[str, ...]) -> IdentityOf:
    """Return the function that extracts the JSON of the fields from a row; without fields, the whole row."""
    if not fields:
        return bytes
    decode = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode

    def project(raw: bytes) -> bytes:
        row = decode(raw)
        # A record type with `omit_defaults` leaves fields out: an absent field then equals an absent field.
        values = [bytes(row.get(field, b"")) for field in fields]
        return values[0] if len(values) == 1 else b"[%b]" % b",".join(values)

    return project


@functools.cache
def json_names(record: type[msgspec.Struct] | None, fields: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names that the JSON of a record has for some of its fields."""
    if record is None:
        return fields
    names = {field.name: field.encode_name for field in msgspec.structs.fields(record)}
    return tuple(names.get(field, field) for field in fields)


def upsert_key_of(names: tuple[str, ...] | None, record: type[msgspec.Struct]) -> Callable[[bytes], str | None]:
    """Return the function that reads the upsert key of a stored row, as JSON text; without `names`, it returns None."""
    if names is None:
        return lambda _: None
    decode = msgspec.json.Decoder(record).decode

    def upsert_key(row: bytes) -> str:
        values = decode(row)  # as a record: a stored row may lack fields with default values
        picked = [getattr(values, name) for name in names]
        return encode(picked[0] if len(picked) == 1 else picked).decode()

    return upsert_key


class IdentifiedRows:
    """Rows that reach one operator: their JSON texts, and their identities."""

    def __init__(
        self,
        operator: str,
        record: type[msgspec.Struct] | None,
        fields: tuple[str, ...],
        *,
        one_a_key: bool,
        from_columns: bool = False,
    ) -> None:
        """Take rows of type `record`, identified by `fields`, or as a whole without fields.

        `one_a_key`: a key never has two. `from_columns`: the rows come from columns, which hold no number that JSON cannot represent.
        """
        # To decode each row again takes a third of the materializer's time.
        self._codec = None if record is None or from_columns else RecordCodec(operator, (record,))
        self._whole = not fields
        self._one_a_key = one_a_key
        self._field = _comparable(record, fields)
        self._parse: Callable[[bytes], Any] = projection(json_names(record, fields))
        self._value: Callable[[Any], Identity] = _itself
        if self._field is not None:
            self._parse, self._value = _typed(record, self._field)
        self.identity_of: IdentityOf = (lambda _: b"") if one_a_key else (lambda raw: self._value(self._parse(raw)))

    def read(self, batch: Sequence[Element]) -> tuple[Sequence[bytes], Sequence[Identity]]:
        """Return the texts and identities of a batch's rows.

        Raises `UserFunctionError` for a row with a number that JSON cannot represent.
        """
        records = [element.record for element in batch]
        texts = _texts(records)
        if self._codec is not None:
            self._check(batch, texts, self._codec)
        if self._one_a_key:
            return texts, [b""] * len(texts)
        if self._field is not None:
            return texts, list(map(attrgetter(self._field), records))
        return texts, texts if self._whole else list(map(self._value, map(self._parse, texts)))

    def read_for_history(self, batch: Sequence[Element]) -> tuple[Sequence[bytes], Sequence[Identity]]:
        """Return texts and identities as `read` does, but b"" for a retraction that is identified without its text.

        Most retractions remove a row that is not shown, so their texts are never needed: 0.1 of 1.2 us a change.
        """
        if self._codec is not None or (self._field is None and not self._one_a_key):
            return self.read(batch)
        texts = _texts_of_additions(batch)
        if self._one_a_key:
            return texts, [b""] * len(texts)
        return texts, [*map(attrgetter(f"record.{self._field}"), batch)]

    @staticmethod
    def _check(batch: Sequence[Element], texts: Sequence[bytes], codec: RecordCodec) -> None:
        """Refuse rows that could not be read back: JSON writes a number that it cannot represent as null. Other rows pass."""
        for element, text in zip(batch, texts, strict=True):
            if b"null" in text:
                codec.decode(element.key_json, text)


@functools.cache
def _comparable(record: type[msgspec.Struct] | None, fields: tuple[str, ...]) -> str | None:
    """Return the name of the key's only field if it is a text or an integer: such values can be compared without JSON. Else None."""
    if record is None or len(fields) != 1 or record.__struct_config__.omit_defaults:
        return None
    (field,) = (field for field in inspect.type_info(record).fields if field.name == fields[0])  # type: ignore[attr-defined]
    kind = field.type
    kinds = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    kinds = tuple(member.type if isinstance(member, inspect.Metadata) else member for member in kinds)
    return fields[0] if all(type(member) in _COMPARABLE for member in kinds) else None


@functools.cache
def _typed(record: type[msgspec.Struct] | None, name: str) -> tuple[Callable[[bytes], Any], Callable[[Any], Identity]]:
    """Return a decoder that reads only one field of a row, and a function that then takes its value."""
    assert record is not None  # noqa: S101 - a comparable field is one of a record
    field = next(field for field in msgspec.structs.fields(record) if field.name == name)
    own = (name, field.type, msgspec.field(name=field.encode_name))
    return msgspec.json.Decoder(msgspec.defstruct("Identified", [own], gc=False)).decode, attrgetter(name)


def _itself(value: Identity) -> Identity:
    return value


# Without bool: True equals 1 in Python, and a union may contain both.
_COMPARABLE = frozenset({inspect.IntType, inspect.StrType, inspect.NoneType})


Mask = npt.NDArray[np.bool_]

_RETRACTIONS = [int(kind) for kind in RowKind if kind.is_retraction]
_RETRACTED = frozenset(_RETRACTIONS)


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Changes in arrival order, without their rows: `numbers` are places in `keys` (JSON), `kinds` are row kinds."""

    keys: Sequence[bytes]
    numbers: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int32]

    def last_of_one_row(self) -> Mask:
        """Return which changes have an effect, where a key has one row at most."""
        order = np.argsort(self.numbers, kind="stable")
        key = self.numbers[order]
        retracts = np.isin(self.kinds[order], _RETRACTIONS)
        follows = np.zeros(len(key), bool)
        follows[1:] = key[1:] == key[:-1]
        last = np.ones(len(key), bool)
        last[:-1] = ~follows[1:]
        needed = last | (retracts & ~follows)
        needed[:-1] |= follows[1:] & last[1:] & retracts[1:]  # what the last retraction retracts
        twice = np.zeros(len(self.keys), bool)
        twice[key[1:][follows[1:] & retracts[1:] & retracts[:-1]]] = True
        return _in_place(needed | twice[key], order)

    def last_of_keys(self) -> Mask:
        """Return which change is the last one of its key."""
        count = len(self.numbers)
        last = np.empty(len(self.keys), np.int64)
        last[self.numbers] = np.arange(count)  # numpy assigns in order: the last place of a key stays
        needed = np.zeros(count, bool)
        needed[last] = True
        return needed


def _in_place(values: Mask, order: npt.NDArray[np.int64]) -> Mask:
    placed = np.empty_like(values)
    placed[order] = values
    return placed
