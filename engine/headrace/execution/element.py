"""Elements that flow between operators, and records as JSON.

Elements that flow between operators: records, watermarks and processing times. `records.order` compares their places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from headrace.errors import StateSchemaError, UserFunctionError
from headrace.records.order import before_timers, behind_timers
from headrace.state.codec import encode


class Element(NamedTuple):
    """A record for a keyed operator.

    `record` has the values of its declared types: 5 in a field of type float is 5.0. `input` is the number of the
    operator's input that it came by.
    """

    order: bytes
    timestamp: int
    kind: int
    key_json: bytes
    record: msgspec.Struct
    input: int = 0


class Emitted(NamedTuple):
    """A record that an operator emitted."""

    order: bytes
    timestamp: int
    kind: int
    record: msgspec.Struct


make_element = partial(tuple.__new__, Element)
make_emitted = partial(tuple.__new__, Emitted)
"""Make an element, and what code emits, from a tuple of all fields. A named tuple's own constructors are Python code, and take three times as long."""


class Watermark(NamedTuple):
    """Event time has reached `timestamp` (ms) before the element at `order`."""

    order: bytes
    timestamp: int


class ProcessingTime(NamedTuple):
    """Processing time has reached `timestamp` (ms) before a micro-batch begins; `order` is that place."""

    order: bytes
    timestamp: int


NO_WATERMARK = -(1 << 62)
"""Watermark before the first one (ms): earlier than any time."""


def before_watermark(watermark: Watermark) -> bytes:
    """Return the place right before all timers that a watermark fires, and after all records before it."""
    return before_timers(watermark.order)


def behind_watermark(watermark: Watermark) -> bytes:
    """Return the place right behind all timers that a watermark fires, and behind all their effects."""
    return behind_timers(watermark.order, watermark.timestamp)


_SHOWN = 500


class RecordCodec:
    """Encodes and decodes the records of one operator's inputs. It can decode everything that it has encoded."""

    __slots__ = ("_decoders", "_operator")

    def __init__(self, operator: str, records: Sequence[type[msgspec.Struct]]) -> None:
        """Take the record types of the operator's inputs, in order."""
        self._operator = operator
        self._decoders = [msgspec.json.Decoder(record).decode for record in records]

    def decode(self, key_json: bytes, raw: bytes, input: int = 0) -> msgspec.Struct:  # noqa: A002 - as in `Element`
        """Decode a record of an input.

        Raises `UserFunctionError` with operator, key and record when it does not fit the input's record type, and
        `StateSchemaError` when the operator has no such input.
        """
        if input >= len(self._decoders):
            raise self._input_gone(key_json, input)
        try:
            return self._decoders[input](raw)
        except msgspec.ValidationError as error:
            why = f"the operator before {self._its(input)} sent a record that does not fit: {error}{_nulls(error)}"
            raise UserFunctionError(self._operator, key_json.decode(), _cut(raw), why) from error

    def encode(self, element: Element) -> bytes:
        """Encode the record of an element.

        Raises `UserFunctionError` for a record that `decode` cannot read back: if it were stored, no run could continue
        from it.
        """
        try:
            raw = encode(element.record)
        except (TypeError, ValueError, OverflowError) as error:
            why = f"the operator before {self._its(element.input)} sent a record that JSON cannot carry: {error}"
            shown = shown_record(element.record)
            raise UserFunctionError(self._operator, element.key_json.decode(), shown, why) from error
        self.decode(element.key_json, raw, element.input)
        return raw

    def _its(self, number: int) -> str:
        return "it" if len(self._decoders) == 1 else f"its input {number + 1}"

    def _input_gone(self, key_json: bytes, number: int) -> StateSchemaError:
        return StateSchemaError(
            f"a record of key {key_json.decode()} that operator '{self._operator}' holds came by its input {number + 1}, and the "
            f"operator has {len(self._decoders)} now. Nothing was changed. Bring the input back until a run has gone through, or "
            "restore to a checkpoint before the run that stopped."
        )


def shown_record(record: object) -> str:
    """Return a record as errors show it: the beginning of its JSON, or of its `repr` where JSON cannot represent it."""
    try:
        return _cut(encode(record))
    except (TypeError, ValueError, OverflowError):
        return repr(record)[:_SHOWN]


def _cut(raw: bytes) -> str:
    return raw[:_SHOWN].decode(errors="replace")


def _nulls(error: msgspec.ValidationError) -> str:
    return (
        ". (JSON has no NaN and no infinity: they become null.)" if "Expected `float`, got `null`" in str(error) else ""
    )
