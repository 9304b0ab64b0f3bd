"""Stored form of an element: a row of `async_requests`."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.async_io.element import AsyncElement, Status
from headrace.execution.element import Emitted


class StoredElement(msgspec.Struct, frozen=True, kw_only=True):
    """Columns of `async_requests`; times are milliseconds since the epoch."""

    key: str
    sequence: int
    status: str
    attempts: int
    first_attempt_at: int | None
    cost_ms: int
    next_attempt_at: int | None
    last_error: str | None
    element: str
    """The record as it arrived, with its place in arrival order."""
    result: str | None
    """The records of its answer, once it is completed."""


class _Came(msgspec.Struct, frozen=True):
    order: str
    timestamp: int
    kind: int
    value: msgspec.Raw


def to_stored_element(element: AsyncElement, sequence: int) -> StoredElement:
    """Return an element as a row; `sequence` is the row's number among those of its key."""
    results = None if element.results is None else msgspec.json.encode(list(element.results)).decode()
    return StoredElement(
        key=element.key_json.decode(),
        sequence=sequence,
        status=element.status.value,
        attempts=element.attempts,
        first_attempt_at=element.first_attempt_at,
        cost_ms=round(element.cost_ms),
        next_attempt_at=None if element.is_done else element.next_attempt_at,
        last_error=element.last_error,
        element=came_as(element.emitted),
        result=results,
    )


def came_as(emitted: Emitted) -> str:
    """Return a record with its place in arrival order, as JSON."""
    order, timestamp, kind, record = emitted
    return msgspec.json.encode(_Came(order.hex(), timestamp, kind, msgspec.Raw(msgspec.json.encode(record)))).decode()


def came(text: str, record: type[msgspec.Struct]) -> Emitted:
    """Decode a text of `came_as`. Raises `msgspec.MsgspecError` for any other text, or a record of another type."""
    arrived = msgspec.json.decode(text, type=_Came)
    return Emitted(
        bytes.fromhex(arrived.order), arrived.timestamp, arrived.kind, msgspec.json.decode(arrived.value, type=record)
    )


def is_element(text: str | None, position: str) -> bool:
    """Return whether `came_as` made this text from the record at `position` (its place in arrival order, in hexadecimal)."""
    try:
        return text is not None and msgspec.json.decode(text, type=_Came).order == position
    except msgspec.MsgspecError:
        return False


def check_stored(row: StoredElement, takes: type[msgspec.Struct], gives: type[msgspec.Struct]) -> None:
    """Check that `loaded` can read a row: if it were committed otherwise, no run could continue from it.

    Structs are not checked when they are made, and JSON has no NaN and no infinity: they become null. Raises
    `msgspec.MsgspecError`.
    """
    came(row.element, takes)
    if row.result is not None:
        msgspec.json.decode(row.result, type=list[gives])  # type: ignore[valid-type]


def loaded(
    rows: Sequence[StoredElement], takes: type[msgspec.Struct], gives: type[msgspec.Struct]
) -> list[AsyncElement]:
    """Return the elements of rows, in arrival order. Raises `msgspec.MsgspecError` as `came` does."""
    results = msgspec.json.Decoder(list[gives])  # type: ignore[valid-type]
    elements = []
    for row in rows:
        element = AsyncElement(came(row.element, takes))
        element.status = Status(row.status)
        element.key_json, element.sequence = row.key.encode(), row.sequence
        element.attempts, element.first_attempt_at = row.attempts, row.first_attempt_at
        element.cost_ms, element.next_attempt_at = float(row.cost_ms), row.next_attempt_at
        element.last_error = row.last_error
        element.results = None if row.result is None else results.decode(row.result)
        elements.append(element)
    return sorted(elements, key=lambda element: element.emitted.order)
