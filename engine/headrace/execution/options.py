"""How a task executes state access asynchronously (FLIP-425, "Configurations")."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta


class KeyOrder(enum.Enum):
    """What is kept in order among records of one key (FLIP-425, "Strict order of 'processElement'")."""

    RECORD_ORDERED = "record-ordered"
    """A record starts when the one before it, of the same key, has finished."""
    STATE_ORDERED = "state-ordered"
    """A record starts at once, and waits at its first state access. For internal use: what user code does before
    that access may overtake the record before it."""


class EventOrder(enum.Enum):
    """How a watermark and the records after it are ordered (FLIP-425, "Watermark")."""

    OUT_OF_ORDER = "out-of-order"
    """Records after a watermark may start before it has been processed; each key still sees them in order."""
    STRICTLY_ORDERED = "strictly-ordered"
    """Records after a watermark wait until it, and the timers that it fires, are done."""


@dataclass(frozen=True, slots=True)
class AsyncStateOptions:
    """The options `execution.async-state.*`, with the FLIP's names and defaults. None of them changes results."""

    enabled: bool = True
    """Whether state access may be asynchronous; if not, each access is answered before the next one."""
    in_flight_records_limit: int = 6000
    """Records (and timers) of a task that may be started or waiting at once."""
    buffer_size: int = 1000
    """Requests that make a batch."""
    buffer_timeout: timedelta = timedelta(seconds=1)
    """How long a request waits for its batch to fill."""
    order_with_same_key: KeyOrder = KeyOrder.RECORD_ORDERED
    event_order_watermark: EventOrder = EventOrder.OUT_OF_ORDER
    io_parallelism: int = 2
    """Batches in execution at once, each in a thread of its own."""
    cache_entries: int = 1_000_000
    """Decoded values that a task holds at most, beside those that it has changed."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a limit below 1, or a negative timeout."""
        for name in ("in_flight_records_limit", "buffer_size", "io_parallelism", "cache_entries"):
            if getattr(self, name) < 1:
                msg = f"{name} must be at least 1, not {getattr(self, name)}"
                raise ValueError(msg)
        if self.buffer_timeout < timedelta(0):
            msg = f"buffer_timeout must not be negative, not {self.buffer_timeout}"
            raise ValueError(msg)
