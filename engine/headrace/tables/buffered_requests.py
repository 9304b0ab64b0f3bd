"""Conversion between held records and rows of `buffered_requests` (FLIP-425, "Faster Checkpoint Drain")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from headrace.execution.fast_drain import PROCESS, BufferedRequest
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.files import Storage
from headrace.tables.schemas import BUFFERED_REQUESTS
from headrace.tables.stored_rows import damaged
from headrace.tables.stores import state_view


class StoredRequest(NamedTuple):
    """Held record, with the number of its row among the rows of its key."""

    sequence: int
    request: BufferedRequest


class _Record(msgspec.Struct, frozen=True):
    """Content of column `record`."""

    order: str
    timestamp: int
    kind: int
    emitted: int
    value: msgspec.Raw


class _Request(msgspec.Struct, frozen=True):
    """Content of column `request`."""

    state: str
    call: str = "value"


def numbered_requests(requests: Sequence[BufferedRequest], checkpoint_id: int) -> list[StoredRequest]:
    """Number the requests that a task holds; no other checkpoint gives these numbers."""
    return [StoredRequest((checkpoint_id << 32) + place, request) for place, request in enumerate(requests)]


def buffered_request_columns(requests: Sequence[StoredRequest]) -> dict[str, list[str | int | None]]:
    """Return the own columns of `buffered_requests`."""
    return {
        "sequence": [sequence for sequence, _ in requests],
        "block_id": [request.block_id for _, request in requests],
        "request": [_request(request) for _, request in requests],
        "record": [_record(request) for _, request in requests],
        "input": [request.input for _, request in requests],
    }


def load_buffered_requests(
    job_folder: str,
    version: int,
    operator: str,
    key_groups: KeyGroupRange,
    *,
    storage: Storage = None,
) -> list[StoredRequest]:
    """Return the requests that an operator holds in one range of key groups, at a version of the table, in order.

    Raises `StorageError` for a row that Headrace cannot have written.
    """
    view = state_view(job_folder, BUFFERED_REQUESTS, version, storage).of(operator, key_groups)
    rows = view.live(_COLUMNS)
    columns = (rows[name].to_pylist() for name in _COLUMNS)
    held = [_stored(view.snapshot.uri, *values) for values in zip(*columns, strict=True)]
    return sorted(held, key=lambda stored: stored.request.order)


def holders(job_folder: str, version: int, *, storage: Storage = None) -> set[tuple[str, int]]:
    """Return the operators that hold records, each with the input of the records, at a version of the table."""
    rows = state_view(job_folder, BUFFERED_REQUESTS, version, storage).live(["operator", "input"])
    operators, inputs = (rows[name].to_pylist() for name in ("operator", "input"))
    return {(operator, number or 0) for operator, number in zip(operators, inputs, strict=True)}


def _request(request: BufferedRequest) -> str | None:
    return None if request.block_id == PROCESS else msgspec.json.encode(_Request(request.state)).decode()


def _record(request: BufferedRequest) -> str:
    order, value = request.order.hex(), msgspec.Raw(request.raw)
    return msgspec.json.encode(_Record(order, request.timestamp, request.kind, request.index, value)).decode()


def _stored(uri: str, sequence: int, key: str, *values: Any) -> StoredRequest:
    try:
        return StoredRequest(sequence, _held(key, *values))
    except (msgspec.MsgspecError, ValueError) as error:
        raise damaged(
            uri, f"column 'record' or 'request' is unreadable ({error}) in the row of key {key}, sequence {sequence}"
        ) from error


def _held(key: str, block_id: str, request: str | None, record: str, input_: int | None) -> BufferedRequest:
    stored = msgspec.json.decode(record, type=_Record)
    return BufferedRequest(
        order=bytes.fromhex(stored.order),
        timestamp=stored.timestamp,
        kind=stored.kind,
        key_json=key.encode(),
        raw=bytes(stored.value),
        block_id=block_id,
        state="" if request is None else msgspec.json.decode(request, type=_Request).state,
        index=stored.emitted,
        input=input_ or 0,  # null in rows of format 2
    )


_COLUMNS = ("sequence", "key", "block_id", "request", "record", "input")
