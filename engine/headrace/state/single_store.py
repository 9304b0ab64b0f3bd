"""State with one entry for each key and namespace: values, and accumulators."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

from headrace.api import StateFuture
from headrace.api.namespace import check_namespace
from headrace.state.backend import Write
from headrace.state.cells import Cell, Cells
from headrace.state.entry import EntryChange, change_of, stored_value, value_entry, within
from headrace.state.state_store import StateStore


class SingleStore(StateStore):
    """Store with one entry for each key and namespace, all in one `Cells`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(*arguments, **options)
        self.cells = Cells(value_entry(self.name, b""))

    def groups(self) -> Iterable[Cells]:
        """Return all cells of the task."""
        return (self.cells,)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load the keys' values outside of namespaces, with one call to the backend."""
        cells = self.cells
        missing = [key for key in keys if key not in cells.by_name][: self.cache_limit]
        stored = self._backend.get_many([cells.prefix + key for key in missing])
        for key, value in zip(missing, stored, strict=True):
            self.load(cells, key, value)

    def peek(self, key_json: bytes, namespace: str = "") -> Any:
        """Return the current value of a key, without TTL; None without one. For tests and tools."""
        name = within(key_json, namespace)
        cell = self.cells.by_name.get(name)
        if cell is None:
            cell = self.decode(*self._backend.get_many([self.cells.prefix + name]))
        return cell.value

    def _change(self, _: Cells, name: bytes, raw: bytes | None, cell: Cell, /) -> EntryChange:
        if b"\x00" not in name:
            return change_of((name, raw, cell.stamp, cell.own_ttl, "", None))
        key_json, _zero, namespace = name.partition(b"\x00")
        return EntryChange(key_json, raw, cell.stamp, cell.own_ttl, namespace.decode())

    def writes(self, changes: Sequence[EntryChange]) -> Iterator[Write]:
        """Return `changes` as writes to the backend."""
        prefix = self.cells.prefix
        for key_json, raw, stamp, own_ttl, namespace, _ in changes:
            value = None if raw is None else stored_value(stamp, raw, own_ttl)
            yield prefix + (within(key_json, namespace) if namespace else key_json), value


class SingleHandle:
    """Base of the handles of single entries: it locates the entry, and has the calls that need no more."""

    _store: SingleStore

    def __init__(self, store: SingleStore, namespace: str = "") -> None:
        """Make a handle for one namespace."""
        self._store = store
        self.name = store.name
        self._suffix = b"\x00" + namespace.encode() if namespace else b""

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        check_namespace(namespace)
        return type(self)(self._store, namespace)

    def clear(self) -> StateFuture[None]:
        """Remove all entries of the key in this namespace."""
        return cast("StateFuture[None]", self._store.write(self._store.cells, self._here, self._store.remove))

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the entry still lives by its expiry clock; `None` without entry or TTL."""
        return cast("StateFuture[timedelta | None]", self._store.read(self._store.cells, self._here, self._store.left))

    @property
    def _here(self) -> bytes:
        return self._store.moment.key_json + self._suffix
