"""State backends: their interface, the one in memory, and names of entries.

A backend holds the *committed* entries of one operator and key-group range, plus the entries that the current
task has flushed. It works on batches of raw bytes; types, TTL and caching are above it.

    single value        v <state> 00 <key> [00 <namespace>]
    element or entry    e <state> 00 <key> 00 <namespace> 00 <user key>

Key and user key are JSON text without raw zero bytes, and a namespace has none either, so the parts are unambiguous.
All entries of a key in one namespace of a list or map (a *group*) are adjacent, in the order of the user keys' text.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from sortedcontainers import SortedDict

Write = tuple[bytes, bytes | None]
"""An entry and its new value; `None` removes it."""

VALUE_PREFIX = b"v"
GROUPED_PREFIX = b"e"
TIMER_PREFIX = b"t"
HISTORY_PREFIX = b"h"
"""First byte of every entry: its kind of state."""

_GROUPED, _TIMERS = GROUPED_PREFIX[0], TIMER_PREFIX[0]

V = TypeVar("V")


class StateBackend(Protocol):
    """Map from bytes to bytes."""

    is_in_memory: bool
    """True: entries are in memory, so reading one at once costs no more than reading it later in a batch."""

    scans_keys: bool
    """True: one scan may cover all groups that a key has of a state, the entries that begin with its `entry_groups`."""

    is_sorted: bool
    """True: entries lie in byte order, so reading many of them in this order costs a part of reading them in any other."""

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the value of each key; `None` for a key without one."""
        ...

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """Apply writes in order; a later one for the same entry wins."""
        ...

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over entries with `start <= key < end`, in byte order.

        Only timers may be scanned, and the entries of one group, up to its `end_of_group`; with `scans_keys`, also the entries
        of all groups that a key has of a state.
        """
        ...

    def may_have(self, prefixes: Sequence[bytes], /) -> list[bool]:
        """Return for each prefix whether an entry may begin with it; False is certain.

        The prefixes are `entry_groups` of one state, in byte order. True is the answer, too, where finding out takes long.
        """
        ...

    def may_have_kind(self, kind: bytes, /) -> bool:
        """Return whether an entry may begin with `kind`, one of the prefixes of one byte; False is certain. True where finding out takes long."""
        ...

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all entries, in no particular order."""
        ...

    def visit(self, count: int, /) -> Iterable[tuple[bytes, bytes]]:
        """Return the next `count` entries of keyed state after those of the last call, starting over after the last one.

        Entries written between two calls may be skipped, or returned twice. Empty where the backend does not hold the
        entries.
        """
        ...

    def close(self) -> None:
        """Release files and memory. No other method may be called afterwards."""
        ...


class Page(NamedTuple):
    """Request for entries of one group, or of all groups of a state and key, from `start` on and before `end`, at most `limit` (None: all)."""

    start: bytes
    end: bytes
    limit: int | None = None


Action = bytes | Page | None
"""Read that a request asks a backend for: the value of an entry, a page, or nothing (FLIP-425's "empty" request)."""


def answers(backend: StateBackend, actions: Sequence[Action]) -> list[object]:
    """Return the answer to each action, with one call to the backend for all entries: a value or None, a list of pairs, None."""
    entries = [action for action in actions if isinstance(action, bytes)]
    if len(entries) == len(actions):
        return list(backend.get_many(entries))
    values = iter(backend.get_many(entries))
    return [next(values) if isinstance(action, bytes) else _page(backend, action) for action in actions]


def _page(backend: StateBackend, page: Page | None) -> list[tuple[bytes, bytes]] | None:
    return None if page is None else list(islice(backend.scan(page.start, page.end), page.limit))


def after(entry: bytes) -> bytes:
    """Return the start of a page that continues after `entry`."""
    return entry + b"\x00"


def end_of_group(group: bytes) -> bytes:
    """Return the first key after all entries that begin with `group`, or a key's `entry_groups`, which ends in a zero byte."""
    return group[:-1] + b"\x01"


def group_of(entry: bytes) -> bytes:
    """Return the common prefix of a group's entries: kind, state, key and namespace, each ended by a zero byte."""
    return entry[: entry.rindex(b"\x00") + 1]


class EntryGroups(Generic[V]):
    """Entries by their group. A scan sorts its group, if the group has changed since the last one."""

    def __init__(self) -> None:
        """Start empty."""
        self._groups: dict[bytes, dict[bytes, V]] = {}
        self._sorted: dict[bytes, list[bytes]] = {}

    def get(self, entry: bytes) -> V | None:
        """Return the value of an entry; None without one."""
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
        """Iterate over entries of the group that ends at `end`, from `start` on, in byte order."""
        name = end[:-1] + b"\x00"
        group = self._groups.get(name, {})
        order = self._sorted.get(name)
        if order is None:
            order = self._sorted[name] = sorted(group)
        for place in range(bisect_left(order, start), len(order)):
            yield order[place], group[order[place]]

    def items(self) -> Iterator[tuple[bytes, V]]:
        """Iterate over all entries, group by group."""
        for group in self._groups.values():
            yield from group.items()


class HashMapBackend:
    """Backend of Python dicts. Timers are kept sorted; groups are sorted when they are scanned."""

    is_in_memory = True
    scans_keys = False
    is_sorted = False

    def __init__(self) -> None:
        """Start empty."""
        self._entries: dict[bytes, bytes] = {}
        self._groups: EntryGroups[bytes] = EntryGroups()
        self._timers: SortedDict[bytes, bytes] = SortedDict()
        self._visited = 0

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the value of each key; `None` for a key without one."""
        values = list(map(self._entries.get, keys))
        if None not in values:
            return values
        return [
            self._get(key) if value is None and key[:1] in _SCANNED else value
            for key, value in zip(keys, values, strict=True)
        ]

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """Apply writes in order; a later one for the same entry wins."""
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
        """Iterate over entries with `start <= key < end`, in byte order."""
        if start[:1] == GROUPED_PREFIX:
            yield from self._groups.scan(start, end)
            return
        for key in self._timers.irange(start, end, inclusive=(True, False)):
            yield key, self._timers[key]

    def may_have(self, prefixes: Sequence[bytes], /) -> list[bool]:
        """Return for each prefix whether an entry may begin with it."""
        return [True] * len(prefixes)

    def may_have_kind(self, _kind: bytes, /) -> bool:
        """Return True: reads cost little."""
        return True

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all entries, in no particular order."""
        yield from self._entries.items()
        yield from self._groups.items()
        yield from self._timers.items()

    def visit(self, count: int, /) -> Sequence[tuple[bytes, bytes]]:
        """Return the next `count` entries of keyed state, starting over after the last one."""
        ahead = islice(chain(self._entries.items(), self._groups.items()), self._visited, self._visited + count)
        visited = list(ahead)
        self._visited = self._visited + count if len(visited) == count else 0
        return [pair for pair in visited if pair[0][0] in _KEYED]

    def close(self) -> None:
        """Release memory. No other method may be called afterwards."""

    def _get(self, key: bytes) -> bytes | None:
        return self._timers.get(key) if key[:1] == TIMER_PREFIX else self._groups.get(key)


_SCANNED = (TIMER_PREFIX, GROUPED_PREFIX)
_KEYED = (VALUE_PREFIX[0], GROUPED_PREFIX[0])


_ENTRY_SIZE: Final = 400
_OBJECTS_SIZE: Final = 4
"""Bytes of memory for an entry, and for each byte of its JSON text: a value of small numbers and texts takes so many."""


def memory_of(size: int) -> int:
    """Return about how many bytes of memory an entry takes in Python whose JSON text has so many bytes."""
    return _ENTRY_SIZE + _OBJECTS_SIZE * size


_HEADER = struct.Struct(">qq")
HEADER_SIZE = _HEADER.size
pack_header = _HEADER.pack
"""Packs TTL stamp and own lifetime of a backend's value."""
unpack_header = _HEADER.unpack_from
"""Unpacks TTL stamp and own lifetime of a backend's value."""


def value_entry(state: str, key_json: bytes, namespace: str = "") -> bytes:
    """Return the entry of a key's single value: of a value state, or an accumulator."""
    return b"%b%b\x00%b" % (VALUE_PREFIX, state.encode(), within(key_json, namespace))


def within(key_json: bytes, namespace: str) -> bytes:
    """Return the name of a key in a namespace, for single values; the empty namespace adds nothing."""
    return b"%b\x00%b" % (key_json, namespace.encode()) if namespace else key_json


def entry_group(state: str, key_json: bytes, namespace: str = "") -> bytes:
    """Return the common prefix of all entries of a key's list or map in a namespace."""
    return b"%b%b\x00%b\x00%b\x00" % (GROUPED_PREFIX, state.encode(), key_json, namespace.encode())


def entry_groups(state: str, key_json: bytes) -> bytes:
    """Return the common prefix of the entries that a key has in a list or map, in all namespaces."""
    return b"%b%b\x00%b\x00" % (GROUPED_PREFIX, state.encode(), key_json)


class NamedEntry(NamedTuple):
    """Parts of an entry's name. `user_key` is None for a single value."""

    state: str
    key_json: bytes
    namespace: str
    user_key: bytes | None


def named(entry: bytes) -> NamedEntry:
    """Return the parts of an entry of keyed state."""
    state, key_json, *rest = entry[1:].split(b"\x00")
    namespace = rest[0].decode() if rest else ""
    return NamedEntry(state.decode(), key_json, namespace, rest[1] if entry[:1] == GROUPED_PREFIX else None)


class StoredValue(NamedTuple):
    """Parts of a backend's value: TTL stamp (ms), own lifetime (ms; 0: the state's), JSON."""

    stamp: int
    own_ttl: int
    raw: bytes


def stored_value(stamp: int, raw: bytes, own_ttl: int = 0) -> bytes:
    """Return the backend's value: stamp and own lifetime, 8 bytes each, and JSON."""
    return pack_header(stamp, own_ttl) + raw


def unpacked(stored: bytes) -> StoredValue:
    """Return the parts of a backend's value."""
    stamp, own_ttl = unpack_header(stored)
    return StoredValue(stamp, own_ttl, stored[HEADER_SIZE:])


class EntryChange(NamedTuple):
    """An entry after the task; `raw` is None if it was removed. `own_ttl` is 0 if it has the state's lifetime."""

    key_json: bytes
    raw: bytes | None
    stamp: int
    own_ttl: int = 0
    namespace: str = ""
    user_key: bytes | None = None

    def entry(self, state: str) -> bytes:
        """Return the entry's name in the backend."""
        if self.user_key is None:
            return value_entry(state, self.key_json, self.namespace)
        return entry_group(state, self.key_json, self.namespace) + self.user_key


change_of: Callable[[tuple[bytes, bytes | None, int, int, str, bytes | None]], EntryChange] = partial(
    tuple.__new__, EntryChange
)
"""As `EntryChange._make`, in half the time: called once for each changed entry of a task."""
