"""Elements that flow between operators: records, watermarks and processing times. `plan.order` compares their places."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import msgspec

from headrace.native import accelerated
from headrace.plan.order import before_timers, behind_timers


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


@accelerated
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
