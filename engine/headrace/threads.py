"""The one module that starts threads for the commit protocol, so that a simulation can run them one at a time.

Tables of a job are committed side by side, and a lease is renewed while its holder works. Both ask here, so a test can put
threads of its own in place (`use`), as it does with the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads(Protocol):
    """What the commit protocol does side by side."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do some work for each item, for all at once; return the results in the order of the items.

        Raises what the work for the first item that failed has raised, when the work for all of them has ended.
        """
        ...

    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> AbstractContextManager[None]:
        """Do some work every so many seconds for the length of a block, first `seconds` after its beginning."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that one thread at a time holds."""
        ...


class SystemThreads:
    """The real ones."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """See `Threads.map`."""
        if not items:
            return []
        with ThreadPoolExecutor(len(items)) as pool:
            return list(pool.map(work, items))

    @contextmanager
    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
        """See `Threads.repeating`."""
        stop = threading.Event()

        def repeat() -> None:
            while not stop.wait(seconds):
                work()

        thread = threading.Thread(target=repeat, daemon=True, name=name)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def lock(self) -> AbstractContextManager[object]:
        """See `Threads.lock`."""
        return threading.Lock()


_threads: Threads = SystemThreads()


def use(threads: Threads) -> Threads:
    """Put `threads` in place for this process and return those that were there."""
    global _threads
    previous, _threads = _threads, threads
    return previous


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do some work for each item; see `Threads.map`."""
    return _threads.map(work, items)


def repeating(seconds: float, work: Callable[[], None], name: str) -> AbstractContextManager[None]:
    """Do some work again and again for the length of a block; see `Threads.repeating`."""
    return _threads.repeating(seconds, work, name)


def lock() -> AbstractContextManager[object]:
    """Return a lock; see `Threads.lock`."""
    return _threads.lock()
