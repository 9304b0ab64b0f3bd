"""What moves, as numbers: the same for tests, `explain` and people."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """A controller at one moment."""

    in_flight: int
    """Records and timers taken in and not finished."""
    active: int
    """Requests that wait for their batch."""
    blocking: int
    """Records, or first requests, that wait for their key."""
    occupied_keys: int
    """Keys that are being worked on."""
    epochs: int
    """Epochs that are not done, the open one included."""
    batches: int
    """Batches started so far."""
    batches_in_flight: int
    """Batches that are being executed."""
    requests: int
    """Requests made so far that could not be answered at once."""
