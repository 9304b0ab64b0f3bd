"""Map state and list state of one operator and task.

List state of one operator and task: a map whose user keys are the ids of elements.

An id is the place in arrival order of the record or timer that adds the element, and a running index. So ids grow in
the order of addition, adding reads nothing, and ids don't depend on the split of the input into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, cast

from headrace.api.batches import BundledRecord, ChangedEntry
from headrace.api.future import StateFuture
from headrace.api.records import check_namespace, checked_namespaces
from headrace.api.states import ListState, MapState, StateIterator
from headrace.native import Cell
from headrace.records.order import output_order
from headrace.state.backend import Page, end_of_group
from headrace.state.cells import Cells
from headrace.state.codec import KeyCodec
from headrace.state.cursor import WalkedEntry
from headrace.state.groups import GroupHandle, GroupStore
from headrace.state.waiting_calls import Access

K = TypeVar("K")
V = TypeVar("V")

_key_of = attrgetter("key")


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

    def entries_of(self, keys: Sequence[bytes]) -> list[dict[Any, Any]]:
        """Return the map of each key outside of namespaces, in order of the names, for a state without TTL."""
        self.read_groups(keys)
        decode = self.keys.decode
        maps = []
        for key in keys:
            by_name = self.group(key, "").by_name
            maps.append({decode(name): cell.value for name, cell in sorted(by_name.items()) if cell.value is not None})
        return maps

    def entries_at(self, places: Sequence[tuple[bytes, Any]]) -> list[Any]:
        """Return the values of entries outside of namespaces, given by key and name, for a state without TTL; None for no entry."""
        encode = self.keys.encode
        asked = [(self.group(key, ""), encode(name)) for key, name in places]
        unread = [(cells, name) for cells, name in asked if name not in cells.by_name and not cells.at_hand]
        stored = self._backend.get_many([cells.prefix + name for cells, name in unread])
        for (cells, name), value in zip(unread, stored, strict=True):
            self.load(cells, name, value)
        read = (cells.by_name.get(name) for cells, name in asked)
        return [None if cell is None else cell.value for cell in read]

    def change_entries(self, keys: Sequence[bytes], changes: Iterable[ChangedEntry]) -> None:
        """Set entries of the maps of some keys, each given by its key's place there."""
        for key, of_key in groupby(changes, _key_of):
            self.set_entries(keys[key], ((name, value, timestamp) for _, name, value, timestamp in of_key))

    def set_entries(self, key: bytes, entries: Iterable[tuple[Any, Any, int | None]]) -> None:
        """Set entries of a map: the name, the value and the event time (ms) of each.

        None removes a value; it has been read. None instead of a time keeps the one that the entry has.
        """
        cells, encode = self.group(key, ""), self.keys.encode
        for name, value, timestamp in entries:
            encoded = encode(name)
            cell = cells.by_name.get(encoded) or cells.blank(encoded)
            cell.value, cell.own_ttl, cell.dirty = value, 0, True
            if timestamp is not None:
                cell.stamp = timestamp

    def put_one(self, cells: Cells, name: bytes, value: Any, own_ttl: int) -> StateFuture[None]:
        """Write an entry; a cached one at once."""
        access = self.access
        cell = cells.by_name.get(name)
        if cell is not None and self.may_act(access):
            self.set(access, cell, value, own_ttl)
            return cast("StateFuture[None]", self.answer(None))
        operation = partial(self.set, value=value, own_ttl=own_ttl)
        return cast("StateFuture[None]", self.write(cells, name, operation))

    def contains(self, access: Access, cell: Cell) -> bool:
        """Operation: return whether there is a value."""
        return self.alive(access, cell) is not None


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


class ListStore(GroupStore):
    """Lists of all keys."""

    @property
    def handle(self) -> ListState[Any]:
        """Return the handle that user code uses."""
        return ListHandle(self)

    def peek(self, key_json: bytes, namespace: str = "") -> list[Any]:
        """Return a key's current list, without TTL. For tests and tools."""
        return [value for _, value in self.peek_entries(key_json, namespace)]

    def resume(self) -> StateFuture[Any]:
        """Read the key's state outside of namespaces, which a declared block may wait for when the run ends."""
        return self.whole(self.group(self.access.key_json, ""))

    def named(self, values: Iterable[Any]) -> list[tuple[bytes, Any]]:
        """Return elements with new ids. Raises `ValueError` for None among them."""
        access = self.access
        elements = [(_next_id(access), value) for value in values]
        if any(value is None for _, value in elements):
            msg = f"{self.what} was given None: a list has no such elements"
            raise ValueError(msg)
        return elements

    def lists_at(self, places: Sequence[tuple[bytes, str]]) -> list[list[Any]]:
        """Return the elements of lists, given by key and namespace, for a state without TTL."""
        groups = [self.group(*place) for place in places]
        self.read_all(groups)
        return [cells.values() for cells in groups]

    def add_of(self, record: BundledRecord, key: bytes, namespace: str, value: Any) -> None:
        """Add the first element that a record of a key adds, for a state without TTL."""
        cells, name = self.group(key, namespace), _id_at(output_order(record.order, 0))
        cell = cells.by_name.get(name) or cells.blank(name)
        cell.value, cell.stamp, cell.own_ttl, cell.dirty = value, record.timestamp, 0, True

    def clear_at(self, key: bytes, namespace: str) -> None:
        """Remove all elements that `lists_at` has returned for a key and a namespace."""
        self.group(key, namespace).clear()

    def add(self, cells: Cells, elements: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Append elements."""
        return cast("StateFuture[None]", self._act(partial(self._set_all, cells, elements, own_ttl)))

    def replace(self, cells: Cells, elements: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Replace all elements by these."""

        def finish(access: Access, _: Sequence[Any]) -> None:
            cells.clear()
            self._set_all(cells, elements, own_ttl, access, ())

        return cast("StateFuture[None]", self._act(finish))

    def merge(self, target: Cells, sources: Sequence[Cells]) -> StateFuture[None]:
        """Move all elements of `sources` to `target`."""
        unread = [cells for cells in sources if not cells.cleared]
        actions = [Page(cells.prefix, end_of_group(cells.prefix)) for cells in unread]

        def finish(access: Access, pages: Sequence[Any]) -> None:
            stored = dict(zip(map(id, unread), pages, strict=True))
            for cells in sources:
                target.by_name.update(self.moved(cells, stored.get(id(cells), ()), access))

        return cast("StateFuture[None]", self.ask(self.access, actions, finish))


class ListHandle(GroupHandle, ListState[V]):
    """Live handle of a declared `ListState`, for the key of the code that runs."""

    _store: ListStore

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Append an element. Raises `ValueError` for None."""
        store = self._store
        access = store.access
        if value is None or ttl is not None or not store.may_act(access):
            return self.add_all((value,), ttl)
        # Without the detours of `add_all`: joins add each of their records to a list.
        cells, name = store.here(self._namespace), _next_id(access)
        store.set(access, cells.by_name.get(name) or cells.blank(name), value)
        return cast("StateFuture[None]", store.answer(None))

    def add_all(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Append elements in their order. Raises `ValueError` for None among them."""
        own_ttl = self._store.own_ttl(ttl)
        return self._store.add(self._here, self._store.named(values), own_ttl)

    def update(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Replace all elements by these. Raises `ValueError` for None among them."""
        own_ttl = self._store.own_ttl(ttl)
        return self._store.replace(self._here, self._store.named(values), own_ttl)

    def get(self) -> StateFuture[list[V]]:
        """Read all elements; an empty list if there are none."""
        return self._store.whole(self._here)

    def iterate(self) -> StateIterator[V]:
        """Return an iterator over the elements, page by page."""
        return self._store.iterator(self._here, _value_of)

    def get_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, list[V]]]:
        """Read the lists of several namespaces, in the order given; empty lists are left out."""
        return self._store.in_namespaces(checked_namespaces(namespaces))

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:
        """Move the elements of the namespaces `sources` to `target`, with their lifetimes."""
        store, key_json = self._store, self._store.access.key_json
        for namespace in (target, *sources):
            check_namespace(namespace)
        apart = [namespace for namespace in dict.fromkeys(sources) if namespace != target]
        return store.merge(store.group(key_json, target), [store.group(key_json, namespace) for namespace in apart])


def _next_id(access: Access) -> bytes:
    place = output_order(access.order, access.index)
    access.index += 1
    return _id_at(place)


def _id_at(place: bytes) -> bytes:
    return b'"%b"' % place.hex().encode()
