"""Threads of a world: all work is done in the thread of the test, one piece after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from headrace import clock

Item = TypeVar("Item")
Result = TypeVar("Result")


class WorldThreads:
    """Threads that do nothing by themselves: parallel work follows an order that the clock draws, repeated work waits for `beat`."""

    def __init__(self) -> None:
        """Repeat no work yet."""
        self._repeated: list[Callable[[], None]] = []

    def beat(self) -> None:
        """Do all repeated work once: the renewal of a lease, the look at a run's progress."""
        for work in [*self._repeated]:
            work()

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do some work for all items, and return the results in the order of the items. When all work has ended, the error of the first item that failed is raised."""
        results: dict[int, Result] = {}
        errors: dict[int, Exception] = {}
        for number in sorted(range(len(items)), key=lambda _: clock.jitter()):
            try:
                results[number] = work(items[number])
            except Exception as error:  # noqa: BLE001 - raised below, as threads of the system do
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return [results[number] for number in range(len(items))]

    @contextmanager
    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
        """Do some work at each `beat` for the length of a block."""
        del seconds, name
        self._repeated.append(work)
        try:
            yield
        finally:
            self._repeated.remove(work)

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that never waits: no other thread exists."""
        return nullcontext()
