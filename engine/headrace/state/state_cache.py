"""Bounded cache of entries on local disk, for state that is stored elsewhere.

It caches values and absences, so that an absent key is read only once. There are two generations.
Entries that are added or used go into the younger one; when that holds half of the bound, the older one is
dropped as a whole and the younger takes its place. So an entry that is used at least once per generation stays,
and eviction costs one range delete of RocksDB, without a list of accesses.

    bound of 4 entries    put a, b, c    get a      put d, e
    younger                              a
    older                 a b c          a b c      a d e        b and c are evicted
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from headrace.state.backend import Write
from headrace.state.rocksdb import RocksDbBackend

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
        """Take the database; `bound` is in bytes of keys and values, and may be exceeded by up to 1,000 entries for a moment."""
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
