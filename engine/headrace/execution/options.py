"""Options of asynchronous state access in a task (FLIP-425, "Configurations")."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import timedelta


class KeyOrder(enum.Enum):
    """Order among records of one key (FLIP-425, "Strict order of 'processElement'")."""

    RECORD_ORDERED = "record-ordered"
    """A record starts when the previous one of the same key has finished."""
    STATE_ORDERED = "state-ordered"
    """A record starts at once, and waits at its first state access. For internal use: user code before
    that access may overtake the previous record."""


class EventOrder(enum.Enum):
    """Order of a watermark and the records after it (FLIP-425, "Watermark")."""

    OUT_OF_ORDER = "out-of-order"
    """Records after a watermark may start before it has been processed; each key still sees them in order."""
    STRICTLY_ORDERED = "strictly-ordered"
    """Records after a watermark wait until it, and the timers that it fires, are done."""


@dataclass(frozen=True, slots=True)
class AsyncStateOptions:
    """Options `execution.async-state.*`, with the FLIP's names and defaults. None of them changes results."""

    enabled: bool = True
    """False: each state access is answered before the next one."""
    in_flight_records_limit: int = 6000
    """Largest number of records (and timers) of a task that are running or waiting at once."""
    buffer_size: int = 1000
    """Number of requests in a batch."""
    buffer_timeout: timedelta = timedelta(seconds=1)
    """Longest time that a request waits for its batch to fill."""
    order_with_same_key: KeyOrder = KeyOrder.RECORD_ORDERED
    event_order_watermark: EventOrder = EventOrder.OUT_OF_ORDER
    io_parallelism: int = 2
    """Number of batches in execution at once, each in its own thread."""
    cache_entries: int = 1_000_000
    """Largest number of decoded values that a task caches, besides those that it changed."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for a limit below 1, or a negative timeout."""
        for name in ("in_flight_records_limit", "buffer_size", "io_parallelism", "cache_entries"):
            if getattr(self, name) < 1:
                msg = f"{name} must be at least 1, not {getattr(self, name)}"
                raise ValueError(msg)
        if self.buffer_timeout < timedelta(0):
            msg = f"buffer_timeout must not be negative, not {self.buffer_timeout}"
            raise ValueError(msg)
