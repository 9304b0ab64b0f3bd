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

from headrace.errors import StateSchemaError
from headrace.state.backend import EntryChange, memory_of, named, unpacked

if TYPE_CHECKING:
    from headrace.state.rocksdb import RocksDbBackend
    from headrace.state.store import StateStore

MARK: Final = b"w"
"""First byte of every mark."""
_END: Final = bytes([MARK[0] + 1])
_AT_ONCE: Final = 1_000
"""Entries that are written or read with one call to the database: values may be large."""


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
        try:
            changes = [*store.changes()]  # before one is written: what the database has, a cell must know
        except StateSchemaError:
            return  # all stay in memory: a later record may correct the value, and the end of the task refuses it
        self.count += self.add(store, changes)
        store.drop()

    def add(self, store: StateStore, changes: Iterable[EntryChange]) -> int:
        """Write changes of a store; return how many there are. Raises `StateSchemaError` for a value that does not fit its type."""
        self._database.pin()
        self._stores[store.name] = store
        writes, count = store.writes(changes), 0
        while part := [*islice(writes, _AT_ONCE)]:
            self._database.write_batch([*part, *((MARK + entry, b"") for entry, _ in part)])
            count += len(part)
        return count

    def marked(self, entries: Sequence[bytes]) -> set[bytes]:
        """Return those of some entries that have changed."""
        if not self._stores:
            return set()
        marks = self._database.get_many([MARK + entry for entry in entries])
        return {entry for entry, mark in zip(entries, marks, strict=True) if mark is not None}

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
            self._database.unpin()
            self._database.drop_range(MARK, _END)

    def _changes(self) -> Iterator[tuple[str, EntryChange]]:
        """Yield the changes with the names of their states, in the order of their entries. What was made and removed in the task leaves none."""
        marks = self._database.scan(MARK, _END)
        while entries := [mark[len(MARK) :] for mark, _ in islice(marks, _AT_ONCE)]:
            values = dict(zip(entries, self._database.get_many(entries), strict=True))
            removed = [entry for entry, stored in values.items() if stored is None]
            made_here = {entry for entry, had in zip(removed, self._database.had(removed), strict=True) if not had}
            for entry, stored in values.items():
                if entry in made_here:
                    continue
                state, key_json, namespace, user_key = named(entry)
                stamp, own_ttl, raw = (0, 0, None) if stored is None else unpacked(stored)
                yield state, EntryChange(key_json, raw, stamp, own_ttl, namespace, user_key)
