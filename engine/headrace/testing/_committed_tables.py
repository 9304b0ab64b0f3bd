"""State tables of a harness: it commits the changes of each micro-batch to them, as a job does with backend `delta`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import pyarrow as pa

from headrace.commit.job_tables import JobTables
from headrace.state.backend import (
    GROUPED_PREFIX,
    TIMER_PREFIX,
    VALUE_PREFIX,
    EntryChange,
    Write,
    named,
    unpacked,
)
from headrace.state.key_groups import KeyGroupRange
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.state.timers import TimerChange, timer_of
from headrace.tables.changelog import Changelog, KeyedState, parts, stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, TIMERS

_CACHE_BYTES = 64 << 20
OPERATOR = "function"

StateChanges = Iterable[tuple[KeyedState, Sequence[EntryChange]]]


class _Restored:
    """A state of a snapshot, whose lifetimes are unknown."""

    def __init__(self, name: str) -> None:
        self.name = name

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return None: the lifetime is unknown."""
        del stamp, own_ttl
        return None


class CommittedTables:
    """Tables in a folder, and the backend over their committed rows."""

    def __init__(self, folder: Path, max_parallelism: int) -> None:
        """Create empty tables."""
        self._folder = JobFolder(str(folder / "tables"))
        self._cache = folder / "cache"
        self._max_parallelism = max_parallelism
        self._tables = JobTables(self._folder, "harness", "harness")
        self._versions = self._tables.create()
        self._numbers = itertools.count(1)
        self.backend = self._opened()

    def commit(self, states: StateChanges, timers: Sequence[TimerChange], writes: Iterable[Write]) -> None:
        """Commit a micro-batch, and open a backend over it. `writes` are the same changes in the form of a backend."""
        number = next(self._numbers)
        log = Changelog(OPERATOR, number, self._max_parallelism)
        rows = {
            KEYED_STATE: [log.values(state, changes) for state, changes in states if changes],
            TIMERS: [log.timers(timers)] if timers else [],
        }
        staged = {
            name: [
                stage_state(self._folder, name, f"{number:010d}-{place}.parquet", part)
                for place, part in enumerate(part for table in tables for part in parts(name, table))
            ]
            for name, tables in rows.items()
        }
        self._versions = self._tables.prepare(staged, self._versions)
        self.backend.write_batch(writes)
        self.backend.close()
        self.backend = self._opened()

    def restore(self, entries: Sequence[tuple[bytes, bytes]]) -> None:
        """Commit the entries of a snapshot."""
        states: dict[str, list[EntryChange]] = {}
        for entry, value in entries:
            if entry[:1] in {VALUE_PREFIX, GROUPED_PREFIX}:
                state, key_json, namespace, user_key = named(entry)
                stamp, own_ttl, raw = unpacked(value)
                change = EntryChange(key_json, raw, stamp, own_ttl, namespace, user_key)
                states.setdefault(state, []).append(change)
        timers = [TimerChange(timer_of(entry), True) for entry, _ in entries if entry[:1] == TIMER_PREFIX]
        self.commit([(_Restored(name), changes) for name, changes in states.items()], timers, entries)

    def table(self, name: str) -> pa.Table:
        """Return the live rows of a state table."""
        return self._folder.view(name, self._versions[name]).live()

    def _opened(self) -> DeltaBackend:
        return DeltaBackend(
            self._folder,
            self._versions,
            OPERATOR,
            KeyGroupRange(0, self._max_parallelism - 1),
            StateCache(RocksDbBackend(self._cache), _CACHE_BYTES),
            max_parallelism=self._max_parallelism,
        )
