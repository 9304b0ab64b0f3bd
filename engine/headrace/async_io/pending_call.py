"""Call that waits: a record with the progress of its calls, in memory and as a row of `async_requests`."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.execution.element import Emitted, make_emitted
from headrace.records.order import FIRST_OUTPUT, output_order

if TYPE_CHECKING:
    import asyncio


class Status(enum.Enum):
    """Progress of an element. The first three are stored in `async_requests`, the others are final."""

    PENDING = "pending"
    """No call has failed yet: it is in flight, not started, or interrupted."""

    WAITING_FOR_RETRY = "waiting for retry"
    """A call failed, and another one is due at `next_attempt_at`."""

    COMPLETED = "completed"
    """It has its results, which may have to wait for those of earlier elements."""

    QUARANTINED = "quarantined"
    """It failed for good."""


# Python 3.11 makes a call for each look at an enum's member: half a microsecond for an element.
PENDING, COMPLETED, QUARANTINED = Status.PENDING, Status.COMPLETED, Status.QUARANTINED


class PendingCall:
    """A record in the operator.

    It has slots: many are made before the first one gets its other attributes, so Python would give each a dict of its own (1.2 us of
    CPU an element).
    """

    __slots__ = (
        "attempts",
        "began",
        "begun",
        "cost_ms",
        "deadline",
        "digest",
        "emitted",
        "first_attempt_at",
        "held_since",
        "home",
        "is_calling",
        "is_changed",
        "is_expired",
        "is_last",
        "is_parked",
        "is_probe",
        "kept_at",
        "key_json",
        "last_error",
        "next_attempt_at",
        "own_deadline",
        "results",
        "sequence",
        "status",
        "task",
    )

    emitted: Emitted
    status: Status
    attempts: int
    """Ended calls, and the one in flight."""
    first_attempt_at: int | None
    """Milliseconds since the epoch."""
    cost_ms: float
    """Time that runs spent on it, calls and waits (ms)."""
    next_attempt_at: int | None
    """When the next call is due (ms); None: at once."""
    last_error: str | None
    results: Sequence[msgspec.Struct] | None
    key_json: bytes
    """The record's key, in mode keyed-ordered."""
    digest: str | None
    """Digest of its request, once it is known."""
    kept_at: tuple[int, int] | None
    """When the live lineage got its outcome, and when that expires (ms); None unless a branch has taken it."""
    sequence: int | None
    """Number of its row in `async_requests`; None without a row."""
    is_changed: bool
    """True: its row, if it has one, is out of date."""
    is_parked: bool
    """True: it waits for a later micro-batch."""
    is_last: bool
    """True: it is called once more and never again: at once, through an open breaker, and without retries."""
    is_calling: bool
    is_probe: bool
    """True: its call is the probe by which an open breaker tests the service."""
    began: float
    """When it was accepted, on the loop's clock."""
    deadline: float
    """When it expires, on the loop's clock."""
    held_since: float | None
    """When its own clock was stopped for a probe; None: it runs."""
    own_deadline: float
    """Its deadline at that time."""
    is_expired: bool
    task: asyncio.Task[None] | None
    """Task that processes it."""
    begun: Awaitable[Any] | None
    """Rest of a call that began before its task took it up."""
    home: object
    """Set of the queue that contains it."""

    def __init__(self, emitted: Emitted) -> None:
        """Accept a record."""
        self.emitted = emitted
        self.status = PENDING
        self.attempts = 0
        self.first_attempt_at = None
        self.cost_ms = 0.0
        self.next_attempt_at = None
        self.last_error = None
        self.results = None
        self.key_json = b"null"
        self.digest = None
        self.kept_at = None
        self.sequence = None
        self.is_changed = False
        self.is_parked = False
        self.is_last = False
        self.is_calling = False
        self.is_probe = False
        self.began = 0.0
        self.deadline = 0.0
        self.held_since = None
        self.own_deadline = 0.0
        self.is_expired = False
        self.task = None
        self.begun = None
        self.home = None

    @property
    def is_done(self) -> bool:
        """Return whether no further call is needed for it."""
        return self.status is COMPLETED or self.status is QUARANTINED

    def complete(self, results: Sequence[msgspec.Struct]) -> None:
        """Set its results. Later responses do not count."""
        self.results = results
        self.status = COMPLETED
        self.is_changed = True


def outputs_of(elements: Iterable[PendingCall]) -> Iterator[Emitted]:
    """Yield the results of elements, at their places in arrival order; nothing for an element in quarantine."""
    for element in elements:
        order, timestamp, kind, _ = element.emitted
        results = element.results or ()
        if len(results) == 1:
            yield make_emitted((order + FIRST_OUTPUT, timestamp, kind, results[0]))
        else:
            for index, record in enumerate(results):
                yield make_emitted((output_order(order, index), timestamp, kind, record))


class StoredCall(msgspec.Struct, frozen=True, kw_only=True):
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
    """The records of its response, once it is completed."""


class _Came(msgspec.Struct, frozen=True):
    order: str
    timestamp: int
    kind: int
    value: msgspec.Raw


def to_stored_element(element: PendingCall, sequence: int) -> StoredCall:
    """Return an element as a row; `sequence` is the row's number among those of its key."""
    results = None if element.results is None else msgspec.json.encode(list(element.results)).decode()
    return StoredCall(
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


def check_stored(row: StoredCall, takes: type[msgspec.Struct], gives: type[msgspec.Struct]) -> None:
    """Check that `loaded` can read a row: if it were committed otherwise, no run could continue from it.

    Structs are not checked when they are made, and JSON has no NaN and no infinity: they become null. Raises
    `msgspec.MsgspecError`.
    """
    came(row.element, takes)
    if row.result is not None:
        msgspec.json.decode(row.result, type=list[gives])  # type: ignore[valid-type]


def loaded(rows: Sequence[StoredCall], takes: type[msgspec.Struct], gives: type[msgspec.Struct]) -> list[PendingCall]:
    """Return the elements of rows, in arrival order. Raises `msgspec.MsgspecError` as `came` does."""
    results = msgspec.json.Decoder(list[gives])  # type: ignore[valid-type]
    elements = []
    for row in rows:
        element = PendingCall(came(row.element, takes))
        element.status = Status(row.status)
        element.key_json, element.sequence = row.key.encode(), row.sequence
        element.attempts, element.first_attempt_at = row.attempts, row.first_attempt_at
        element.cost_ms, element.next_attempt_at = float(row.cost_ms), row.next_attempt_at
        element.last_error = row.last_error
        element.results = None if row.result is None else results.decode(row.result)
        elements.append(element)
    return sorted(elements, key=lambda element: element.emitted.order)
