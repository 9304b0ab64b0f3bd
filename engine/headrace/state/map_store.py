"""Map state of one operator and task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from headrace.api import MapState, StateFuture, StateIterator
from headrace.state.cells import Cell, Cells
from headrace.state.codec import KeyCodec
from headrace.state.group_cursor import WalkedEntry
from headrace.state.group_store import GroupHandle, GroupStore
from headrace.state.state_task import Moment

K = TypeVar("K")
V = TypeVar("V")


class MapStore(GroupStore):
    """Maps of all keys."""

    def __init__(self, declared: MapState[Any, Any], operator: str, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(declared, operator, *arguments, **options)
        self.keys = KeyCodec(declared.key_type, f"a key of {self.what}")

    @property
    def handle(self) -> MapState[Any, Any]:
        """Return the handle that user code uses."""
        return MapHandle(self)

    def peek(self, key_json: bytes, namespace: str = "") -> dict[Any, Any]:
        """Return a key's current map, without TTL. For tests and tools."""
        return {self.keys.decode(name): value for name, value in self.peek_entries(key_json, namespace)}

    def put_one(self, cells: Cells, name: bytes, value: Any, own_ttl: int) -> StateFuture[None]:
        """Write an entry; a cached one at once."""
        moment = self.moment
        cell = cells.by_name.get(name)
        if cell is not None and self.may_act(moment):
            self.set(moment, cell, value, own_ttl)
            return cast("StateFuture[None]", self.answer(None))
        operation = partial(self.set, value=value, own_ttl=own_ttl)
        return cast("StateFuture[None]", self.write(cells, name, operation))

    def contains(self, moment: Moment, cell: Cell) -> bool:
        """Operation: return whether there is a value."""
        return self.alive(moment, cell) is not None


class MapHandle(GroupHandle, MapState[K, V]):
    """Live handle of a declared `MapState`, for the key of the code that runs."""

    _store: MapStore

    def get(self, key: K, /) -> StateFuture[V | None]:
        """Read the value of `key`; `None` if there is none or it has expired."""
        store = self._store
        return cast("StateFuture[V | None]", store.read(self._here, store.keys.encode(key), store.alive))

    def put(self, key: K, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Set the value of `key`; None is the same as `remove`."""
        store = self._store
        own_ttl = 0 if ttl is None else store.own_ttl(ttl)
        return store.put_one(self._here, store.keys.encode(key), value, own_ttl)

    def put_all(self, entries: Mapping[K, V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Set the values of several keys."""
        store = self._store
        encoded = [(store.keys.encode(key), value) for key, value in entries.items()]
        return store.put(self._here, encoded, store.own_ttl(ttl))

    def remove(self, key: K, /) -> StateFuture[None]:
        """Remove `key` and its value; do nothing if it isn't there."""
        store = self._store
        return cast("StateFuture[None]", store.write(self._here, store.keys.encode(key), store.remove))

    def contains(self, key: K, /) -> StateFuture[bool]:
        """Return whether `key` has a value. Counts as a read of its entry."""
        store = self._store
        return cast("StateFuture[bool]", store.read(self._here, store.keys.encode(key), store.contains))

    def is_empty(self) -> StateFuture[bool]:
        """Return whether the map has no entry. Renews no entry."""
        return self._store.is_empty(self._here)

    def keys(self) -> StateIterator[K]:
        """Return an iterator over the keys, page by page."""
        return self._store.iterator(self._here, lambda entry: self._store.keys.decode(entry.name))

    def values(self) -> StateIterator[V]:
        """Return an iterator over the values, page by page."""
        return self._store.iterator(self._here, _value_of)

    def entries(self) -> StateIterator[tuple[K, V]]:
        """Return an iterator over pairs of key and value, page by page."""
        return self._store.iterator(self._here, lambda entry: (self._store.keys.decode(entry.name), entry.value))

    def remaining(self, key: K, /) -> StateFuture[timedelta | None]:
        """Return how long the entry of `key` still lives."""
        store = self._store
        return cast("StateFuture[timedelta | None]", store.read(self._here, store.keys.encode(key), store.left))


def _value_of(entry: WalkedEntry) -> Any:
    return entry.value
