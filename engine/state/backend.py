"""What a state backend is, and the one in memory.

A backend holds the *committed* entries of one operator and key-group range plus what the current
task has flushed. It speaks in batches of raw bytes; types, TTL and caching sit above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from sortedcontainers import SortedDict

Write = tuple[bytes, bytes | None]
"""An entry and its new value; `None` removes it."""

VALUES = b"v"
TIMERS = b"t"
HISTORY = b"h"
"""First byte of every entry: the kind of state it belongs to."""


class StateBackend(Protocol):
    """A map from bytes to bytes."""

    answers_at_once: bool
    """Whether reading one entry costs no more than asking for it later in a batch would: it is in memory."""

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """The value of each key, `None` where there is none."""
        ...

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """Apply writes in order; a later one for the same entry wins."""
        ...

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Entries with `start <= key < end`, in byte order. Only timers may be scanned."""
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in no particular order."""
        ...

    def close(self) -> None:
        """Let go of files and memory. Nothing may be called afterwards."""
        ...


class HashMapBackend:
    """Python dicts. Timers, the only entries that are scanned, are kept sorted."""

    answers_at_once = True

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[bytes, bytes] = {}
        self._timers: SortedDict[bytes, bytes] = SortedDict()

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """See `StateBackend.get_many`."""
        entries, timers = self._entries, self._timers
        return [timers.get(key) if key[:1] == TIMERS else entries.get(key) for key in keys]

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """See `StateBackend.write_batch`."""
        entries, timers = self._entries, self._timers
        for key, value in writes:
            target = timers if key[:1] == TIMERS else entries
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.scan`."""
        for key in self._timers.irange(start, end, inclusive=(True, False)):
            yield key, self._timers[key]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.items`."""
        yield from self._entries.items()
        yield from self._timers.items()

    def close(self) -> None:
        """See `StateBackend.close`."""
