"""Value state, and other state with one entry, of one operator and task.

State with one entry for each key and namespace: values, and accumulators.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import filterfalse
from typing import Any, Final, Generic, TypeVar, cast

from headrace.api.future import StateFuture
from headrace.api.states import ValueState
from headrace.native import Cell, ValueCells
from headrace.state.backend import (
    EntryChange,
    Page,
    StateBackend,
    Write,
    answers,
    change_of,
    pack_header,
    unpack_header,
    value_entry,
    within,
)
from headrace.state.cells import Cells
from headrace.state.cursor import PAGE
from headrace.state.store import Entry, Handle, Operation, StateStore
from headrace.state.ttl import NO_HISTORY, AccessTimes, EntryLifetimes
from headrace.state.waiting_calls import Access, More, StateTask


class SingleStore(StateStore, ValueCells):
    """Store with one entry for each key and namespace, all in one `Cells`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        StateStore.__init__(self, *arguments, **options)
        self.cells = Cells(value_entry(self.name, b""))
        self._cells = self.cells.by_name
        self._ahead: dict[bytes, bytes | None] = {}
        """What `read_ahead` has read of keys outside of namespaces, and no code has come upon."""
        self._decode = self._codec.read
        self._known_keys: set[bytes] = set()
        """Keys whose entries of all namespaces are cached."""
        self._large_keys: set[bytes] = set()
        """Keys whose entries of all namespaces fill a page."""

    def groups(self) -> Iterable[Cells]:
        """Return all cells of the task."""
        return (self.cells,)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load the keys' values outside of namespaces that were not read ahead, with one call to the backend."""
        not_ahead = filterfalse(self._ahead.__contains__, keys)
        unread = list(dict.fromkeys(filterfalse(self.cells.by_name.__contains__, not_ahead)))[: self.cache_limit]
        self._loaded += len(unread)
        self._cache(unread, self._backend.get_many([self.cells.prefix + key for key in unread]))

    def _cache(self, keys: Collection[bytes], stored: Sequence[bytes | None]) -> None:
        self.cells.by_name.update(zip(keys, self.cells_of(stored), strict=True))

    def read_ahead(self, keys: Sequence[bytes]) -> None:
        """Read the keys' values outside of namespaces in byte order, if the backend has them so, and the cache has room for all.

        Each becomes a cell when code comes upon it: cells that lie in the order of keys would cost the code that comes upon them in another
        order as much as the reads save.
        """
        if self._backend.is_sorted and self._loaded + len(keys) < self.cache_limit:
            self._read_ahead(keys)

    def _read_ahead(self, keys: Sequence[bytes]) -> None:
        prefix = self.cells.prefix
        unread = sorted(filterfalse(self.cells.by_name.__contains__, keys))
        self._loaded += len(unread)
        self._ahead = dict(zip(unread, self._backend.get_many([prefix + key for key in unread]), strict=True))

    def read(
        self, cells: Cells, name: bytes, operation: Operation, *, unread: bool = False, resumes: bool = False
    ) -> Any:
        """Return the result of `operation`, once the entry is known, as `StateStore.read` does; what was read ahead is known."""
        if name in self._ahead and name not in cells.by_name:
            self._cache([name], [self._ahead.pop(name)])
        return super().read(cells, name, operation, unread=unread, resumes=resumes)

    def values_of(self, keys: Sequence[bytes], clocks: Sequence[int] = ()) -> list[Any]:
        """Return the values of some keys; None for a key without one. A state with TTL loses those that are expired when its clock is at `clocks` (ms)."""
        for start in range(0, len(keys), READ_AHEAD):
            some = keys[start : start + READ_AHEAD]
            if self._backend.is_sorted:
                self._read_ahead(some)
            for begin in range(0, len(some), _AT_ONCE):
                self._load_values(some[begin : begin + _AT_ONCE])
        by_name, ttl = self.cells.by_name, self._ttl
        if ttl is not None:
            for key, clock in zip(keys, clocks, strict=True):
                cell = by_name[key]
                if cell.value is not None and ttl.is_dead_at(clock, cell.stamp, cell.own_ttl):
                    self.expired += 1
                    cell.value, cell.dirty = None, True
        return [by_name[key].value for key in keys]

    def _load_values(self, keys: Sequence[bytes]) -> None:
        """Make cells of the keys' values outside of namespaces."""
        self.prefetch(keys)
        ahead = dict.fromkeys(filterfalse(self.cells.by_name.__contains__, keys))
        self._cache(ahead, [*map(self._ahead.pop, ahead)])

    def set_values(self, keys: Sequence[bytes], values: Sequence[Any], timestamps: Sequence[int | None]) -> None:
        """Set the values of keys that `values_of` has returned; None removes one.

        Each is stamped with a time (ms), which never shortens a lifetime; None keeps the one that it has, and leaves a value that stays the
        same object unwritten.
        """
        by_name, keeps_later = self.cells.by_name, self._ttl is not None
        for key, value, timestamp in zip(keys, values, timestamps, strict=True):
            cell = by_name[key]
            if timestamp is None and value is cell.value:
                continue
            if timestamp is not None:
                cell.stamp = max(cell.stamp, timestamp) if keeps_later and cell.value is not None else timestamp
            cell.value, cell.own_ttl, cell.dirty = value, 0, True

    def values_within(self, keys: Collection[bytes], names: Sequence[bytes]) -> list[Any]:
        """Return the values of names of some keys in namespaces, for a state without TTL; None for a name without one, which need not be cached.

        A backend that `scans_keys` is asked once for each key.
        """
        by_name, prefix, known = self.cells.by_name, self.cells.prefix, self._known_keys
        for key in keys if self._backend.scans_keys else ():
            if key not in known and key not in self._large_keys:
                self._load_key(key, cast("Any", answers(self._backend, [self._page_of(key)])[0]))
        unread = () if known.issuperset(keys) else self._without_cell(names)
        unknown = [name for name in unread if name.partition(b"\x00")[0] not in known]
        for start in range(0, len(unknown), _AT_ONCE):
            some = unknown[start : start + _AT_ONCE]
            self._load_missing(zip(some, self._backend.get_many([prefix + name for name in some]), strict=True))
        cells = map(by_name.get, names)
        return [None if cell is None else cell.value for cell in cells]

    def forget(self, keys: Collection[bytes]) -> None:
        """Drop the cells of some keys, outside of namespaces, none of which was changed but in place."""
        for key in keys:
            cell = self.cells.by_name.get(key)
            if cell is not None and not cell.dirty:
                del self.cells.by_name[key]

    def live_keys(self, access: AccessTimes) -> set[bytes]:
        """Return the keys that have a value at the times of `access`, in any namespace. It reads all entries of the backend."""
        prefix, cached = self.cells.prefix, self.cells.by_name
        names = [
            name
            for name, cell in cached.items()
            if cell.value is not None and not self.is_dead(access, cell.stamp, cell.own_ttl)
        ]
        for entry, stored in self._backend.items():
            name = entry[len(prefix) :]
            if entry.startswith(prefix) and name not in cached and not self.is_dead(access, *unpack_header(stored)):
                names.append(name)
        return {name.partition(b"\x00")[0] for name in names}

    def trim(self) -> None:
        """Drop cells that equal the backend's entries."""
        self._known_keys.clear()
        self._ahead.clear()
        super().trim()

    def release(self) -> None:
        """Drop everything that equals the backend."""
        self.trim()
        self._large_keys.clear()

    def once_cached(self, names: Sequence[bytes], finish: Callable[[Access], Any]) -> Any:
        """Return the result of `finish` when these entries of the key are cached; one without a cell does not exist.

        A backend that `scans_keys` gets one request for all namespaces of the key.
        """
        access = self.access
        unknown = [] if access.key_json in self._known_keys else self._without_cell(names)
        if not unknown and self.may_act(access):
            self.hits += 1
            return self.answer(finish(access))
        return self.ask(access, *self._reading(access.key_json, names, unknown, finish))

    def _reading(
        self, key_json: bytes, names: Sequence[bytes], unknown: Sequence[bytes], finish: Callable[[Access], Any]
    ) -> More:
        prefix = self.cells.prefix
        reads_key = bool(unknown) and self._backend.scans_keys and key_json not in self._large_keys

        def finish_once_read(access: Access, answers: Sequence[Any]) -> Any:
            if not reads_key:
                self._load_missing(zip(unknown, answers, strict=True))
            else:
                self._load_key(key_json, answers[0])
            if key_json not in self._known_keys and self._without_cell(names):  # evicted meanwhile, or not read yet
                return self._reading(key_json, names, names, finish)
            return finish(access)

        actions = [self._page_of(key_json)] if reads_key else [prefix + name for name in unknown]
        return More(actions, finish_once_read)

    def _page_of(self, key_json: bytes) -> Page:
        """Return the request for the entries of a key in all namespaces."""
        start = self.cells.prefix + key_json
        return Page(start, start + b"\x01", PAGE)

    def _load_key(self, key_json: bytes, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Cache the entries of a key in all namespaces, unless they fill the page."""
        if len(entries) < PAGE:
            self._load_missing((entry[len(self.cells.prefix) :], stored) for entry, stored in entries)
            self._known_keys.add(key_json)
        else:
            self._large_keys.add(key_json)

    def _without_cell(self, names: Sequence[bytes]) -> list[bytes]:
        by_name = self.cells.by_name
        return [name for name in names if name not in by_name]

    def _load_missing(self, entries: Iterable[tuple[bytes, bytes | None]]) -> None:
        for name, stored in entries:
            if name not in self.cells.by_name:
                self.load(self.cells, name, stored)

    def peek(self, key_json: bytes, namespace: str = "") -> Any:
        """Return the current value of a key, without TTL; None without one. For tests and tools."""
        name = within(key_json, namespace)
        cell = self.cells.by_name.get(name)
        if cell is None:
            cell = self.decode(*self._backend.get_many([self.cells.prefix + name]))
        return cell.value

    def _changes_of(self, entries: Sequence[Entry], raws: Iterable[bytes | None], /) -> list[EntryChange]:
        return [
            change_of((name, raw, cell.stamp, cell.own_ttl, "", None))
            if b"\x00" not in name
            else _within_namespace(name, raw, cell)
            for (_, name, cell), raw in zip(entries, raws, strict=True)
        ]

    def writes(self, changes: Iterable[EntryChange]) -> Iterator[Write]:
        """Return `changes` as writes to the backend."""
        prefix = self.cells.prefix
        for key_json, raw, stamp, own_ttl, namespace, _ in changes:
            value = None if raw is None else pack_header(stamp, own_ttl) + raw  # `stored_value`, without a call
            yield prefix + (within(key_json, namespace) if namespace else key_json), value


_AT_ONCE = 20_000
"""Number of keys that one call to the backend reads."""

READ_AHEAD: Final = 200_000
"""Number of records whose keys are read together, in the order in which the backend has them.

More keys are closer to each other, and are read in less time. But what has been read lies longer until a record comes upon it, and beside other
work that costs as much as the reads save: from 300,000 keys on, no less was needed.
"""


def _within_namespace(name: bytes, raw: bytes | None, cell: Cell) -> EntryChange:
    key_json, _zero, namespace = name.partition(b"\x00")
    return EntryChange(key_json, raw, cell.stamp, cell.own_ttl, namespace.decode())


class SingleHandle(Handle):
    """Base of the handles of single entries: it locates the entry, and has the calls that need no more."""

    _store: SingleStore

    def __init__(self, store: SingleStore, namespace: str = "") -> None:
        """Make a handle for one namespace."""
        super().__init__(store, namespace)
        self._suffix = b"\x00" + namespace.encode() if namespace else b""

    def clear(self) -> StateFuture[None]:
        """Remove all entries of the key in this namespace."""
        return cast("StateFuture[None]", self._store.write(self._store.cells, self._here, self._store.remove))

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the entry still lives by its expiry clock; `None` without entry or TTL."""
        return cast("StateFuture[timedelta | None]", self._store.read(self._store.cells, self._here, self._store.left))

    @property
    def _here(self) -> bytes:
        return self._store.access.key_json + self._suffix


V = TypeVar("V")


class ValueStore(SingleStore, ValueState[V], Generic[V]):
    """Live handle of a declared `ValueState`, for the key of the code that runs.

    It is its own handle, and reads and writes a cached value without a further call: most records do just that.
    """

    def __init__(
        self,
        declared: ValueState[V],
        operator: str,
        backend: StateBackend,
        task: StateTask,
        lifetimes: EntryLifetimes = NO_HISTORY,
        *,
        blocking: bool = False,
    ) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        SingleStore.__init__(self, declared, operator, backend, task, lifetimes, blocking=blocking)
        self.type, self.ttl = declared.type, declared.ttl

    @property
    def handle(self) -> ValueState[V]:
        """Return the handle that user code uses."""
        return self

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        return ValueHandle(self).namespace(namespace)

    def resume(self) -> StateFuture[Any]:
        """Read the key's state outside of namespaces, which a declared block may wait for when the run ends."""
        return cast("StateFuture[Any]", self.value())

    def read_value(self) -> Any:
        """Read the key's value, which need not be cached; a declared block may wait for it when the run ends."""
        return self.read(self.cells, self.access.key_json, self.alive, resumes=True)

    def write_value(self, value: V, ttl: timedelta | None) -> Any:
        """Set the key's value, which need not be cached, with a lifetime of its own; None is the same as `clear`."""
        operation = partial(self.set, value=value, own_ttl=self.own_ttl(ttl))
        return self.write(self.cells, self.access.key_json, operation)

    def clear(self) -> StateFuture[None]:
        """Remove the key's value."""
        return cast("StateFuture[None]", self.write(self.cells, self.access.key_json, self.remove))

    def remaining(self) -> StateFuture[timedelta | None]:
        """Return how long the entry still lives by its expiry clock; `None` without entry or TTL."""
        return cast("StateFuture[timedelta | None]", self.read(self.cells, self.access.key_json, self.left))


class BlockingValueStore(ValueStore[V]):
    """Handle for a plain `def process`: a call returns the value itself."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(*arguments, **(options | {"blocking": True}))

    def read_value(self) -> Any:
        """Read the key's value."""
        return self.alive(self.access, self._read())

    def write_value(self, value: V, ttl: timedelta | None) -> None:
        """Set the key's value, with a lifetime of its own; None is the same as `clear`."""
        self.set(self.access, self._read(), value, self.own_ttl(ttl))

    def _read(self) -> Cell:
        key_json = self.access.key_json
        if key_json not in self._cells:
            self._load_values((key_json,))
        return self._cells[key_json]


class ValueHandle(SingleHandle, ValueState[V]):
    """Handle of a value state in a namespace."""

    def value(self) -> StateFuture[V | None]:
        """Read the key's value; `None` if there is none or it has expired."""
        return cast("StateFuture[V | None]", self._store.read(self._store.cells, self._here, self._store.alive))

    def update(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Set the key's value; None is the same as `clear`."""
        operation = partial(self._store.set, value=value, own_ttl=self._store.own_ttl(ttl))
        return cast("StateFuture[None]", self._store.write(self._store.cells, self._here, operation))
