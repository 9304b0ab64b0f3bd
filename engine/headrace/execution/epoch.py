"""Epochs: segments of the input between watermarks (FLIP-425, "Watermark").

A watermark takes effect when all records before it, and everything derived from them, are finished:

    records   a b c | d e    | f
    epochs    1     | 2      | 3 (open)
    finished      c,a,b   d      ...  e        the watermark after 1 is emitted once b is done, that after 2 after e

Timers that a watermark fires belong to the epoch that it ends, so it is emitted after them.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable


class EpochStatus(enum.Enum):
    """Progress of an epoch."""

    OPEN = "open"
    """Arriving records belong to it."""
    CLOSED = "closed"
    """The event that ends it has arrived; its records may still be running."""
    FINISHED = "finished"
    """Its records are done; the event that ends it is being processed."""


class Epoch:
    """A segment of the input; `ongoing` counts its unfinished records and timers."""

    __slots__ = ("final", "ongoing", "status", "trigger")

    def __init__(self) -> None:
        """Make an open epoch."""
        self.status = EpochStatus.OPEN
        self.ongoing = 0
        self.trigger: Callable[[Epoch], None] | None = None
        self.final: Callable[[], None] | None = None


class EpochManager:
    """Queue of the open epoch and of earlier unfinished ones, in order."""

    def __init__(self) -> None:
        """Start with an open epoch."""
        self.open = Epoch()
        self._queue: deque[Epoch] = deque()
        self._advancing = False

    def __len__(self) -> int:
        """Return the number of unfinished epochs, including the open one."""
        return len(self._queue) + 1

    @property
    def is_idle(self) -> bool:
        """Return whether all epochs but the open one are done."""
        return not self._queue

    def on_non_record(self, trigger: Callable[[Epoch], None], final: Callable[[], None]) -> None:
        """Close the open epoch: an event that is not a record has arrived, such as a watermark.

        `trigger` is called with the epoch when its records, and all epochs before it, are done; work that it starts
        may be counted in the epoch. `final` is called when that work is done, too.
        """
        epoch, self.open = self.open, Epoch()
        epoch.status = EpochStatus.CLOSED
        epoch.trigger, epoch.final = trigger, final
        self._queue.append(epoch)

    def abandon(self) -> int:
        """Drop all closed epochs whose turn has not come: the events that end them will be repeated. Return how many."""
        count = sum(epoch.status is EpochStatus.CLOSED for epoch in self._queue)
        self._queue = deque(epoch for epoch in self._queue if epoch.status is not EpochStatus.CLOSED)
        return count

    @property
    def can_advance(self) -> bool:
        """Return whether `advance` would do something."""
        return not self._advancing and bool(self._queue) and self._queue[0].ongoing == 0

    def advance(self) -> None:
        """Advance the first epochs whose records are done. Called by the task's loop, never from within a record."""
        self._advancing = True
        try:
            while self._queue and self._queue[0].ongoing == 0:
                self._move_on(self._queue[0])
        finally:
            self._advancing = False

    def _move_on(self, epoch: Epoch) -> None:
        if epoch.status is EpochStatus.CLOSED:
            epoch.status = EpochStatus.FINISHED
            if epoch.trigger is not None:
                epoch.trigger(epoch)
            return
        self._queue.popleft()
        if epoch.final is not None:
            epoch.final()
