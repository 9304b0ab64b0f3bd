"""Timeouts of elements: one timer for all, since a timer for each costs more than a quick call."""

from __future__ import annotations

import asyncio
import heapq
import math
from itertools import count

from headrace.async_io.element import AsyncElement

_HELD_UP = 0.5
"""Seconds that the timer may be late. If it is later, deadlines move by the delay, so that arrived answers are processed."""


class Deadlines:
    """Cancels the task of an expired element, and marks the element as expired."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start without elements."""
        self._loop = loop
        self._heap: list[tuple[float, int, AsyncElement]] = []
        self._number = count()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, element: AsyncElement) -> None:
        """Watch `element.deadline` until `element.task` is None again; an element without a timeout never expires."""
        if element.deadline == math.inf:
            return
        heapq.heappush(self._heap, (element.deadline, next(self._number), element))
        if self._timer is None or self._timer.when() > element.deadline:
            self._set_timer()

    def close(self) -> None:
        """Stop watching."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _prolong(self, seconds: float) -> None:
        """Exclude time in which the loop did not run: an overloaded machine, or a function that blocks.

        Answers may have arrived in that time that are not processed yet.
        """
        for element in {element for _, _, element in self._heap}:
            element.deadline += seconds
        self._heap = [(deadline + seconds, number, element) for deadline, number, element in self._heap]

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._heap[0][0], self._ring) if self._heap else None

    def _ring(self) -> None:
        assert self._timer is not None  # noqa: S101 - this is its callback
        late = self._loop.time() - self._timer.when()
        self._timer = None
        if late > _HELD_UP:
            self._prolong(late + _HELD_UP)
        now, heap = self._loop.time(), self._heap
        # Elements that were done in the meantime leave the heap here, without a timer of their own.
        while heap and (heap[0][2].task is None or heap[0][0] <= now):
            element = heapq.heappop(heap)[2]
            # Meanwhile the element may have got a new deadline. Or it was parked and resumed, and is in the heap
            # twice.
            if element.task is not None and element.deadline <= now and not element.is_expired:
                element.is_expired = True
                element.task.cancel()
        self._set_timer()
