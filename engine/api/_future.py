"""The answer of a state call (FLIP-425, "Async Execution Controller")."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StateFuture(Generic[T]):
    """What a state call returns: `await` it to get the answer.

    State is read synchronously at present, so a future is complete when it is handed out and
    awaiting it never suspends.
    """

    __slots__ = ("_value",)

    def __init__(self, value: T) -> None:
        """Make a completed future."""
        self._value = value

    def __await__(self) -> Generator[Any, None, T]:
        """Return the answer."""
        yield from ()  # makes this a generator, which `await` requires, and never suspends
        return self._value


DONE: StateFuture[None] = StateFuture(None)
"""Shared by all calls that answer nothing."""
