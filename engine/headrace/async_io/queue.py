"""Queue of elements that were accepted and not emitted (Flink Async I/O, `StreamElementQueue`).

    ordered      1  2  W  3  4         emits a prefix: 4 is done, but waits for 1, 2 and 3

    unordered   {1  2} W {3  4}        sets, separated by watermarks: emits done elements of the first set;
                                       when it is empty, W; then the next set is the first

Without watermarks the unordered queue is one set: that is unordered in processing time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from headrace.async_io.pending_call import PendingCall


@dataclass(frozen=True, slots=True)
class QueuedWatermark:
    """A watermark in the queue (ms). It has a place like an element."""

    timestamp: int


Queued = PendingCall | QueuedWatermark


class ElementQueue(Protocol):
    """Interface of both queues."""

    def __len__(self) -> int:
        """Return the number of elements and watermarks in it, including done ones."""
        ...

    def put(self, element: PendingCall, /) -> None:
        """Add an element."""
        ...

    def put_watermark(self, timestamp: int, /) -> None:
        """Add a watermark (ms)."""
        ...

    def done(self, element: PendingCall, /) -> None:
        """Report that a queued element is done. Called exactly once for each."""
        ...

    def take(self) -> list[Queued]:
        """Remove and return what may be emitted now, in the order of emission."""
        ...

    def remaining(self) -> list[Queued]:
        """Return all queued elements and watermarks, in arrival order: the content of a checkpoint."""
        ...


class OrderedQueue:
    """First in, first out, including watermarks."""

    def __init__(self) -> None:
        """Start empty."""
        self._queue: deque[Queued] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, element: PendingCall, /) -> None:
        """Add an element."""
        self._queue.append(element)

    def put_watermark(self, timestamp: int, /) -> None:
        """Add a watermark (ms)."""
        self._queue.append(QueuedWatermark(timestamp))

    def done(self, element: PendingCall, /) -> None:
        """Do nothing: the element's own status says that it is done."""

    def take(self) -> list[Queued]:
        """Remove and return the done elements at the front."""
        queue, taken = self._queue, []
        while queue and (isinstance(queue[0], QueuedWatermark) or queue[0].is_done):
            taken.append(queue.popleft())
        return taken

    def remaining(self) -> list[Queued]:
        """Return all queued elements and watermarks, in arrival order."""
        return list(self._queue)


@dataclass(slots=True)
class _Set:
    """Elements between two watermarks."""

    waiting: dict[PendingCall, None] = field(default_factory=dict)
    """A dict for its order, and for quick removal."""
    finished: list[PendingCall] = field(default_factory=list)
    watermark: int | None = None
    """Watermark that ends it, once it has arrived."""


class UnorderedQueue:
    """Watermark sets (Flink Async I/O, `UnorderedStreamElementQueue`)."""

    def __init__(self) -> None:
        """Start with one empty set."""
        self._sets: deque[_Set] = deque([_Set()])
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, element: PendingCall, /) -> None:
        """Add an element."""
        element.home = last = self._sets[-1]
        last.waiting[element] = None
        self._size += 1

    def put_watermark(self, timestamp: int, /) -> None:
        """Add a watermark (ms)."""
        self._sets[-1].watermark = timestamp
        self._sets.append(_Set())
        self._size += 1

    def done(self, element: PendingCall, /) -> None:
        """Move a done element to the results of its set. Called exactly once for each."""
        home = element.home
        assert isinstance(home, _Set)  # noqa: S101 - `put` has set it
        del home.waiting[element]
        home.finished.append(element)

    def take(self) -> list[Queued]:
        """Remove and return what may be emitted now, in the order of completion."""
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
        """Return all queued elements and watermarks, in arrival order."""
        queued: list[Queued] = []
        for set_ in self._sets:
            elements = sorted([*set_.waiting, *set_.finished], key=lambda element: element.emitted.order)
            queued += elements
            if set_.watermark is not None:
                queued.append(QueuedWatermark(set_.watermark))
        return queued
