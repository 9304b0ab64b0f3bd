"""The queue of elements that were taken in and not emitted (Flink Async I/O, `StreamElementQueue`).

    ordered      1  2  W  3  4         out goes a prefix: 4 is done, but waits for 1, 2 and 3

    unordered   {1  2} W {3  4}        sets, cut by watermarks: out goes anything that is done in the first set;
                                       when that is empty, W; then the next set is the first

Without watermarks the unordered queue is one set: that is unordered in processing time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from headrace.async_io.element import AsyncElement


@dataclass(frozen=True, slots=True)
class QueuedWatermark:
    """A watermark in the queue (ms). It takes a place, as an element does."""

    timestamp: int


Queued = AsyncElement | QueuedWatermark


class ElementQueue(Protocol):
    """What both queues can do."""

    def __len__(self) -> int:
        """How many elements and watermarks are in it, those that are done included."""
        ...

    def put(self, element: AsyncElement, /) -> None:
        """Take in an element."""
        ...

    def put_watermark(self, timestamp: int, /) -> None:
        """Take in a watermark."""
        ...

    def done(self, element: AsyncElement, /) -> None:
        """Tell that an element in the queue is done: exactly once for each."""
        ...

    def take(self) -> list[Queued]:
        """Remove what may be emitted now, and return it in the order in which it is to be."""
        ...

    def remaining(self) -> list[Queued]:
        """All that is in it, as it came: what a checkpoint has to hold."""
        ...


class OrderedQueue:
    """First in, first out, watermarks included."""

    def __init__(self) -> None:
        """Start empty."""
        self._queue: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, element: AsyncElement, /) -> None:
        """See `ElementQueue.put`."""
        self._queue.append(element)

    def put_watermark(self, timestamp: int, /) -> None:
        """See `ElementQueue.put_watermark`."""
        self._queue.append(QueuedWatermark(timestamp))

    def done(self, element: AsyncElement, /) -> None:
        """See `ElementQueue.done`; the element knows it by itself."""

    def take(self) -> list[Queued]:
        """See `ElementQueue.take`: the done ones at the front."""
        queue, taken = self._queue, []
        while queue and (isinstance(queue[0], QueuedWatermark) or queue[0].is_done):
            taken.append(queue.popleft())
        return taken

    def remaining(self) -> list[Queued]:
        """See `ElementQueue.remaining`."""
        return list(self._queue)


@dataclass(slots=True)
class _Set:
    """Elements between two watermarks."""

    waiting: dict[AsyncElement, None] = field(default_factory=dict)
    """A dict for its order, and to remove from it."""
    finished: list[AsyncElement] = field(default_factory=list)
    watermark: int | None = None
    """The watermark that ends it, once that has come."""


class UnorderedQueue:
    """Watermark sets (Flink Async I/O, `UnorderedStreamElementQueue`)."""

    def __init__(self) -> None:
        """Start with one empty set."""
        self._sets: deque[_Set] = deque([_Set()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, element: AsyncElement, /) -> None:
        """See `ElementQueue.put`."""
        element.home = last = self._sets[-1]
        last.waiting[element] = None
        self._size += 1

    def put_watermark(self, timestamp: int, /) -> None:
        """See `ElementQueue.put_watermark`."""
        self._sets[-1].watermark = timestamp
        self._sets.append(_Set())
        self._size += 1

    def done(self, element: AsyncElement, /) -> None:
        """See `ElementQueue.done`."""
        home = element.home
        assert isinstance(home, _Set)  # noqa: S101 - `put` has set it
        del home.waiting[element]
        home.finished.append(element)

    def take(self) -> list[Queued]:
        """See `ElementQueue.take`: in the order in which they were done."""
        taken: list[Queued] = []
        first = self._sets[0]
        while True:
            taken += first.finished
            first.finished = []
            if first.waiting or first.watermark is None:
                break
            taken.append(QueuedWatermark(first.watermark))
            self._sets.popleft()
            first = self._sets[0]
        self._size -= len(taken)
        return taken

    def remaining(self) -> list[Queued]:
        """See `ElementQueue.remaining`."""
        found: list[Queued] = []
        for each in self._sets:
            elements = sorted([*each.waiting, *each.finished], key=lambda one: one.emitted.order)
            found += elements
            if each.watermark is not None:
                found.append(QueuedWatermark(each.watermark))
        return found
