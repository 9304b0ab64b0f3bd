"""State that is one entry for each key and namespace: values, and accumulators."""

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
    """One entry for each key and namespace. All of them are in one `Cells`, by key and namespace."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """See `StateStore`."""
        super().__init__(*arguments, **options)
        self.cells = Cells(value_entry(self.name, b""))

    def groups(self) -> Iterable[Cells]:
        """See `StateStore.groups`."""
        return (self.cells,)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """See `StateStore.prefetch`: the keys' values outside of any namespace."""
        cells = self.cells.by_name
        missing = [key for key in keys if key not in cells]
        stored = self._backend.get_many([self.cells.prefix + key for key in missing])
        for key, value in zip(missing, stored, strict=True):
            cells[key] = self.decode(value)

    def peek(self, key_json: bytes, namespace: str = "") -> Any:
        """What a key has as it stands, TTL apart; None if there is nothing. For tests and tools."""
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
        """See `StateStore.writes`."""
        prefix = self.cells.prefix
        for key_json, raw, stamp, own_ttl, namespace, _ in changes:
            value = None if raw is None else stored_value(stamp, raw, own_ttl)
            yield prefix + (within(key_json, namespace) if namespace else key_json), value


class SingleHandle:
    """What the handles of single entries have in common: which entry it is, and calls that need no more than that."""

    _store: SingleStore

    def __init__(self, store: SingleStore, namespace: str = "") -> None:
        """A handle for one namespace."""
        self._store = store
        self.name = store.name
        self._suffix = b"\x00" + namespace.encode() if namespace else b""

    def namespace(self, namespace: str, /) -> Any:
        """See `State.namespace`."""
        check_namespace(namespace)
        return type(self)(self._store, namespace)

    def clear(self) -> StateFuture[None]:
        """See `State.clear`."""
        return cast("StateFuture[None]", self._store.write(self._store.cells, self._here, self._store.remove))

    def remaining(self) -> StateFuture[timedelta | None]:
        """See `ValueState.remaining`."""
        return cast("StateFuture[timedelta | None]", self._store.read(self._store.cells, self._here, self._store.left))

    @property
    def _here(self) -> bytes:
        return self._store.moment.key_json + self._suffix
