"""Backend on local disk: one RocksDB database for each operator, key-group range and checkpoint, and a cache in such a one.

`StateCache` keeps entries of state that is stored elsewhere: values and absences, so that an absent key is read only once. There are two generations.
Entries that are added or used go into the younger one; when that holds half of the bound, the older one is
dropped as a whole and the younger takes its place. So an entry that is used at least once per generation stays,
and eviction costs one range delete of RocksDB, without a list of accesses.

    bound of 4 entries    put a, b, c    get a      put d, e
    younger                              a
    older                 a b c          a b c      a d e        b and c are evicted
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec
from rocksdict import (
    BlockBasedOptions,
    DBCompactionStyle,
    Options,
    Rdict,
    RdictIter,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from headrace.state.backend import GROUPED_PREFIX, VALUE_PREFIX, Write, after, end_of_group

INLINE_READS_BELOW = 256 << 20
"""Default size of a database (bytes) below which reads are executed inline.

The operating system keeps files of that size in memory, and a read from memory takes less CPU than a request that waits
for its batch. Flink's ForSt backend has the same choice for writes, `executor.inline-write`.
"""

_MERGED_FROM = 8
"""Number of sorted runs from which on RocksDB merges the latest ones, in the background."""

_MOST_RUNS = 12
"""Number of sorted runs from which on a write waits until a merge is done: a read looks into all of them."""

_VISITED = b"c"
"""Entry with the position of `visit`; it is no state."""

_MOST_SKIPPED = 100
"""Number of removed entries that `may_have` steps over for a prefix: about as long as one read takes."""

_FILES = "rocksdb.total-sst-files-size"


class RocksDbBackend:
    """RocksDB database in its own folder, opened for the duration of one task.

    It has no write-ahead log: a task's work counts only once it is committed to Delta, and until
    `close` has flushed it nothing else reads the folder.
    """

    is_in_memory: bool
    """True while the files take less than `inline_reads_below`. Measured when the database is opened, and after each write."""

    scans_keys = True
    is_sorted = True

    def __init__(self, path: Path, *, create: bool = True, inline_reads_below: int = INLINE_READS_BELOW) -> None:
        """Open the database in `path`; create it if there is none and `create` is true.

        Reads are executed inline while its files take less than `inline_reads_below` bytes, never for 0.
        """
        self._inline_reads_below = inline_reads_below
        options = Options(raw_mode=True)
        options.create_if_missing(create)
        options.set_max_open_files(256)
        options.set_keep_log_file_num(1)
        _merge_by_size(options)
        _skip_files_by_filter(options)
        # Options that are not given for "default", too, stay those with which the database was created.
        self._db = Rdict(str(path), options, column_families={"default": options})
        self._pinned: RdictIter | None = None
        """Iterator over the entries as they were when it was made."""
        write_options = WriteOptions()
        write_options.disable_wal = True  # type: ignore[method-assign, assignment]  # a property; the stub says method
        self._write_options = write_options
        self._measure()

    def get_many(self, keys: Sequence[bytes], /) -> list[bytes | None]:
        """Return the value of each key; `None` for a key without one."""
        if not keys:
            return []
        return cast("list[bytes | None]", self._db.get(list(keys)))

    def write_batch(self, writes: Iterable[Write], /) -> None:
        """Apply writes in order; a later one for the same entry wins."""
        batch = WriteBatch(raw_mode=True)
        for key, value in writes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        self._db.write(batch, self._write_options)
        self._measure()

    def scan(self, start: bytes, end: bytes, /) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over entries with `start <= key < end`, in byte order."""
        return self._pairs(start, end)

    def may_have(self, prefixes: Sequence[bytes], /) -> list[bool]:
        """Return for each prefix whether an entry may begin with it, by one walk over the entries from the first to the last."""
        if not prefixes:
            return []
        end = end_of_group(prefixes[-1])
        options = ReadOptions()
        options.set_iterate_upper_bound(end)
        options.set_max_skippable_internal_keys(_MOST_SKIPPED)
        entries = self._db.iter(options)
        answers: list[bool] = []
        here = b""  # the first entry that may begin with the prefix, or with a later one
        for prefix in prefixes:
            if here < prefix:
                entries.seek(prefix)
                here = cast("bytes", entries.key()) if entries.valid() else self._behind(entries, prefix, end)
            answers.append(here.startswith(prefix))
        return answers

    def may_have_kind(self, kind: bytes, /) -> bool:
        """Return whether an entry begins with `kind`."""
        return next(self._pairs(kind, bytes([kind[0] + 1])), None) is not None

    @staticmethod
    def _behind(entries: RdictIter, prefix: bytes, end: bytes) -> bytes:
        """Return the end of a walk; `prefix` itself if there are too many removed entries behind it to find out."""
        try:
            entries.status()
        except Exception as error:
            if "Result incomplete" not in str(error):
                raise
            return prefix
        return end

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """Iterate over all entries, in no particular order."""
        return ((entry, value) for entry, value in self._pairs(b"") if entry != _VISITED)

    def visit(self, count: int, /) -> list[tuple[bytes, bytes]]:
        """Return the next `count` entries of keyed state. The database stores the position for the next task."""
        entries = list(islice(self._keyed_from(self._db.get(_VISITED) or b""), count))
        end = after(entries[-1][0]) if len(entries) == count else b""
        self.write_batch([(_VISITED, end)])
        return entries

    def pin(self) -> None:
        """Let `visit` and `had` see the entries as they are now, whatever is written later."""
        if self._pinned is None:
            self._pinned = self._db.iter(ReadOptions())

    def unpin(self) -> None:
        """Let `visit` and `had` see the present entries again."""
        self._pinned = None

    def had(self, entries: Sequence[bytes]) -> list[bool]:
        """Return for each entry whether it was there at the `pin`."""
        if self._pinned is None:
            return [stored is not None for stored in self.get_many(entries)]
        pinned, answers = self._pinned, []
        for entry in entries:
            pinned.seek(entry)
            answers.append(pinned.valid() and pinned.key() == entry)
        return answers

    def _measure(self) -> None:
        size = self._db.property_int_value(_FILES)
        self.is_in_memory = size is not None and size < self._inline_reads_below

    def _keyed_from(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        pinned = self._pinned
        for kind in (GROUPED_PREFIX, VALUE_PREFIX):  # in byte order
            if start < (end := bytes([kind[0] + 1])):
                start = max(start, kind)
                yield from self.scan(start, end) if pinned is None else self._pinned_pairs(pinned, start, end)

    def _pairs(self, start: bytes, end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        options = ReadOptions()
        if end is not None:
            # Without a bound RocksDB searches for the next live entry after `end`, and steps over all removed ones there. It reads
            # the bound from the bytes object, which this frame keeps alive while it iterates.
            options.set_iterate_upper_bound(end)
        entries = self._db.iter(options)
        entries.seek(start)
        while entries.valid():
            # In raw mode keys and values are bytes; the stub declares the union of all modes.
            yield cast("tuple[bytes, bytes]", (entries.key(), entries.value()))
            entries.next()
        entries.status()  # an unreadable file also ends the loop: this raises for it

    @staticmethod
    def _pinned_pairs(pinned: RdictIter, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        pinned.seek(start)
        while pinned.valid() and (entry := cast("bytes", pinned.key())) < end:
            yield entry, cast("bytes", pinned.value())
            pinned.next()
        pinned.status()  # as above

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove all entries with `start <= key < end`, and free their space."""
        self.drop_range(start, end)
        self._db.flush()
        self._db.compact_range(start, end)

    def drop_range(self, start: bytes, end: bytes) -> None:
        """Remove all entries with `start <= key < end`. Later merges free their space."""
        batch = WriteBatch(raw_mode=True)
        batch.delete_range(start, end)
        self._db.write(batch, self._write_options)

    def merge(self) -> None:
        """Merge all sorted runs into one. Takes as long as reading and writing everything."""
        self._db.compact_range(None, None)

    def close(self) -> None:
        """Flush and close, so that the folder can be hard-linked."""
        self.unpin()
        try:
            self._db.flush()
        finally:
            self._db.close()


def _merge_by_size(options: Options) -> None:
    """Let RocksDB merge sorted runs of similar size (universal compaction), so that a merge takes as long as the writes behind it.

    A task has the database open for a fraction of a second, and adds a run. By default (leveled compaction) RocksDB would merge the
    runs of the last tasks with the whole state, which takes longer: each task would begin a merge, stop it when it closes, and find
    more runs than the task before.
    """
    options.set_compaction_style(DBCompactionStyle.universal())
    options.set_level_zero_file_num_compaction_trigger(_MERGED_FROM)
    options.set_level_zero_slowdown_writes_trigger(_MOST_RUNS)
    options.set_level_zero_stop_writes_trigger(_MOST_RUNS)


def _skip_files_by_filter(options: Options) -> None:
    """Let a look-up skip the files that do not have its entry: a filter of 10 bits for each entry tells for 99 of 100 of them.

    Without filters it searches all sorted runs up to the one that has the entry, and of an absent one all. Half a million entries in six
    files: 6.7 to 4.0 us a look-up, 6.3 to 1.1 for an absent one, and the files grow by a twentieth.
    """
    table = BlockBasedOptions()
    table.set_bloom_filter(10, block_based=False)
    options.set_block_based_table_factory(table)


_GENERATIONS = (b"0", b"1")
_STATE = b"s"
_ABSENT = b"a"
_PRESENT = b"p"
_CHUNK = 1000
"""Entries written between two checks of the bound."""


class _Generations(msgspec.Struct):
    younger: int = 0
    size: int = 0
    """Bytes written to the younger generation. An entry written twice counts twice: RocksDB keeps both for a while."""


class StateCache:
    """Cache in `database`, which nothing else uses. Not safe for several threads at once."""

    def __init__(self, database: RocksDbBackend, bound: int) -> None:
        """Take the database; `bound` is in bytes of keys and values, and may be exceeded by up to 1,000 entries for a while."""
        self._database = database
        self._bound = bound
        (stored,) = database.get_many([_STATE])
        self._generations = _Generations() if stored is None else msgspec.json.decode(stored, type=_Generations)

    def get(self, entries: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """Return the cached ones of `entries`: a value, or `None` for an entry that is known to be absent."""
        younger, older = self._prefixes()
        known = self._read(younger, entries)
        if len(known) < len(entries):
            used = self._read(older, [entry for entry in entries if entry not in known])
            self.put(used.items())
            known |= used
        return known

    def put(self, writes: Iterable[Write]) -> None:
        """Cache values, and absences as `None`."""
        remaining = iter(writes)
        while chunk := list(islice(remaining, _CHUNK)):
            younger, _ = self._prefixes()
            stored = [(younger + entry, _ABSENT if value is None else _PRESENT + value) for entry, value in chunk]
            self._database.write_batch(stored)
            self._generations.size += sum(len(entry) + len(value) for entry, value in stored)
            if self._generations.size > self._bound // 2:
                self._drop_older()

    def close(self) -> None:
        """Close the database. No other method may be called afterwards."""
        self._database.write_batch([(_STATE, msgspec.json.encode(self._generations))])
        self._database.close()

    def _read(self, generation: bytes, entries: Sequence[bytes]) -> dict[bytes, bytes | None]:
        values = self._database.get_many([generation + entry for entry in entries])
        return {
            entry: None if stored == _ABSENT else stored[1:]
            for entry, stored in zip(entries, values, strict=True)
            if stored is not None
        }

    def _drop_older(self) -> None:
        _, older = self._prefixes()
        self._database.remove_range(older, bytes([older[0] + 1]))
        self._generations = _Generations(younger=1 - self._generations.younger)

    def _prefixes(self) -> tuple[bytes, bytes]:
        younger = self._generations.younger
        return _GENERATIONS[younger], _GENERATIONS[1 - younger]
