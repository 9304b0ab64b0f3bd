"""Threads of the commit protocol: the only module that starts them, so that a simulation can run them one at a time.

A job's tables are committed in parallel, and a lease is renewed while its holder works. Both use this module, so a test can install
its own threads (`use`), as with the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, Generic, Protocol, TypeVar, overload

KEPT: Final = "headrace-"
"""Begin of the names of threads that the engine keeps until the process ends. They have no work then."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads(Protocol):
    """Interface of parallel work in the commit protocol."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do some work for all items in parallel; return the results in the order of the items.

        When all work has ended, raises the error of the first item that failed.
        """
        ...

    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> AbstractContextManager[None]:
        """Do some work every `seconds` for the length of a block, first `seconds` after its beginning."""
        ...

    def lock(self) -> AbstractContextManager[object]:
        """Return a lock that one thread at a time holds."""
        ...


class SystemThreads:
    """Threads of the operating system."""

    def map(self, work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Do the work for all items in a pool of threads; for a single item in this thread."""
        if len(items) <= 1:
            return [work(item) for item in items]
        with ThreadPoolExecutor(len(items)) as pool:
            return list(pool.map(work, items))

    @contextmanager
    def repeating(self, seconds: float, work: Callable[[], None], name: str) -> Iterator[None]:
        """Repeat the work in a separate thread."""
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
        """Return a lock that one thread at a time holds."""
        return threading.Lock()


_threads: Threads = SystemThreads()


def use(threads: Threads) -> Threads:
    """Install `threads` for this process; return the former ones."""
    global _threads
    previous, _threads = _threads, threads
    return previous


def in_parallel(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Do some work for all items in parallel; see `Threads.map`."""
    return _threads.map(work, items)


def repeating(seconds: float, work: Callable[[], None], name: str) -> AbstractContextManager[None]:
    """Repeat some work for the length of a block; see `Threads.repeating`."""
    return _threads.repeating(seconds, work, name)


def lock() -> AbstractContextManager[object]:
    """Return a lock; see `Threads.lock`."""
    return _threads.lock()


class read_once(Generic[Result]):  # noqa: N801 - a decorator
    """Property that is read from storage at the first look, and kept.

    `functools.cached_property` of Python 3.11 holds one lock for all objects of a class meanwhile: a thread that reads a slow table
    keeps all others waiting.
    """

    def __init__(self, read: Callable[[Any], Result]) -> None:
        """Decorate the method that reads."""
        self._read, self.__doc__ = read, read.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        """Take the name that the property has in its class."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> read_once[Result]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Result: ...

    def __get__(self, instance: object | None, owner: type) -> Result | read_once[Result]:
        """Read, and keep what was read in place of this property."""
        if instance is None:
            return self
        value = self._read(instance)
        instance.__dict__[self._name] = value
        return value
