"""Timeouts of elements: one timer for all of them, where a timer each would cost more than a call that is quick."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

from engine.async_io.element import AsyncElement


class Deadlines:
    """Cancels the task of an element whose time is up, and marks the element as expired."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch nothing yet."""
        self._loop = loop
        self._heap: list[tuple[float, int, AsyncElement]] = []
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, element: AsyncElement) -> None:
        """Mind `element.deadline` until `element.task` is None again."""
        heapq.heappush(self._heap, (element.deadline, next(self._number), element))
        if self._timer is None or self._timer.when() > element.deadline:
            self._set_timer()

    def close(self) -> None:
        """Watch nothing any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._ring) if self._heap else None

    def _ring(self) -> None:
        self._timer = None
        now, heap = self._loop.time(), self._heap
        # Those that are done in the meantime leave the heap here: they cost no timer of their own.
        while heap and (heap[0][2].task is None or heap[0][0] <= now):
            element = heapq.heappop(heap)[2]
            # Since it was watched it may have got another deadline, or have been parked and taken up again, and be watched
            # twice.
            if element.task is not None and element.deadline <= now and not element.is_expired:
                element.is_expired = True
                element.task.cancel()
        self._set_timer()
