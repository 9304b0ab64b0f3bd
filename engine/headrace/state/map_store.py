"""Map state of one operator and task."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from headrace.api import MapState, StateFuture, StateIterator
from headrace.state.cells import Cell
from headrace.state.codec import KeyCodec
from headrace.state.group_cursor import Found
from headrace.state.group_store import GroupHandle, GroupStore
from headrace.state.state_task import Moment

K = TypeVar("K")
V = TypeVar("V")


class MapStore(GroupStore):
    """The maps of all keys."""

    def __init__(self, declared: MapState[Any, Any], operator: str, *arguments: Any, **options: Any) -> None:
        """See `StateStore`."""
        super().__init__(declared, operator, *arguments, **options)
        self.keys = KeyCodec(declared.key_type, f"a key of {self.what}")

    @property
    def handle(self) -> MapState[Any, Any]:
        """See `StateStore.handle`."""
        return MapHandle(self)

    def peek(self, key_json: bytes, namespace: str = "") -> dict[Any, Any]:
        """A key's map as it stands, TTL apart. For tests and tools."""
        return {self.keys.decode(name): value for name, value in self.peek_entries(key_json, namespace)}

    def contains(self, moment: Moment, cell: Cell) -> bool:
        """Operation: whether there is a value."""
        return self.alive(moment, cell) is not None


class MapHandle(GroupHandle, MapState[K, V]):
    """The live handle of a declared `MapState`: it answers for the key of the code that runs."""

    _store: MapStore

    def get(self, key: K, /) -> StateFuture[V | None]:
        """See `MapState.get`."""
        store = self._store
        return cast("StateFuture[V | None]", store.read(self._here, store.keys.encode(key), store.alive))

    def put(self, key: K, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """See `MapState.put`."""
        store = self._store
        own_ttl = 0 if ttl is None else store.own_ttl(ttl)
        operation = partial(store.set, value=value, own_ttl=own_ttl)
        return cast("StateFuture[None]", store.write(self._here, store.keys.encode(key), operation))

    def put_all(self, entries: Mapping[K, V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """See `MapState.put_all`."""
        store = self._store
        encoded = [(store.keys.encode(key), value) for key, value in entries.items()]
        return store.put(self._here, encoded, store.own_ttl(ttl))

    def remove(self, key: K, /) -> StateFuture[None]:
        """See `MapState.remove`."""
        store = self._store
        return cast("StateFuture[None]", store.write(self._here, store.keys.encode(key), store.remove))

    def contains(self, key: K, /) -> StateFuture[bool]:
        """See `MapState.contains`."""
        store = self._store
        return cast("StateFuture[bool]", store.read(self._here, store.keys.encode(key), store.contains))

    def is_empty(self) -> StateFuture[bool]:
        """See `MapState.is_empty`."""
        return self._store.is_empty(self._here)

    def keys(self) -> StateIterator[K]:
        """See `MapState.keys`."""
        return self._store.iterator(self._here, lambda found: self._store.keys.decode(found.name))

    def values(self) -> StateIterator[V]:
        """See `MapState.values`."""
        return self._store.iterator(self._here, _value_of)

    def entries(self) -> StateIterator[tuple[K, V]]:
        """See `MapState.entries`."""
        return self._store.iterator(self._here, lambda found: (self._store.keys.decode(found.name), found.value))

    def remaining(self, key: K, /) -> StateFuture[timedelta | None]:
        """See `MapState.remaining`."""
        store = self._store
        return cast("StateFuture[timedelta | None]", store.read(self._here, store.keys.encode(key), store.left))


def _value_of(found: Found) -> Any:
    return found.value
