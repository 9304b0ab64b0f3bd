"""The disaggregated backend (FLIP-423, FLIP-425): state stays in the Delta tables, and nothing is loaded at the start.

What the local cache doesn't know is looked up in the tables as of the parent checkpoint, all entries of a
request in one read per table. What the task writes is held beside that until the task ends, since the tables
don't have it before the commit.
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
from headrace.state.backend import GROUPED_PREFIX, HISTORY_PREFIX, VALUE_PREFIX, EntryGroups, Write, after
from headrace.state.entry import named
from headrace.state.exact_cleanup import CLEANUP_PREFIX, key_of
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.state_cache import StateCache
from headrace.state.timer_service import Timer, domain_of, timer_entry, timer_of
from headrace.tables.files import Storage
from headrace.tables.pruned_rows import PrunedRows
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, TIMERS
from headrace.tables.selections import Between, CleanupTimersOf, Everything, OfGroup, OfKeys, OfUserKeys, Selection
from headrace.tables.stored_entries import STORED


@dataclass(frozen=True, slots=True)
class DeltaStatistics:
    """What a backend was asked, and what it read."""

    entries_asked: int = 0
    cache_hits: int = 0
    """Entries answered without a look-up: found in the cache, known to be absent, or written by the task."""

    look_ups: int = 0
    """Reads of a table for entries or timers, each of many entries."""

    files_read: int = 0
    rows_read: int = 0
    """Rows unpacked to find those that were asked for."""

    bytes_read: int = 0
    """Their size in the files."""


class DeltaBackend:
    """The state of one operator and key-group range as of a checkpoint, plus what this task has written.

    `get_many` may be called by several threads at once; their look-ups overlap.
    """

    answers_at_once = False
    scans_keys = False

    def __init__(
        self,
        job_folder: str,
        versions: Mapping[str, int],
        operator: str,
        key_groups: KeyGroupRange,
        cache: StateCache,
        *,
        max_parallelism: int,
        storage: Storage = None,
    ) -> None:
        """`versions` are those of the parent checkpoint's tables; `cache` holds what is known of that checkpoint."""
        self._job_folder = job_folder
        self._versions = dict(versions)
        self._operator = operator
        self._key_groups = key_groups
        self._cache = cache
        self._max_parallelism = max_parallelism
        self._storage = storage
        self._tables: dict[str, PrunedRows] = {}
        self._opening = Lock()
        self._written: dict[bytes, bytes | None] = {}
        self._written_groups: EntryGroups[bytes | None] = EntryGroups()
        self._walks: dict[bytes, _Walk] = {}
        self._statistics = DeltaStatistics()
        self._lock = Lock()  # guards the cache, what was written, and the statistics

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """See `StateBackend.get_many`. Raises `StorageError` when a look-up fails."""
        known = self._known(keys)
        missing = [key for key in keys if key not in known]
        if missing:
            known |= self._learned(missing)
        return [known[key] for key in keys]

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """See `StateBackend.write_batch`."""
        with self._lock:
            self._walks.clear()
            for entry, value in writes:
                self._written[entry] = value
                if entry[:1] == GROUPED_PREFIX:
                    self._written_groups.put(entry, value)

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.scan`. `start` and `end` are entries of timers, or their beginnings, or those of a group."""
        if start[:1] == GROUPED_PREFIX:
            return self._walk(start, end)
        times = Between(TIMERS, _earliest(start), _latest(end), domain_of(start))
        found = self._look_up(TIMERS, times)
        with self._lock:
            found |= self._written
        due = ((entry, value) for entry, value in found.items() if value is not None and start <= entry < end)
        return iter(sorted(due))

    def _walk(self, start: bytes, end: bytes) -> _Walk:
        """A walk over a group from `start` on. Whoever reads page by page goes on with the same one."""
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
        """The entries of a group as of the parent checkpoint, removed ones included, from `start` on in order."""
        group = end[:-1] + b"\x00"
        state, key, namespace, _ = named(group)
        place = key_group(key, self._max_parallelism)
        wanted = OfGroup(place, state, key, namespace, start[len(group) :])
        stored, rest = STORED[KEYED_STATE], None
        for found, reach in self._table(KEYED_STATE).in_order(wanted):
            with self._lock:
                self._count(
                    look_ups=1, files_read=found.files_read, rows_read=found.rows_read, bytes_read=found.bytes_read
                )
            rows = found.rows if rest is None else pa.concat_tables([rest, found.rows])
            ready = _before(rows, reach)
            rest = rows.filter(pc.invert(ready))
            yield from sorted(dict(stored.entries(rows.filter(ready))).items())

    def may_have(self, prefixes: Sequence[bytes], /) -> list[bool]:
        """Return for each prefix whether an entry may begin with it."""
        return [True] * len(prefixes)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """See `StateBackend.items`. Loads all state into memory."""
        everything: dict[bytes, bytes | None] = {}
        for table in STORED:
            everything |= STORED[table].entries(self._table(table).read(Everything()).rows)
        with self._lock:
            everything |= self._written
        return ((entry, value) for entry, value in everything.items() if value is not None)

    def visit(self, _: int, /) -> Iterable[tuple[bytes, bytes]]:
        """See `StateBackend.visit`: there are none here."""
        return ()

    def statistics(self) -> DeltaStatistics:
        """What was asked and read so far."""
        with self._lock:
            return self._statistics

    def close(self) -> None:
        """Give what was written to the cache, which is now one of the checkpoint that commits it, and close that."""
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

    def _learned(self, missing: Sequence[bytes]) -> dict[bytes, bytes | None]:
        found: dict[bytes, bytes | None] = dict.fromkeys(missing)
        grouped = [entry for entry in missing if entry[:1] == GROUPED_PREFIX]
        for table, wanted in self._by_table(entry for entry in missing if entry[:1] not in _BY_THEMSELVES).items():
            found |= self._look_up(table, OfKeys(table, wanted))
        if cleanups := [entry for entry in missing if entry[:1] == CLEANUP_PREFIX]:
            timers = self._look_up(TIMERS, CleanupTimersOf({key_of(entry) for entry in cleanups}))
            found |= {entry: timers.get(entry) for entry in cleanups}
        if grouped:
            looked_up = self._look_up(KEYED_STATE, OfUserKeys(map(self._user_key, grouped)))
            found |= {entry: looked_up.get(entry) for entry in grouped}  # of others there may be newer rows elsewhere
        with self._lock:
            # Another thread may have written meanwhile, and knows better than the table.
            self._cache.put((entry, value) for entry, value in found.items() if entry not in self._written)
            return {entry: self._written.get(entry, value) for entry, value in found.items()}

    def _by_table(self, entries: Iterable[bytes]) -> dict[str, set[tuple[int, bytes]]]:
        """The keys to look for, each behind its value in the table's sort column."""
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
        found = self._table(table).read(selection)
        with self._lock:
            self._count(look_ups=1, files_read=found.files_read, rows_read=found.rows_read, bytes_read=found.bytes_read)
        return dict(STORED[table].entries(found.rows))

    def _table(self, name: str) -> PrunedRows:
        with self._opening:
            if name not in self._tables:
                self._tables[name] = PrunedRows(
                    self._job_folder,
                    name,
                    self._versions[name],
                    operator=self._operator,
                    key_groups=self._key_groups,
                    columns=STORED[name].columns,
                    storage=self._storage,
                )
            return self._tables[name]

    def _count(self, **more: int) -> None:
        counted = {name: getattr(self._statistics, name) + count for name, count in more.items()}
        self._statistics = replace(self._statistics, **counted)


class _Walk(Iterator[tuple[bytes, bytes]]):
    """A walk over a group that can be gone on with: `place` is where the next page starts."""

    def __init__(self, place: bytes, entries: Iterator[tuple[bytes, bytes]]) -> None:
        self.place = place
        self._entries = entries

    def __next__(self) -> tuple[bytes, bytes]:
        found = next(self._entries)
        self.place = after(found[0])
        return found


def _overlaid(
    committed: Iterator[tuple[bytes, bytes | None]], written: dict[bytes, bytes | None]
) -> Iterator[tuple[bytes, bytes]]:
    """Both in order, what was written in place of what was committed, and without what was removed."""
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
"""Walks over groups that are kept to be gone on with. Each holds a group of rows in memory."""

_TIMER_KEY = len(timer_entry(Timer(0, b"")))
_TIME = struct.Struct(">Q")
_TIME_BEGINS = _TIMER_KEY - _TIME.size
(_ZERO,) = _TIME.unpack_from(timer_entry(Timer(0, b"")), _TIME_BEGINS)
_MICROSECONDS = 1000
_FAR = (1 << 63) - 1


def _earliest(entry: bytes) -> int:
    """The time (in microseconds) of a timer's entry, or the first one of entries that begin like this."""
    return _time(entry[_TIME_BEGINS:_TIMER_KEY].ljust(_TIME.size, b"\x00"))


def _latest(entry: bytes) -> int:
    """The last time (in microseconds) of entries that begin like this."""
    return _time(entry[_TIME_BEGINS:_TIMER_KEY].ljust(_TIME.size, b"\xff"))


def _time(packed: bytes) -> int:
    (biased,) = _TIME.unpack(packed)
    microseconds: int = (biased - _ZERO) * _MICROSECONDS
    return max(-_FAR, min(microseconds, _FAR))  # Parquet has no times beyond
