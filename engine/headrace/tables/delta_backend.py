"""Disaggregated backend (FLIP-423, FLIP-425): state stays in the Delta tables, and nothing is loaded at the start.

Entries that are not in the local cache are looked up in the tables at the parent checkpoint: one read of a table for all entries
of a request. Writes of the task stay in memory until it ends, since the tables get them only with the commit.
"""

from __future__ import annotations

import heapq
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from threading import Lock

import pyarrow as pa
import pyarrow.compute as pc

from headrace.materializer.stored_history import key_of_history
from headrace.state.backend import GROUPED_PREFIX, HISTORY_PREFIX, VALUE_PREFIX, EntryGroups, Write, after, named
from headrace.state.cleanup import CLEANUP_PREFIX, key_of
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.rocksdb import StateCache
from headrace.state.timers import Timer, domain_of, timer_entry, timer_of
from headrace.tables.entries import STORED
from headrace.tables.folder import JobFolder
from headrace.tables.pruned_rows import (
    Between,
    CleanupTimersOf,
    Everything,
    OfGroup,
    OfKeys,
    OfUserKeys,
    PrunedRows,
    Selection,
)
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, TIMERS


@dataclass(frozen=True, slots=True)
class DeltaStatistics:
    """Numbers of entries that a backend was asked for, and of rows that it read."""

    entries_asked: int = 0
    cache_hits: int = 0
    """Entries answered without a look-up: they were in the cache (also as absent), or written by the task."""

    look_ups: int = 0
    """Reads of a table, each for many entries or timers."""

    files_read: int = 0
    rows_read: int = 0
    """Rows decoded to find the wanted ones."""

    bytes_read: int = 0
    """Size of these rows in the files."""


class DeltaBackend:
    """State of one operator and key-group range at a checkpoint, plus the writes of this task.

    Several threads may call `get_many` at once; their look-ups overlap.
    """

    is_in_memory = False
    scans_keys = False
    is_sorted = True

    def __init__(
        self,
        folder: JobFolder,
        versions: Mapping[str, int],
        operator: str,
        key_groups: KeyGroupRange,
        cache: StateCache,
        *,
        max_parallelism: int,
    ) -> None:
        """Keep the arguments: `versions` of the parent checkpoint's tables, and a `cache` of entries at that checkpoint."""
        self._folder = folder
        self._versions = dict(versions)
        self._operator = operator
        self._key_groups = key_groups
        self._cache = cache
        self._max_parallelism = max_parallelism
        self._tables: dict[str, PrunedRows] = {}
        self._opening = Lock()
        self._written: dict[bytes, bytes | None] = {}
        self._written_groups: EntryGroups[bytes | None] = EntryGroups()
        self._walks: dict[bytes, _Walk] = {}
        self._statistics = DeltaStatistics()
        self._lock = Lock()  # guards the cache, the task's writes, and the statistics

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the value of each key; `None` for a key without one. Raises `StorageError` when a look-up fails."""
        known = self._known(keys)
        missing = [key for key in keys if key not in known]
        if missing:
            known |= self._look_up_missing(missing)
        return [known[key] for key in keys]

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """Apply writes in order; a later one for the same entry wins."""
        with self._lock:
            self._walks.clear()
            for entry, value in writes:
                self._written[entry] = value
                if entry[:1] == GROUPED_PREFIX:
                    self._written_groups.put(entry, value)

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over entries with `start <= key < end`, in byte order.

        `start` and `end` are entries of timers or of a group, or prefixes of such entries.
        """
        if start[:1] == GROUPED_PREFIX:
            return self._walk(start, end)
        times = Between(TIMERS, _earliest(start), _latest(end), domain_of(start))
        timers = self._look_up(TIMERS, times)
        with self._lock:
            timers |= self._written
        due = ((entry, value) for entry, value in timers.items() if value is not None and start <= entry < end)
        return iter(sorted(due))

    def _walk(self, start: bytes, end: bytes) -> _Walk:
        """Return a walk over a group from `start` on; a caller that reads page by page gets the same walk again."""
        with self._lock:
            walk = self._walks.pop(end, None)
            if walk is None or walk.place != start:
                written = self._written_groups.scan(start, end)
                walk = _Walk(start, _overlaid(self._committed(start, end), dict(written)))
            while len(self._walks) >= _WALKS:
                del self._walks[next(iter(self._walks))]
            self._walks[end] = walk
        return walk

    def _committed(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield the entries of a group at the parent checkpoint, from `start` on in order, also removed ones."""
        group = end[:-1] + b"\x00"
        state, key, namespace, _ = named(group)
        place = key_group(key, self._max_parallelism)
        wanted = OfGroup(place, state, key, namespace, start[len(group) :])
        stored, rest = STORED[KEYED_STATE], None
        for read, reach in self._table(KEYED_STATE).in_order(wanted):
            with self._lock:
                self._count(
                    look_ups=1, files_read=read.files_read, rows_read=read.rows_read, bytes_read=read.bytes_read
                )
            rows = read.rows if rest is None else pa.concat_tables([rest, read.rows])
            ready = _before(rows, reach)
            rest = rows.filter(pc.invert(ready))
            yield from sorted(dict(stored.entries(rows.filter(ready))).items())

    def may_have(self, prefixes: Sequence[bytes], /) -> list[bool]:
        """Return for each prefix whether an entry may begin with it."""
        return [True] * len(prefixes)

    def may_have_kind(self, _kind: bytes, /) -> bool:
        """Return True: only a look-up finds out."""
        return True

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all entries, in no particular order. Loads all state into memory."""
        everything: dict[bytes, bytes | None] = {}
        for table in STORED:
            everything |= STORED[table].entries(self._table(table).read(Everything()).rows)
        with self._lock:
            everything |= self._written
        return ((entry, value) for entry, value in everything.items() if value is not None)

    def visit(self, _: int, /) -> Iterable[tuple[bytes, bytes]]:
        """Return nothing: the tables hold the entries."""
        return ()

    def statistics(self) -> DeltaStatistics:
        """Return the numbers of entries asked for and rows read so far."""
        with self._lock:
            return self._statistics

    def close(self) -> None:
        """Add the task's writes to the cache, so that it holds the checkpoint that will commit them, and close the cache."""
        self._cache.put(self._written.items())
        self._cache.close()

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
        with self._lock:
            written = self._written
            unwritten = [key for key in keys if key not in written]
            known = self._cache.get(unwritten) if unwritten else {}
            known |= {key: written[key] for key in keys if key in written}
            hits = len(keys) - sum(key not in known for key in unwritten)
            self._count(entries_asked=len(keys), cache_hits=hits)
        return known

    def _look_up_missing(self, missing: Sequence[bytes]) -> dict[bytes, bytes | None]:
        values: dict[bytes, bytes | None] = dict.fromkeys(missing)
        grouped = [entry for entry in missing if entry[:1] == GROUPED_PREFIX]
        for table, wanted in self._by_table(entry for entry in missing if entry[:1] not in _BY_THEMSELVES).items():
            values |= self._look_up(table, OfKeys(table, wanted))
        if cleanups := [entry for entry in missing if entry[:1] == CLEANUP_PREFIX]:
            timers = self._look_up(TIMERS, CleanupTimersOf({key_of(entry) for entry in cleanups}))
            values |= {entry: timers.get(entry) for entry in cleanups}
        if grouped:
            looked_up = self._look_up(KEYED_STATE, OfUserKeys(map(self._user_key, grouped)))
            values |= {entry: looked_up.get(entry) for entry in grouped}  # other entries may have newer rows elsewhere
        with self._lock:
            # Another thread may have written meanwhile: its values are newer than the table's.
            self._cache.put((entry, value) for entry, value in values.items() if entry not in self._written)
            return {entry: self._written.get(entry, value) for entry, value in values.items()}

    def _by_table(self, entries: Iterable[bytes]) -> dict[str, set[tuple[int, bytes]]]:
        """Return the keys to look up by table, each after its value in the table's sort column."""
        wanted: defaultdict[str, set[tuple[int, bytes]]] = defaultdict(set)
        for entry in entries:
            kind = entry[:1]
            if kind == VALUE_PREFIX:
                key = named(entry).key_json
                wanted[KEYED_STATE].add((key_group(key, self._max_parallelism), key))
            elif kind == HISTORY_PREFIX:
                key = key_of_history(entry)
                wanted[MATERIALIZER_HISTORY].add((key_group(key, self._max_parallelism), key))
            else:
                wanted[TIMERS].add((_earliest(entry), timer_of(entry).key_json))
        return wanted

    def _user_key(self, entry: bytes) -> tuple[int, bytes, bytes]:
        _, key, _, user_key = named(entry)
        return key_group(key, self._max_parallelism), key, user_key or b""

    def _look_up(self, table: str, selection: Selection) -> dict[bytes, bytes | None]:
        read = self._table(table).read(selection)
        with self._lock:
            self._count(look_ups=1, files_read=read.files_read, rows_read=read.rows_read, bytes_read=read.bytes_read)
        return dict(STORED[table].entries(read.rows))

    def _table(self, name: str) -> PrunedRows:
        with self._opening:
            if name not in self._tables:
                self._tables[name] = PrunedRows(
                    self._folder,
                    name,
                    self._versions[name],
                    operator=self._operator,
                    key_groups=self._key_groups,
                    columns=STORED[name].columns,
                )
            return self._tables[name]

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = replace(self._statistics, **counted)


class _Walk(Iterator[tuple[bytes, bytes]]):
    """Walk over a group that can be continued: the next page begins at `place`."""

    def __init__(self, place: bytes, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self.place = place
        self._entries = entries

    def __next__(self) -> tuple[bytes, bytes]:
        entry = next(self._entries)
        self.place = after(entry[0])
        return entry


def _overlaid(
    committed: Iterator[tuple[bytes, bytes | None]], written: dict[bytes, bytes | None]
) -> Iterator[tuple[bytes, bytes]]:
    """Merge committed entries and the task's writes in order: writes replace entries, and removed entries are left out."""
    unwritten = (pair for pair in committed if pair[0] not in written)
    for entry, value in heapq.merge(unwritten, sorted(written.items()), key=itemgetter(0)):
        if value is not None:
            yield entry, value


def _before(rows: pa.Table, user_key: bytes | None) -> pa.Array:
    if user_key is None:
        return pc.is_valid(rows["user_key"])
    return pc.less(rows["user_key"].cast(pa.binary()), pa.scalar(user_key, pa.binary()))


_BY_THEMSELVES = (GROUPED_PREFIX, CLEANUP_PREFIX)
_WALKS = 16
"""Number of walks that are kept, so that the next page of a group can continue one. Each holds a row group in memory."""

_TIMER_KEY = len(timer_entry(Timer(0, b"")))
_TIME = struct.Struct(">Q")
_TIME_BEGINS = _TIMER_KEY - _TIME.size
(_ZERO,) = _TIME.unpack_from(timer_entry(Timer(0, b"")), _TIME_BEGINS)
_MICROSECONDS = 1000
_FAR = (1 << 63) - 1


def _earliest(entry: bytes) -> int:
    """Return the time (microseconds) of a timer's entry, or the first time of entries with this prefix."""
    return _time(entry[_TIME_BEGINS:_TIMER_KEY].ljust(_TIME.size, b"\x00"))


def _latest(entry: bytes) -> int:
    """Return the last time (microseconds) of entries with this prefix."""
    return _time(entry[_TIME_BEGINS:_TIMER_KEY].ljust(_TIME.size, b"\xff"))


def _time(packed: bytes) -> int:
    (biased,) = _TIME.unpack(packed)
    microseconds: int = (biased - _ZERO) * _MICROSECONDS
    return max(-_FAR, min(microseconds, _FAR))  # the range of times in Parquet
