"""What moves, as numbers: the same for tests, `explain` and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.state.state_store import StoreStatistics
    from headrace.state.timer_service import TimerStatistics


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


@dataclass(frozen=True, slots=True)
class KeyedProcessStatistics:
    """A keyed process in one task at one moment, part by part."""

    controller: ControllerStatistics
    states: Mapping[str, StoreStatistics]
    """By the state's name."""
    timers: TimerStatistics
    records: int
    """Records taken in so far."""
    late: int
    """Those of them that came at or behind the watermark."""
    removed: int
    """Expired entries that nobody has asked for, and that cleanup has removed."""
