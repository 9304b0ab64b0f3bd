"""Changes of state that do not fit into the memory of a task: they are in its database before it ends.

    cache full  ──>  changed entries to the database, and a mark of each  ──>  empty cache
    end         ──>  the marked entries, in parts  ──>  files of state

The database is the task's own: if the task fails, nobody reads it. A mark has no value, since the database has that of the entry:

    w <entry>

An entry that changes again is written again, and has one mark. So the files have one row for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

from headrace.state.backend import EntryChange, memory_of, named, unpacked

if TYPE_CHECKING:
    from headrace.state.rocksdb import RocksDbBackend
    from headrace.state.store import StateStore

MARK: Final = b"w"
"""First byte of every mark."""
_END: Final = bytes([MARK[0] + 1])
_AT_ONCE: Final = 20_000
"""Entries that are written or read with one call to the database."""


class SpilledChanges:
    """Changed entries of one task in its database."""

    def __init__(self, database: RocksDbBackend, limit: int) -> None:
        """Take the task's own database, and how many bytes of entries the task has in memory at most."""
        self._database = database
        self._limit = limit
        self._stores: dict[str, StateStore] = {}
        """Stores with spilled changes, by name."""
        self.count = 0
        """Number of changes that were written before the end of the task."""

    def is_due(self, stores: Iterable[StateStore]) -> bool:
        """Return whether what these stores have in memory takes more than the limit."""
        return sum(store.size for store in stores) > self._limit

    def has(self, store: object) -> bool:
        """Return whether changes of a store were spilled."""
        return any(store is spilled for spilled in self._stores.values())

    def spill(self, store: StateStore) -> None:
        """Write all changes of a store. Called while no code of the task runs or waits."""
        self.count += self.add(store, store.changes())
        store.drop()

    def add(self, store: StateStore, changes: Iterable[EntryChange]) -> int:
        """Write changes of a store; return how many there are."""
        self._stores[store.name] = store
        writes, count = store.writes(changes), 0
        while part := [*islice(writes, _AT_ONCE)]:
            self._database.write_batch([*part, *((MARK + entry, b"") for entry, _ in part)])
            count += len(part)
        return count

    def parts(self) -> Iterator[tuple[StateStore, Sequence[EntryChange]]]:
        """Yield all changes, those of one store together, in parts of about the limit. Called once, at the end."""
        part, size, last = list[EntryChange](), 0, ""
        for state, change in self._changes():
            if part and (state != last or size >= self._limit):
                yield self._stores[last], part
                part, size = [], 0
            last, size = state, size + memory_of(len(change.raw or b""))
            part.append(change)
        if part:
            yield self._stores[last], part

    def drop_marks(self) -> None:
        """Remove all marks: the changes are in files of state."""
        if self._stores:
            self._database.drop_range(MARK, _END)

    def _changes(self) -> Iterator[tuple[str, EntryChange]]:
        """Yield the changes with the names of their states, in the order of their entries."""
        marks = self._database.scan(MARK, _END)
        while entries := [mark[len(MARK) :] for mark, _ in islice(marks, _AT_ONCE)]:
            for entry, stored in zip(entries, self._database.get_many(entries), strict=True):
                state, key_json, namespace, user_key = named(entry)
                stamp, own_ttl, raw = (0, 0, None) if stored is None else unpacked(stored)
                yield state, EntryChange(key_json, raw, stamp, own_ttl, namespace, user_key)
