"""Broadcast state of one operator and task: a map that is the same in all tasks, held in memory, and stored once.

All tasks process the same broadcast records at the same places in arrival order, so all of them make the same changes.
The rows of the map are those of a map state under the key `null`, which no record has. So they are rebuilt, migrated,
compacted and shown like any others, and the task that owns the key group of `null` stores them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from headrace.api.states import BroadcastState
from headrace.state.backend import EntryChange, StateBackend, Write, end_of_group, entry_group, stored_value, unpacked
from headrace.state.codec import Codec, KeyCodec

K = TypeVar("K")
V = TypeVar("V")

BROADCAST_KEY = b"null"
"""Key of broadcast records and state, as JSON. A record whose key is null never reaches a keyed operator."""


class BroadcastRow(NamedTuple):
    """One stored entry of an operator's broadcast state: key and value are JSON, `stamp` is the time of its `put` (ms)."""

    state: str
    user_key: bytes
    value: bytes
    stamp: int


def broadcast_rows(backend: StateBackend, state: str) -> list[BroadcastRow]:
    """Return the stored entries of a broadcast state from a backend that has all of them."""
    group = entry_group(state, BROADCAST_KEY)
    values = ((entry[len(group) :], unpacked(value)) for entry, value in backend.scan(group, end_of_group(group)))
    return [BroadcastRow(state, user_key, stored.raw, stored.stamp) for user_key, stored in values]


class _Entry(NamedTuple):
    """Entry in memory. `raw` is its JSON, `stamp` the time of the record that put it (ms)."""

    value: Any
    raw: bytes
    stamp: int


class BroadcastStore:
    """Entries of one declared `BroadcastState`, for the duration of the task."""

    expired = 0
    """Broadcast state has no TTL."""

    def __init__(self, declared: BroadcastState[Any, Any], operator: str) -> None:
        """Start empty; `load` adds the stored entries."""
        self.name = declared.name
        self.what = f"state '{declared.name}' of operator '{operator}'"
        self.keys: KeyCodec[Any] = KeyCodec(declared.key_type, f"a key of {self.what}")
        self.writable_at: int | None = None
        """Time of the broadcast record that runs (ms); None while none runs, when no change is allowed."""
        self._codec: Codec[Any] = Codec(declared.type, self.what)
        self._entries: dict[bytes, _Entry] = {}
        self._stored: dict[bytes, _Entry] = {}
        self._touched: set[bytes] = set()

    @property
    def handle(self) -> BroadcastState[Any, Any]:
        """Return the handle that user code finds in its attribute."""
        return BroadcastHandle(self)

    def load(self, rows: Iterable[BroadcastRow]) -> None:
        """Load the stored entries, before the first record. Rows of other states are skipped.

        Raises `StateSchemaError` for a value that does not fit the declared type.
        """
        for state, user_key, raw, stamp in rows:
            if state == self.name:
                self._entries[user_key] = self._stored[user_key] = _Entry(self._codec.decode(raw), raw, stamp)

    def changes(self) -> list[EntryChange]:
        """Return the entries that differ from the loaded ones, in the order of their keys' JSON."""
        changes = []
        for user_key in sorted(self._touched):
            now, before = self._entries.get(user_key), self._stored.get(user_key)
            if now is not before:
                raw, stamp = (None, 0) if now is None else (now.raw, now.stamp)
                changes.append(EntryChange(BROADCAST_KEY, raw, stamp, user_key=user_key))
        return changes

    def writes(self, changes: Iterable[EntryChange]) -> Iterator[Write]:
        """Return `changes` as writes to the backend."""
        for change in changes:
            yield change.entry(self.name), None if change.raw is None else stored_value(change.stamp, change.raw)

    def expires_at(self, _stamp: int, _own_ttl: int = 0, /) -> int | None:
        """Return None: broadcast entries never expire."""
        return None

    def peek(self, _key_json: bytes = BROADCAST_KEY, _namespace: str = "") -> dict[Any, Any]:
        """Return the current map. For tests and tools."""
        return dict(self.entries())

    def get(self, key: Any) -> Any:
        """Return the value of a key; None without one."""
        entry = self._entries.get(self.keys.encode(key))
        return None if entry is None else entry.value

    def entries(self) -> list[tuple[Any, Any]]:
        """Return all entries, in the order of their keys' JSON: the same in all tasks."""
        return [(self.keys.decode(user_key), self._entries[user_key].value) for user_key in sorted(self._entries)]

    def put(self, key: Any, value: Any) -> None:
        """Set the value of a key; None removes it. Raises `RuntimeError` outside of `process_broadcast`."""
        stamp = self._check_writable()
        user_key = self.keys.encode(key)
        self._touched.add(user_key)
        if value is None:
            self._entries.pop(user_key, None)
            return
        raw = self._codec.encode(value)
        # Decoded as the next run reads it: 5 of a declared float is 5.0 at once, not only after the micro-batch.
        self._entries[user_key] = _Entry(self._codec.decode(raw), raw, stamp)

    def clear(self) -> None:
        """Remove all entries. Raises `RuntimeError` outside of `process_broadcast`."""
        self._check_writable()
        self._touched |= self._entries.keys()
        self._entries.clear()

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._entries)

    def _check_writable(self) -> int:
        if self.writable_at is None:
            msg = (
                f"broadcast {self.what} can be changed in process_broadcast() only: process() and on_timer() run in the one "
                "task that owns their key, and the other tasks would not see the change"
            )
            raise RuntimeError(msg)
        return self.writable_at


class BroadcastHandle(BroadcastState[K, V]):
    """Live handle of a declared `BroadcastState`."""

    def __init__(self, store: BroadcastStore) -> None:
        """Answer from `store`."""
        self._store = store

    def get(self, key: K, /) -> V | None:
        """Return the value of `key`; `None` if there is none."""
        value: V | None = self._store.get(key)
        return value

    def contains(self, key: K, /) -> bool:
        """Return whether `key` has a value."""
        return self._store.get(key) is not None

    def is_empty(self) -> bool:
        """Return whether the map has no entry."""
        return not len(self._store)

    def keys(self) -> list[K]:
        """Return all keys, in the order of their JSON text."""
        return [key for key, _ in self._store.entries()]

    def values(self) -> list[V]:
        """Return all values, in the order of their keys' JSON text."""
        return [value for _, value in self._store.entries()]

    def items(self) -> list[tuple[K, V]]:
        """Return all keys with their values, in the order of the keys' JSON text."""
        return self._store.entries()

    def put(self, key: K, value: V | None, /) -> None:
        """Set the value of `key`; None is the same as `remove`."""
        self._store.put(key, value)

    def put_all(self, entries: Mapping[K, V], /) -> None:
        """Set the values of several keys."""
        for key, value in entries.items():
            self._store.put(key, value)

    def remove(self, key: K, /) -> None:
        """Remove `key` and its value; do nothing if it isn't there."""
        self._store.put(key, None)

    def clear(self) -> None:  # type: ignore[override]  # as in `BroadcastState`
        """Remove all entries."""
        self._store.clear()
