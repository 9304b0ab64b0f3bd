"""One element of the async wait operator: a record that was taken in, and how far its calls have come."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

import msgspec

from headrace.execution.element import Emitted
from headrace.plan.order import output_order


class Status(enum.Enum):
    """Where an element stands. The first three are stored in `async_requests`, the others are ends."""

    PENDING = "pending"
    """No call has failed yet: it is under way, was not begun, or was interrupted."""

    WAITING_FOR_RETRY = "waiting for retry"
    """A call has failed, and another one is due at `next_attempt_at`."""

    COMPLETED = "completed"
    """It has its results, which may have to wait for those of earlier elements."""

    QUARANTINED = "quarantined"
    """It was given up on."""


class AsyncElement:
    """A record on its way through the operator. Attributes that most elements never change are the class's own."""

    status = Status.PENDING
    attempts = 0
    """Calls that have ended, and the one under way."""
    first_attempt_at: int | None = None
    """Milliseconds since the epoch."""
    cost_ms = 0.0
    """Time that runs have spent on it, calls and waits."""
    next_attempt_at: int | None = None
    """When it may be called (ms); None: at once."""
    last_error: str | None = None
    results: Sequence[msgspec.Struct] | None = None
    key_json: bytes = b"null"
    """The record's key, in mode keyed-ordered."""
    sequence: int | None = None
    """The number of its row in `async_requests`; None if it has none."""
    is_changed = False
    """Whether its row, if it has one, says something else."""
    is_parked = False
    """Whether it waits for a later micro-batch."""
    is_last = False
    """Whether it is called for once more and never again: at once, through an open breaker, and with no retry."""
    is_calling = False
    is_probe = False
    """Whether its call is the one by which an open breaker finds out how the service is."""
    began = 0.0
    """When it was accepted, on the loop's clock."""
    deadline = 0.0
    """When its time is up, on the loop's clock."""
    held_since: float | None = None
    """Since when its own time stands still, because of a probe; None: it runs."""
    own_deadline = 0.0
    """The deadline as it was then."""
    is_expired = False
    task: asyncio.Task[None] | None = None
    """What is at work on it."""
    home: object = None
    """Where the queue has put it."""

    def __init__(self, emitted: Emitted) -> None:
        """Take in a record."""
        self.emitted = emitted

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to be called for it."""
        return self.status is Status.COMPLETED or self.status is Status.QUARANTINED

    def complete(self, results: Sequence[msgspec.Struct]) -> None:
        """It has its answer: the only one that counts."""
        self.results = results
        self.status = Status.COMPLETED
        self.is_changed = True

    def outputs(self) -> list[Emitted]:
        """What goes on for it: its results, in its place; nothing if it is in quarantine."""
        order, timestamp, kind, _ = self.emitted
        results = self.results or ()
        if len(results) == 1:
            return [Emitted(output_order(order, 0), timestamp, kind, results[0])]
        return [Emitted(output_order(order, index), timestamp, kind, record) for index, record in enumerate(results)]
