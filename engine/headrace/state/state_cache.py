"""A bounded cache of entries on local disk: what is known of state that lies elsewhere.

It knows values and absences, so that a key that isn't there is looked for once. There are two generations.
Whatever is learned or used goes into the younger one; when that holds half of the bound, the older one is
dropped whole and the younger takes its place. So an entry that is used at least once per generation stays,
and forgetting costs one range of RocksDB, without a list of who was used when.

    bound of 4 entries    put a, b, c    get a      put d, e
    younger                              a
    older                 a b c          a b c      a d e        b and c are no longer known
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
"""Entries written before the bound is looked at again."""


class _Generations(msgspec.Struct):
    younger: int = 0
    size: int = 0
    """Bytes written to the younger generation. An entry written twice counts twice: RocksDB keeps both for a while."""


class StateCache:
    """The cache in `database`, which is its alone. Not safe for use by several threads at once."""

    def __init__(self, database: RocksDbBackend, bound: int) -> None:
        """`bound` is in bytes of keys and values; up to 1,000 entries more may be there for a moment."""
        self._database = database
        self._bound = bound
        (stored,) = database.get_many([_STATE])
        self._generations = _Generations() if stored is None else msgspec.json.decode(stored, type=_Generations)

    def get(self, entries: Sequence[bytes]) -> dict[bytes, bytes | None]:
        """What is known of `entries`: a value, or `None` for one that is known to be absent."""
        younger, older = self._prefixes()
        known = self._read(younger, entries)
        if len(known) < len(entries):
            used = self._read(older, [entry for entry in entries if entry not in known])
            self.put(used.items())
            known |= used
        return known

    def put(self, writes: Iterable[Write]) -> None:
        """Remember values, and absences as `None`."""
        remaining = iter(writes)
        while chunk := list(islice(remaining, _CHUNK)):
            younger, _ = self._prefixes()
            stored = [(younger + entry, _ABSENT if value is None else _PRESENT + value) for entry, value in chunk]
            self._database.write_batch(stored)
            self._generations.size += sum(len(entry) + len(value) for entry, value in stored)
            if self._generations.size > self._bound // 2:
                self._drop_older()

    def close(self) -> None:
        """Close the database. Nothing may be called afterwards."""
        self._database.write_batch([(_STATE, msgspec.json.encode(self._generations))])
        self._database.close()

    def _read(self, generation: bytes, entries: Sequence[bytes]) -> dict[bytes, bytes | None]:
        found = self._database.get_many([generation + entry for entry in entries])
        return {
            entry: None if stored == _ABSENT else stored[1:]
            for entry, stored in zip(entries, found, strict=True)
            if stored is not None
        }

    def _drop_older(self) -> None:
        _, older = self._prefixes()
        self._database.remove_range(older, bytes([older[0] + 1]))
        self._generations = _Generations(younger=1 - self._generations.younger)

    def _prefixes(self) -> tuple[bytes, bytes]:
        younger = self._generations.younger
        return _GENERATIONS[younger], _GENERATIONS[1 - younger]
