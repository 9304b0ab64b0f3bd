"""Base of all kinds of state in a task: the write-back cache, and handles for user code.

    user code ──> handle ──> entry cached? ──yes──> operation on its cell, answered at once
                                  │ no
                                  v
                    request to the backend ──value──> operations of the record's code, in the order of its calls

An operation is a function of cells; only this module decides when it gets its cells. Reading an entry that is not
cached waits for the backend, writing one does not. Changes are reported at the end of the task, entry by entry.

User code calls the handle of a declared state, which serves the key of the code that runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from typing import Any, Final, Protocol

import msgspec

from headrace.api.future import StateFuture
from headrace.api.records import check_namespace
from headrace.api.ttl import StateTtl, milliseconds_of
from headrace.errors import StateSchemaError
from headrace.native import Cell
from headrace.state.backend import (
    HEADER_SIZE,
    Action,
    EntryChange,
    StateBackend,
    Write,
    change_of,
    end_of_group,
    memory_of,
    stored_value,
    unpack_header,
    unpacked,
)
from headrace.state.cells import Cells
from headrace.state.codec import Codec
from headrace.state.ttl import NO_HISTORY, AccessTimes, EntryLifetimes, LiveTtl
from headrace.state.waiting_calls import Access, Finish, More, StateTask, WaitingCall, WaitingCalls, finish_at_once

_FOR_EVER = timedelta.max // timedelta(milliseconds=1)
"""Apparent lifetime before the first watermark (ms)."""

_MEASURED: Final = 64
"""Number of cached entries that are measured, about: of all ages."""

_AT_ONCE: Final = 100
"""Number of entries whose values are encoded together: a task has so many of them twice in memory."""

_DROPPED = True
"""In place of a value whose change has been yielded: it is not None, since there is a value."""

Entry = tuple[Cells, bytes, Cell]
"""Cached entry: its cells, its name in these, and its own cell."""

Operation = Callable[[Access, Cell], Any]
"""Function of an entry; its result is the answer."""


class StateDeclaration(Protocol):
    """Declaration of a state."""

    name: str
    ttl: StateTtl | None
    type: Any


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """State of a store in one task at one time."""

    cached: int
    """Entries in memory."""
    changed: int
    """Entries in memory that differ, or may differ, from the backend."""
    hits: int
    """Reads answered from memory so far."""
    misses: int
    """Accesses that had to ask the backend."""
    waiting: int
    """Calls that wait for the backend now."""
    expired: int
    """Entries that a read found expired."""


class StateStore:
    """Store of one declared state, for the duration of one task."""

    def __init__(
        self,
        declared: StateDeclaration,
        operator: str,
        backend: StateBackend,
        task: StateTask,
        lifetimes: EntryLifetimes = NO_HISTORY,
        *,
        blocking: bool = False,
    ) -> None:
        """Bind `declared` to a backend, and to the task whose code uses it.

        `blocking` is for a plain `def`: calls then return the value itself.
        """
        self.name = declared.name
        self.what = f"state '{declared.name}' of operator '{operator}'"
        """Name of the state in errors."""
        self.waits = True
        """True: a read that the cache cannot answer may wait. False: it blocks until it is answered."""
        self.cache_limit = sys.maxsize
        """Number of cached entries that equal the backend's above which they are dropped, before the next read."""
        self.blocking = blocking
        self.expired = 0
        self.hits = 0
        self.misses = 0
        self._loaded = 0
        self._codec: Codec[Any] = Codec(declared.type, self.what)
        self._backend = backend
        self._task = task
        self._done: StateFuture[None] = StateFuture(None, task)
        self._calls = WaitingCalls(task)
        self._loading = self._calls.queues
        self._has_ttl = declared.ttl is not None
        self._ttl = lifetimes.of(declared.ttl, declared.name)
        self._stamp_counts = self._ttl is not None and not (self._ttl.renews_on_write and not self._ttl.in_event_time)
        """True: a write needs the stamp of the entry that it replaces."""

    @property
    def handle(self) -> Any:
        """Return the handle that user code finds in its attribute."""
        raise NotImplementedError

    @property
    def ttl_logic(self) -> LiveTtl | None:
        """Return the expiry logic of entries; None if they do not expire."""
        return self._ttl

    @property
    def access(self) -> Access:
        """Return the access of the code that runs now."""
        access: Access = self._task.context
        return access

    # ------------------------------------------------------------------------------------------------ access

    def resume(self) -> StateFuture[Any] | None:
        """Read the key's state outside of namespaces, which a declared block may wait for when the run ends.

        None for kinds whose reads need more arguments.
        """
        return None

    def read(
        self, cells: Cells, name: bytes, operation: Operation, *, unread: bool = False, resumes: bool = False
    ) -> Any:
        """Return the result of `operation`, once the entry is known. `resumes` is as in `ask`.

        `unread` says that the operation needs no value of an entry that is not cached.
        """
        access = self._task.context
        cell = cells.by_name.get(name)
        # `may_act`, `at_hand` and `answer` are inlined: nearly all calls are answered here, in half the time.
        if self.blocking or (access.owns_key and not (self._loading and id(access) in self._loading)):
            if cell is None and (unread or cells.whole or cells.cleared):
                cell = cells.blank(name)
            if cell is not None:
                self.hits += not unread
                value = operation(access, cell)
                if self.blocking:
                    return value
                return self._done if value is None else StateFuture(value, self._task)
            if self.blocking or not self._may_wait:
                self.misses += 1
                self.make_room()
                (stored,) = self._backend.get_many((cells.prefix + name,))
                return self.answer(operation(access, self.load(cells, name, stored)))
        actions = () if cell is not None or unread or cells.at_hand else (cells.prefix + name,)
        return self.ask(access, actions, self.once_known(cells, name, operation, unread=unread), resumes=resumes)

    def write(self, cells: Cells, name: bytes, operation: Operation) -> Any:
        """Run `operation`, which needs the entry only if TTL needs its stamp."""
        return self.read(cells, name, operation, unread=not self._stamp_counts)

    def once_known(self, cells: Cells, name: bytes, operation: Operation, *, unread: bool = False) -> Finish:
        """Return the end of a call that had to wait: the entry is as earlier calls left it, or as the backend has it."""

        def finish(access: Access, stored: Sequence[Any]) -> Any:
            cell = cells.by_name.get(name)
            if cell is None:
                if unread or cells.at_hand:
                    cell = cells.blank(name)
                elif not stored:  # it was cached, and was evicted meanwhile
                    return More((cells.prefix + name,), finish)
                else:
                    cell = self.load(cells, name, stored[0])
            return operation(access, cell)

        return finish

    def may_act(self, access: Access) -> bool:
        """Return whether a call of the code at `access` may act at once: the key is its own, and no earlier call of it waits."""
        return self.blocking or (access.owns_key and id(access) not in self._loading)

    def ask(self, access: Access, actions: Sequence[Action], finish: Finish, *, resumes: bool = False) -> Any:
        """Return the result of `finish(access, answers of the backend)`, after all earlier calls of the code.

        `resumes` marks the read that `resume` repeats, so that a declared block may wait for it when the run has to
        stop.
        """
        queue = self._loading.get(id(access))
        self.make_room()
        if queue is None:
            self.misses += 1
            if self.blocking or (access.owns_key and (not actions or not self._may_wait)):
                return self.answer(finish_at_once(self._backend, access, actions, finish))
            queue = self._loading[id(access)] = []
            actions = actions or (None,)  # the request through which the code gets its key
        call = WaitingCall(finish, StateFuture.pending(self._task), resumes=resumes)
        queue.append(call)
        self._calls.request(access, queue, call, actions)
        return call.future

    @property
    def _may_wait(self) -> bool:
        return self.waits and not self._backend.is_in_memory

    def answer(self, value: Any) -> Any:
        """Return the answer of a finished call for user code: a future, or in a plain `def` the value."""
        if self.blocking:
            return value
        return self._done if value is None else StateFuture(value, self._task)

    def waiting_block(self, access: Access) -> str | None:
        """Return the id of the declared block that waits for this state's value, if the code at `access` waits for nothing else."""
        return self._calls.waiting_block(access)

    def forget_request(self, access: Access) -> None:
        """Drop the code's requests: it repeats them in another task."""
        self._calls.forget(access)

    # ------------------------------------------------------------------------------------------------ operations

    def alive(self, access: Access, cell: Cell) -> Any:
        """Operation: return a value; None if there is none, or if it is expired and invisible.

        Renews its lifetime, if reads do. Removes an expired value; a visible one is returned this one time.
        """
        value: Any = cell.value
        ttl = self._ttl
        if ttl is None or value is None:
            return value
        if ttl.is_dead(access, cell.stamp, cell.own_ttl):
            self.expired += 1
            cell.value, cell.dirty = None, True
            return value if ttl.returns_expired else None
        if ttl.renews_on_read and cell.stamp < (stamp := ttl.stamp(access)):
            cell.stamp, cell.dirty = stamp, True
        return value

    def set(self, access: Access, cell: Cell, value: Any, own_ttl: int = 0) -> None:
        """Operation: write a value; None removes it."""
        ttl = self._ttl
        if value is None:
            pass
        elif ttl is None:
            cell.stamp = access.timestamp
        elif cell.value is None or ttl.is_dead(access, cell.stamp, cell.own_ttl):
            cell.stamp = ttl.stamp(access)
        elif ttl.renews_on_write:
            cell.stamp = max(cell.stamp, ttl.stamp(access))  # a late record never shortens a lifetime
        cell.value, cell.own_ttl, cell.dirty = value, own_ttl, True

    def remove(self, _: Access, cell: Cell) -> None:
        """Operation: remove a value."""
        cell.value, cell.dirty = None, True

    def left(self, access: Access, cell: Cell) -> timedelta | None:
        """Operation: return how long the entry still lives; None without an entry, or without TTL."""
        if self._ttl is None or cell.value is None or self.is_dead(access, cell.stamp, cell.own_ttl):
            return None
        milliseconds = self._ttl.remaining(access, cell.stamp, cell.own_ttl)
        return timedelta(milliseconds=milliseconds) if milliseconds < _FOR_EVER else timedelta.max

    def is_dead(self, access: AccessTimes, stamp: int, own_ttl: int) -> bool:
        """Return whether an entry is expired, whether visible or not."""
        return self._ttl is not None and self._ttl.is_dead(access, stamp, own_ttl)

    def own_ttl(self, ttl: timedelta | None) -> int:
        """Return a lifetime given with a call, in ms; 0 for None. Raises `ValueError` without a TTL, and below 1 ms."""
        if ttl is None:
            return 0
        if not self._has_ttl:
            msg = f"{self.what} has no TTL, so no entry of it can be given a life: declare it with ttl=StateTtl(...)"
            raise ValueError(msg)
        return milliseconds_of(ttl)

    def decode(self, stored: bytes | None) -> Cell:
        """Return a cell of the backend's value."""
        if stored is None:
            return Cell(None, 0, stored=False)
        stamp, own_ttl = unpack_header(stored)
        return Cell(self._codec.decode(stored[HEADER_SIZE:]), stamp, own_ttl, stored=True)

    def cells_of(self, stored: Sequence[bytes | None]) -> list[Cell]:
        """Return a cell of each of the backend's values, as `decode` does, in a third of the time."""
        try:
            return Cell.all_of(stored, self._codec.read)
        except (msgspec.ValidationError, msgspec.DecodeError):
            return [*map(self.decode, stored)]  # raises the error that names the value

    # ------------------------------------------------------------------------------------------------- task

    def groups(self) -> Iterable[Cells]:
        """Return all cells of the task."""
        raise NotImplementedError

    def statistics(self) -> StoreStatistics:
        """Return the store's statistics."""
        cells = [cell for group in self.groups() for cell in group.by_name.values()]
        return StoreStatistics(
            cached=len(cells),
            changed=sum(cell.dirty for cell in cells),
            hits=self.hits,
            misses=self.misses,
            waiting=len(self._calls),
            expired=self.expired,
        )

    @property
    def size(self) -> int:
        """Return about how many bytes the cached entries take: some of them are measured."""
        groups = [*self.groups()]
        count = sum(len(cells.by_name) for cells in groups)
        cached = chain.from_iterable(cells.by_name.values() for cells in groups)
        sizes = [*map(self._size_of, islice(cached, 0, None, 1 + count // _MEASURED))]
        return count * memory_of(sum(sizes) // len(sizes)) + len(groups) * memory_of(0) if sizes else 0

    def _size_of(self, cell: Cell) -> int:
        try:
            return 0 if cell.value is None else len(self._codec.encode(cell.value))
        except StateSchemaError:  # a later record may correct it
            return 0

    def peek(self, key_json: bytes, namespace: str = "") -> Any:
        """Return the current value of a key, without TTL. For tests and tools."""
        raise NotImplementedError

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Load the entries that these keys' records will probably read, with one call to the backend."""

    def read_ahead(self, keys: Sequence[bytes]) -> None:
        """Read what the records of these keys, given once each, will probably read, where that is cheaper for many of them."""

    def load(self, cells: Cells, name: bytes, stored: bytes | None) -> Cell:
        """Cache the backend's value of an entry."""
        self._loaded += 1
        cell = cells.by_name[name] = self.decode(stored)
        return cell

    @property
    def is_full(self) -> bool:
        """Return whether `cache_limit` entries have been cached since the last trim."""
        return self._loaded >= self.cache_limit

    def make_room(self) -> None:
        """Trim a full cache. Called before each read; calls that wait read again what they lose."""
        if self.is_full:
            self.trim()

    def trim(self) -> None:
        """Drop cells that equal the backend's entries."""
        self._loaded = 0
        for cells in self.groups():
            cells.trim()

    def release(self) -> None:
        """Drop everything that equals the backend. Called while no code of the task runs or waits."""
        self.trim()

    def reads_together(self, keys: Sequence[bytes]) -> bool:
        """Return whether what these keys have may be read with one call: the cache holds it, and the backend needs no look-up for each."""
        backend = self._backend
        return (backend.is_in_memory or backend.scans_keys) and len(keys) <= self.cache_limit

    def forget(self, keys: Collection[bytes]) -> None:
        """Drop the cells of some keys, none of which was changed but in place."""
        raise NotImplementedError

    def drop(self) -> None:
        """Drop everything: all changes are stored. Called while no code of the task runs or waits."""
        for cells in self.groups():
            cells.drop()
        self.release()

    def changes(self, *, last: bool = False) -> Iterator[EntryChange]:
        """Yield the differences from the backend, one change for each entry.

        `last` drops each value when its change has been yielded: a task has not its decoded and its encoded values all
        in memory at once. No other method may be called afterwards, except `writes` and `statistics`.

        Raises `StateSchemaError` for a value that does not fit the declared type.
        """
        entries = ((cells, name, cell) for cells in self.groups() for name, cell in cells.by_name.items())
        while part := [*islice(entries, _AT_ONCE)]:
            yield from self._changed(part)
            if last:
                _drop_values(part)
        for cells in self.groups():
            if cells.cleared:
                yield from self._cleared(cells)

    def _changed(self, entries: Sequence[Entry]) -> list[EntryChange]:
        """Return the changes of some entries: many with one call cost half as much each."""
        changed = [entry for entry in entries if entry[2].dirty]
        present = [entry for entry in changed if entry[2].value is not None]
        changes = self._changes_of(present, self._codec.encode_all([cell.value for _, _, cell in present]))
        if len(present) < len(changed):
            removed = [entry for entry in changed if entry[2].value is None and not entry[0].cleared]
            for cells, _, cell in removed:
                if cell.stored is None:
                    self._read_unread_removals(cells)
            stored = [entry for entry in removed if entry[2].stored]
            changes += self._changes_of(stored, [None] * len(stored))
        return changes

    def _read_unread_removals(self, cells: Cells) -> None:
        """Read entries that were removed unread: only an existing one is removed."""
        unknown = [name for name, cell in cells.by_name.items() if cell.stored is None and cell.value is None]
        stored = self._backend.get_many([cells.prefix + name for name in unknown])
        for name, value in zip(unknown, stored, strict=True):
            cells.by_name[name].stored = value is not None

    def _cleared(self, cells: Cells) -> Iterator[EntryChange]:
        for entry, stored in self._backend.scan(cells.prefix, end_of_group(cells.prefix)):
            name = entry[len(cells.prefix) :]
            cell = cells.by_name.get(name)
            if cell is None or cell.value is None:
                yield EntryChange(cells.key_json, None, unpacked(stored).stamp, 0, cells.namespace, name)

    def _changes_of(self, entries: Sequence[Entry], raws: Iterable[bytes | None], /) -> list[EntryChange]:
        return [
            change_of((cells.key_json, raw, cell.stamp, cell.own_ttl, cells.namespace, name))
            for (cells, name, cell), raw in zip(entries, raws, strict=True)
        ]

    def writes(self, changes: Iterable[EntryChange]) -> Iterator[Write]:
        """Return `changes` as writes to the backend."""
        for change in changes:
            raw = None if change.raw is None else stored_value(change.stamp, change.raw, change.own_ttl)
            yield change.entry(self.name), raw

    def expires_at(self, stamp: int, own_ttl: int = 0) -> int | None:
        """Return when an entry with this stamp expires (ms); `None` without TTL."""
        return None if self._ttl is None else self._ttl.expires_at(stamp, own_ttl)


def _drop_values(entries: Iterable[Entry]) -> None:
    for _, _, cell in entries:
        if cell.value is not None:
            cell.value = _DROPPED


_MOST_HANDLES = 1000
"""Number of namespaces whose handles a state keeps: making one costs as much as a read from the cache."""


class Handle:
    """Base of all handles: a state in one namespace."""

    def __init__(self, store: StateStore, namespace: str = "") -> None:
        """Make a handle for one namespace."""
        self._store: Any = store
        self.name = store.name
        self._namespace = namespace
        self._handles: dict[str, Any] = {}

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        handle = self._handles.get(namespace) if type(namespace) is str else None
        if handle is None:
            check_namespace(namespace)
            if len(self._handles) == _MOST_HANDLES:
                self._handles.clear()
            handle = self._handles[namespace] = type(self)(self._store, namespace)
        return handle
