"""Held records, waiting calls and kept responses as rows of their tables.

Reading of kept responses: those to some requests of one operator, not more of the table than that needs.

Responses are sorted by the place of arrival, and a slice's elements are near each other. So most responses are in a window around the
slice. A request without a response there, or with one that might not be the nearest, is looked for in all responses of the operator,
a batch of rows at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.async_io.pending_call import PendingCall, StoredCall, to_stored_element
from headrace.async_io.responses import KeptResponse, Wanted
from headrace.execution.drain import PROCESS, BufferedRequest
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.predicate import BetweenTimes, OneOf, Within, rows_that_meet
from headrace.storage.refusals import doing
from headrace.storage.table import damaged, typed_rows
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import last_rows
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, RESPONSES
from headrace.tables.view import TableView, in_milliseconds


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
    folder: JobFolder, version: int, operator: str, key_groups: KeyGroupRange
) -> list[StoredRequest]:
    """Return the requests that an operator holds in one range of key groups, at a version of the table, in order.

    Raises `StorageError` for a row that Headrace cannot have written.
    """
    view = folder.view(BUFFERED_REQUESTS, version).of(operator, key_groups)
    rows = view.live(_REQUEST_COLUMNS)
    columns = (rows[name].to_pylist() for name in _REQUEST_COLUMNS)
    held = [_stored(view.snapshot.uri, *values) for values in zip(*columns, strict=True)]
    return sorted(held, key=lambda stored: stored.request.order)


def holders(folder: JobFolder, version: int) -> set[tuple[str, int]]:
    """Return the operators that hold records, each with the input of the records, at a version of the table."""
    rows = folder.view(BUFFERED_REQUESTS, version).live(["operator", "input"])
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


_REQUEST_COLUMNS = ("sequence", "key", "block_id", "request", "record", "input")


def waiting_element_rows(
    kept: Sequence[PendingCall], removed: Sequence[PendingCall], checkpoint_id: int
) -> tuple[list[StoredCall], list[bool]]:
    """Return the rows to write, for removed elements and for new or changed ones, and a flag for each row: removed or not.

    An element that has not changed, such as one that was not due, keeps its row.
    """
    rows = [to_stored_element(element, element.sequence or 0) for element in removed]
    for place, element in enumerate(kept):
        if element.sequence is None:
            rows.append(to_stored_element(element, (checkpoint_id << 32) + place))
        elif element.is_changed:
            rows.append(to_stored_element(element, element.sequence))
    return rows, [number < len(removed) for number in range(len(rows))]


def waiting_element_columns(rows: Sequence[StoredCall], deleted: Sequence[bool]) -> dict[str, list[str | int | None]]:
    """Return the own columns of `async_requests`; rows of removed elements have only their sequence number."""
    names = ("status", "attempts", "first_attempt_at", "cost_ms", "next_attempt_at", "last_error", "element", "result")
    columns: dict[str, list[str | int | None]] = {"sequence": [row.sequence for row in rows]}
    for name in names:
        columns[name] = [
            None if is_deleted else getattr(row, name) for row, is_deleted in zip(rows, deleted, strict=True)
        ]
    return columns


def load_waiting_elements(
    folder: JobFolder, version: int, operator: str, key_groups: KeyGroupRange
) -> list[StoredCall]:
    """Return the elements of an operator that wait, in one range of key groups, at a version of the table."""
    view = folder.view(ASYNC_REQUESTS, version).of(operator, key_groups)
    return [StoredCall(**row) for row in view.live_rows(StoredCall.__struct_fields__)]


def waiting_for(folder: JobFolder, version: int) -> set[str]:
    """Return the operators with waiting elements, at a version of the table."""
    operators = folder.view(ASYNC_REQUESTS, version).live(["operator"])
    return {*operators["operator"].to_pylist()}


MARGIN: Final = 10_000
"""Default margin of a window: corrected input has its rows at other ordinals, but seldom by more than this."""

_MOST_WINDOWS: Final = 8
"""Number of windows above which all responses of the operator are read instead."""

_COLUMNS: Final = KeptResponse.__struct_fields__

Window = tuple[int, int]
"""First and last arrival ordinal."""


def read_responses(
    folder: JobFolder, version: int, operator: str, wanted: Wanted, *, margin: int = MARGIN
) -> list[KeptResponse]:
    """Return the responses to requests that have not expired; of a request that the job got often, at least the nearest ones.

    A window is `margin` ordinals larger than the elements in it, on each side.
    """
    responses = folder.view(RESPONSES, version).of(operator)
    windows = windows_around([ordinal for ordinals in wanted.values() for ordinal in ordinals], margin)
    near = [_rows(responses.where(Within("ordinal", *window)).live(), wanted) for window in windows]
    near_responses = [KeptResponse(**row) for rows in near for row in rows]
    far = {*wanted} - _settled(near_responses, wanted, windows)
    return [response for response in near_responses if response.digest not in far] + (
        _anywhere(responses, far) if far else []
    )


def windows_around(ordinals: Sequence[int], margin: int) -> list[Window]:
    """Return the windows around ordinals, in order; none if there would be too many."""
    windows: list[Window] = []
    for ordinal in sorted(set(ordinals)):
        first, last = max(0, ordinal - margin), ordinal + margin
        if windows and first <= windows[-1][1]:
            windows[-1] = windows[-1][0], last
        else:
            windows.append((first, last))
    return windows if len(windows) <= _MOST_WINDOWS else []


def _settled(near_responses: Iterable[KeptResponse], wanted: Wanted, windows: Sequence[Window]) -> set[str]:
    """Return the requests for which no response outside of the windows can be nearer."""
    places: dict[str, list[int]] = {}
    for response in near_responses:
        places.setdefault(response.digest, []).append(response.ordinal)
    return {
        digest
        for digest, ordinals in wanted.items()
        if (near := sorted(places.get(digest, ()))) and all(_is_nearest(near, at, windows) for at in {*ordinals})
    }


def _is_nearest(near: Sequence[int], ordinal: int, windows: Sequence[Window]) -> bool:
    first, last = next(window for window in windows if window[0] <= ordinal <= window[1])
    behind = bisect_left(near, ordinal)
    distance = min(abs(ordinal - place) for place in near[max(0, behind - 1) : behind + 1])
    return ordinal + distance <= last and (ordinal - distance >= first or first == 0)


def _anywhere(responses: TableView, digests: Iterable[str]) -> list[KeptResponse]:
    """Return the responses to requests, wherever they arrived."""
    condition, schema, uri = OneOf("digest", tuple(sorted(digests))), responses.table.schema, responses.snapshot.uri
    matching = [schema.empty_table()]
    with doing(f"to read {uri}"):
        for batch in pa.RecordBatchReader.from_stream(responses.stream()):
            rows = typed_rows(uri, pa.Table.from_batches([batch]), schema)
            matching.append(rows.filter(condition.mask(rows)))
    return [KeptResponse(**row) for row in _rows(last_rows(pa.concat_tables(matching), responses.table), digests)]


def _rows(rows: pa.Table, digests: Iterable[str]) -> list[dict[str, Any]]:
    conditions = (OneOf("digest", tuple(digests)), BetweenTimes("expires_at", after=clock.now()))
    plain: list[dict[str, Any]] = in_milliseconds(rows_that_meet(conditions, rows).select(_COLUMNS)).to_pylist()
    return plain


def unexpired_responses(rows: pa.Table, now: int) -> pa.Table:
    """Return the responses that have not expired at `now` (ms)."""
    return rows.filter(BetweenTimes("expires_at", after=now).mask(rows))


def response_columns(rows: Sequence[KeptResponse]) -> dict[str, list[str | int | None]]:
    """Return the own columns of `responses`, without the key."""
    return {name: [getattr(row, name) for row in rows] for name in _COLUMNS if name != "key"}


def count_by_checkpoint(chunks: Iterable[pa.Table]) -> Counter[int]:
    """Return the number of responses that have not expired, by the checkpoint that committed them. `chunks` are live rows."""
    now, counts = clock.now(), Counter[int]()
    for rows in chunks:
        ids = unexpired_responses(rows, now)["checkpoint_id"]
        counts.update({count["values"]: count["counts"] for count in pc.value_counts(ids).to_pylist()})
    return counts
