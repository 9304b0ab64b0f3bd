"""State tables in a folder, with changes committed as tasks do, and without Spark."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace import RowKind
from headrace.commit.job_tables import JobTables
from headrace.materializer.histories import HistoryChange
from headrace.materializer.stored_history import HistoryRow, history_entry, stored_history
from headrace.state.backend import (
    GROUPED_PREFIX,
    VALUE_PREFIX,
    EntryChange,
    HashMapBackend,
    named,
    stored_value,
    value_entry,
)
from headrace.state.key_groups import KeyGroupRange, key_group, task_of
from headrace.state.rocksdb import StateCache
from headrace.state.timers import Timer, TimerChange, timer_entry, timer_of
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, TIMERS

GROUPS = 16
EVERYTHING = KeyGroupRange(0, GROUPS - 1)


class Memory(HashMapBackend):
    """A cache's database in memory: opening a RocksDB costs 20 ms."""

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove entries as `RocksDbBackend` does."""
        self.write_batch([(key, None) for key in dict(self.items()) if start <= key < end])

    def copy(self) -> Memory:
        """Return a copy, like a hard-linked copy on disk."""
        other = Memory()
        other.write_batch(self.items())
        return other


class Named:
    """The part of a `ValueStore` that a changelog needs."""

    def __init__(self, name: str) -> None:
        self.name = name

    def expires_at(self, stamp: int, own_ttl: int = 0) -> int | None:
        return None


@dataclass
class CommittedState:
    """The tables, and the expected entries of a backend over them, by operator."""

    folder: JobFolder
    expected: dict[str, dict[bytes, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tables = JobTables(self.folder, "run", "attempt")
        self.versions = self.tables.create()
        self.checkpoint = 0
        self._numbers = itertools.count()

    def values(self, operator: str, state: str, changes: dict[bytes, bytes | None], *, stamp: int = 7) -> None:
        """Commit a checkpoint in which keys of `operator` get or lose values."""
        rows = [EntryChange(key, raw, stamp) for key, raw in changes.items()]
        self._commit(operator, KEYED_STATE, rows, lambda log, part: log.values(Named(state), part))
        self._expect(
            operator,
            {value_entry(state, key): raw and stored_value(stamp, raw) for key, raw in changes.items()},
        )

    def entries(self, operator: str, state: str, changes: dict[tuple[bytes, str, bytes | None], bytes | None]) -> None:
        """Commit a checkpoint in which elements or entries (by key, namespace and user key) get values or are removed."""
        rows = [EntryChange(key, raw, 7, 9, namespace, name) for (key, namespace, name), raw in changes.items()]
        self._commit(operator, KEYED_STATE, rows, lambda log, part: log.values(Named(state), part))
        self._expect(operator, {row.entry(state): row.raw and stored_value(7, row.raw, 9) for row in rows})

    def timers(self, operator: str, changes: dict[Timer, bool]) -> None:
        """Commit a checkpoint in which `operator` registered or removed timers."""
        rows = [TimerChange(timer, registered) for timer, registered in changes.items()]
        self._commit(operator, TIMERS, rows, lambda log, part: log.timers(part))
        self._expect(operator, {timer_entry(timer): b"" if there else None for timer, there in changes.items()})

    def histories(self, operator: str, changes: dict[bytes, list[bytes]]) -> None:
        """Commit a checkpoint in which keys got these histories."""
        rows = []
        for key, texts in changes.items():
            before = self.expected.get(operator, {}).get(history_entry(key))
            old = [] if before is None else msgspec.json.decode(before, type=list[HistoryRow])
            rows += [HistoryChange(key, row.sequence_number, None, row.row_kind, 0) for row in old[len(texts) :]]
            rows += [HistoryChange(key, number, text, 0, 0) for number, text in enumerate(texts)]
        self._commit(operator, MATERIALIZER_HISTORY, rows, lambda log, part: log.history(part, lambda _: None))
        self._expect(operator, {history_entry(key): _history(texts) for key, texts in changes.items()})

    def compact(self, name: str) -> None:
        """Rewrite a table to one row per live entry."""
        rows = self.folder.views(self.versions)(name).live()
        staged = stage_state(self.folder, name, self._file_name(), rows)
        self.versions[name] = self.tables.replace(name, [staged] if staged.rows else [], self.versions[name])

    def backend(
        self, cache: StateCache, operator: str = "counts", key_groups: KeyGroupRange = EVERYTHING
    ) -> DeltaBackend:
        """Return a task's backend on top of the committed tables."""
        return DeltaBackend(self.folder, self.versions, operator, key_groups, cache, max_parallelism=GROUPS)

    def of(self, key_groups: KeyGroupRange, operator: str = "counts") -> dict[bytes, bytes]:
        """The expected entries of some key groups."""
        entries = self.expected.get(operator, {})
        return {entry: value for entry, value in entries.items() if key_group(key_of(entry), GROUPS) in key_groups}

    def _commit(self, operator: str, table: str, rows: list[Any], contents: Any) -> None:
        self.checkpoint += 1
        log = Changelog(operator, self.checkpoint, GROUPS)
        parts = [[row for row in rows if task_of(_group(row), GROUPS, 2) == task] for task in range(2)]
        staged = [stage_state(self.folder, table, self._file_name(), contents(log, part)) for part in parts if part]
        self.versions = self.tables.prepare({table: staged}, self.versions)

    def _expect(self, operator: str, changes: dict[bytes, bytes | None]) -> None:
        entries = {**self.expected.get(operator, {}), **changes}
        self.expected[operator] = {entry: value for entry, value in entries.items() if value is not None}

    def _file_name(self) -> str:
        return f"{next(self._numbers):010d}.parquet"


def key_of(entry: bytes) -> bytes:
    """The key in an entry."""
    if entry[:1] in {VALUE_PREFIX, GROUPED_PREFIX}:
        return named(entry).key_json
    return entry[1:] if entry[:1] == b"h" else timer_of(entry).key_json


def _group(row: Any) -> int:
    return key_group(row.timer.key_json if isinstance(row, TimerChange) else row.key_json, GROUPS)


def _history(texts: list[bytes]) -> bytes | None:
    rows = [HistoryRow(number, msgspec.Raw(text), int(RowKind.INSERT), 0) for number, text in enumerate(texts)]
    return stored_history(rows) if rows else None
