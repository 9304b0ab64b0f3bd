"""Threads that do nothing by themselves: repeating work runs when a test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any


class SteppedThreads:
    """See `headrace.threads.Threads`."""

    def __init__(self) -> None:
        self._repeated: list[Callable[[], None]] = []

    def beat(self) -> None:
        """Run all repeating work once."""
        for work in self._repeated:
            work()

    def map(self, work: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [work(item) for item in items]

    @contextmanager
    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
        del seconds, name
        self._repeated.append(work)
        try:
            yield
        finally:
            self._repeated.remove(work)

    def lock(self) -> AbstractContextManager[object]:
        return nullcontext()
