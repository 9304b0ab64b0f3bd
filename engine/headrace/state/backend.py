"""What a state backend is, and the one in memory.

A backend holds the *committed* entries of one operator and key-group range plus what the current
task has flushed. It speaks in batches of raw bytes; types, TTL and caching sit above it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Generic, NamedTuple, Protocol, TypeVar

from sortedcontainers import SortedDict

Write = tuple[bytes, bytes | None]
"""An entry and its new value; `None` removes it."""

VALUE_PREFIX = b"v"
GROUPED_PREFIX = b"e"
TIMER_PREFIX = b"t"
HISTORY_PREFIX = b"h"
"""First byte of every entry: the kind of state it belongs to."""

_GROUPED, _TIMERS = GROUPED_PREFIX[0], TIMER_PREFIX[0]

V = TypeVar("V")


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
        """Entries with `start <= key < end`, in byte order.

        Only timers may be scanned, and the entries of one group, up to its `end_of_group`.
        """
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in no particular order."""
        ...

    def visit(self, count: int, /) -> Iterable[tuple[bytes, bytes]]:
        """The `count` entries of keyed state behind those of the last call, from the beginning after the last one.

        Loosely: of what is written between two calls, some may be passed over, or seen twice. Nothing where entries lie
        elsewhere.
        """
        ...

    def close(self) -> None:
        """Let go of files and memory. Nothing may be called afterwards."""
        ...


class Page(NamedTuple):
    """What is asked of a backend: entries of one group, from `start` on and before `end`, at most `limit` of them (None: all)."""

    start: bytes
    end: bytes
    limit: int | None = None


Action = bytes | Page | None
"""What a request asks of a backend: the value of an entry, a page, or nothing (FLIP-425's "empty" request)."""


def answers(backend: StateBackend, actions: Sequence[Action]) -> list[object]:
    """The answer to each action, with one call to the backend for all entries: a value or None, a list of pairs, None."""
    entries = [action for action in actions if isinstance(action, bytes)]
    if len(entries) == len(actions):
        return list(backend.get_many(entries))
    found = iter(backend.get_many(entries))
    return [next(found) if isinstance(action, bytes) else _page(backend, action) for action in actions]


def _page(backend: StateBackend, page: Page | None) -> list[tuple[bytes, bytes]] | None:
    return None if page is None else list(islice(backend.scan(page.start, page.end), page.limit))


def after(entry: bytes) -> bytes:
    """Where a page starts that goes on behind `entry`."""
    return entry + b"\x00"


def end_of_group(group: bytes) -> bytes:
    """What comes right behind all entries that begin with `group`, which ends in a zero byte."""
    return group[:-1] + b"\x01"


def group_of(entry: bytes) -> bytes:
    """What the entries of one group begin with: kind, state, key and namespace, each up to a zero byte."""
    return entry[: entry.rindex(b"\x00") + 1]


class EntryGroups(Generic[V]):
    """Entries by their group. A group is sorted when it is scanned, if it has changed since."""

    def __init__(self) -> None:
        """Start empty."""
        self._groups: dict[bytes, dict[bytes, V]] = {}
        self._sorted: dict[bytes, list[bytes]] = {}

    def get(self, entry: bytes) -> V | None:
        """The value of an entry, None where there is none."""
        group = self._groups.get(group_of(entry))
        return None if group is None else group.get(entry)

    def put(self, entry: bytes, value: V) -> None:
        """Set the value of an entry."""
        name = group_of(entry)
        group = self._groups.setdefault(name, {})
        if entry not in group:
            self._sorted.pop(name, None)
        group[entry] = value

    def remove(self, entry: bytes) -> None:
        """Remove an entry, if it is there."""
        name = group_of(entry)
        group = self._groups.get(name)
        if group is None or group.pop(entry, None) is None:
            return
        self._sorted.pop(name, None)
        if not group:
            del self._groups[name]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, V]]:
        """Entries of the group that ends at `end`, from `start` on, in byte order."""
        name = end[:-1] + b"\x00"
        group = self._groups.get(name, {})
        order = self._sorted.get(name)
        if order is None:
            order = self._sorted[name] = sorted(group)
        for place in range(bisect_left(order, start), len(order)):
            yield order[place], group[order[place]]

    def items(self) -> Iterator[tuple[bytes, V]]:
        """All entries, group by group."""
        for group in self._groups.values():
            yield from group.items()


class HashMapBackend:
    """Python dicts. Timers are kept sorted; groups are sorted when they are scanned."""

    answers_at_once = True

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[bytes, bytes] = {}
        self._groups: EntryGroups[bytes] = EntryGroups()
        self._timers: SortedDict[bytes, bytes] = SortedDict()
        self._visited = 0

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """See `StateBackend.get_many`."""
        entries = self._entries
        return [entries.get(key) if key[:1] not in _SCANNED else self._get(key) for key in keys]

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """See `StateBackend.write_batch`."""
        entries, groups, timers = self._entries, self._groups, self._timers
        for key, value in writes:
            kind = key[0]
            if kind == _GROUPED:
                if value is None:
                    groups.remove(key)
                else:
                    groups.put(key, value)
                continue
            target = timers if kind == _TIMERS else entries
            if value is None:
                target.pop(key, None)
            else:
                target[key] = value

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.scan`."""
        if start[:1] == GROUPED_PREFIX:
            yield from self._groups.scan(start, end)
            return
        for key in self._timers.irange(start, end, inclusive=(True, False)):
            yield key, self._timers[key]

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.items`."""
        yield from self._entries.items()
        yield from self._groups.items()
        yield from self._timers.items()

    def visit(self, count: int, /) -> Sequence[tuple[bytes, bytes]]:
        """See `StateBackend.visit`."""
        ahead = islice(chain(self._entries.items(), self._groups.items()), self._visited, self._visited + count)
        found = list(ahead)
        self._visited = self._visited + count if len(found) == count else 0
        return [pair for pair in found if pair[0][0] in _KEYED]

    def close(self) -> None:
        """See `StateBackend.close`."""

    def _get(self, key: bytes) -> bytes | None:
        return self._timers.get(key) if key[:1] == TIMER_PREFIX else self._groups.get(key)


_SCANNED = (TIMER_PREFIX, GROUPED_PREFIX)
_KEYED = (VALUE_PREFIX[0], GROUPED_PREFIX[0])
