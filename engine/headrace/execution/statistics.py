"""Statistics of execution: the same for tests, `explain` and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.state.store import StoreStatistics
    from headrace.state.timers import TimerStatistics


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """State of a controller at one time."""

    in_flight: int
    """Accepted records and timers that are not finished."""
    active: int
    """Requests that wait for their batch."""
    blocking: int
    """Records, or first requests, that wait for their key."""
    occupied_keys: int
    """Keys in use."""
    epochs: int
    """Unfinished epochs, including the open one."""
    batches: int
    """Batches started so far."""
    batches_in_flight: int
    """Batches in execution."""
    requests: int
    """Requests made so far that could not be answered at once."""


@dataclass(frozen=True, slots=True)
class KeyedProcessStatistics:
    """State of a keyed process in one task at one time, part by part."""

    controller: ControllerStatistics
    states: Mapping[str, StoreStatistics]
    """Store statistics by the state's name."""
    timers: TimerStatistics
    records: int
    """Processed records so far."""
    late: int
    """Processed records that arrived at or behind the watermark."""
    removed: int
    """Expired entries that cleanup removed without a read."""
