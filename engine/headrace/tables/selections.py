"""Selections of rows of a state table: first by the extent of a file or row group, then by row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.exact_cleanup import CLEANUP_DOMAINS
from headrace.tables.schemas import TIMERS
from headrace.tables.state_files import sort_column

Extent = dict[str, tuple[Any, Any]]
"""Smallest and largest values of columns; a column that is missing may hold any value.

Values have the form of Parquet: texts as bytes, times as microseconds. Nulls do not count, so in keyed state the extent of
`user_key` covers lists and maps, and is empty without them.
"""

SINGLE = "single"
"""Name in an `Extent` of keyed state: its upper bound is 1 if there may be rows without user key, else 0."""


class Selection(Protocol):
    """Rule that selects wanted rows."""

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        ...

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        ...


class OfKeys:
    """Selection of all rows of some keys, except those of lists and maps. In `timers`, it may skip rows with other times."""

    def __init__(self, table: str, wanted: Iterable[tuple[int, bytes]]) -> None:
        """Select the keys in `wanted`, each after its value in the table's sort column."""
        self._column = sort_column(table)
        self._wanted = sorted(wanted)
        self._keys = pa.array([key.decode() for _, key in self._wanted], pa.string())
        self._times = pa.array([time for time, _ in self._wanted], pa.int64()) if table == TIMERS else None

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        if extent.get(SINGLE) == (0, 0):
            return False
        wanted, first, last = self._wanted, 0, len(self._wanted)
        if self._column in extent:
            low, high = extent[self._column]
            first, last = bisect_left(wanted, (low, b"")), bisect_left(wanted, (high + 1, b""))
        if "key" not in extent:
            return first < last
        low, high = extent["key"]
        return any(low <= key <= high for _, key in wanted[first:last])

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        of_keys = pc.is_in(rows["key"], self._keys)
        if self._times is not None:  # a key may have any number of timers
            return pc.and_(of_keys, pc.is_in(rows[self._column].cast(pa.int64()), self._times))
        if "user_key" not in rows.schema.names or rows["user_key"].null_count == rows.num_rows:
            return of_keys
        return pc.and_(of_keys, pc.is_null(rows["user_key"]))


class OfUserKeys:
    """Selection of all rows of some entries of lists and maps. It may also select some rows of other entries."""

    def __init__(self, wanted: Iterable[tuple[int, bytes, bytes]]) -> None:
        """Select entries by key group, key and user key."""
        self._wanted = sorted(wanted)
        self._keys = pa.array({key.decode() for _, key, _ in self._wanted}, pa.string())
        self._user_keys = pa.array({user_key.decode() for _, _, user_key in self._wanted}, pa.string())

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        wanted, first, last = self._wanted, 0, len(self._wanted)
        if "key_group" in extent:
            low, high = extent["key_group"]
            first, last = bisect_left(wanted, (low, b"", b"")), bisect_left(wanted, (high + 1, b"", b""))
        return any(
            overlaps(extent, "key", key, key) and overlaps(extent, "user_key", user_key, user_key)
            for _, key, user_key in wanted[first:last]
        )

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        return pc.and_(pc.is_in(rows["key"], self._keys), pc.is_in(rows["user_key"], self._user_keys))


class OfGroup:
    """Selection of the rows of a key's list or map in one namespace, from a user key on."""

    def __init__(self, key_group: int, state: str, key: bytes, namespace: str, start: bytes) -> None:
        """Select rows from user key `start` on; it may be any text, also one that is no user key."""
        self._key_group = key_group
        self._state = state
        self._key = key
        self._namespace = namespace
        self._start = start

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        if "user_key" in extent:
            low, high = extent["user_key"]
            if high < max(low, self._start):
                return False
        in_group = overlaps(extent, "key_group", self._key_group, self._key_group)
        return in_group and overlaps(extent, "key", self._key, self._key)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        mask = pc.and_(pc.equal(rows["key"], self._key.decode()), pc.equal(rows["state"], self._state))
        mask = pc.and_(mask, pc.equal(pc.fill_null(rows["namespace"], ""), self._namespace))
        # Compare bytes, since `start` may end within a character. UTF-8 bytes sort like texts.
        user_keys = rows["user_key"].cast(pa.binary())
        return pc.and_(mask, pc.fill_null(pc.greater_equal(user_keys, pa.scalar(self._start, pa.binary())), False))


class Between:
    """Selection of rows whose sort column is from `low` to `high`, both included. It may skip timers of other domains."""

    def __init__(self, table: str, low: int, high: int, domain: str = "") -> None:
        """Select rows by bounds in the form of Parquet."""
        self._column = sort_column(table)
        self._low, self._high = low, high
        self._domain = domain.encode()

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        if self._domain and not overlaps(extent, "domain", self._domain, self._domain):
            return False
        return overlaps(extent, self._column, self._low, self._high)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        column = rows[self._column]
        column = column if pa.types.is_integer(column.type) else column.cast(pa.int64())
        return pc.and_(pc.greater_equal(column, self._low), pc.less_equal(column, self._high))


class CleanupTimersOf:
    """Selection of all cleanup timers of some keys, at any time.

    The table is sorted by time, so they may be in any file with cleanup timers. For exact cleanup, a delta backend therefore
    reads all these files once in each task; a local copy needs no such read.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        """Select timers of `keys`, which are JSON texts."""
        self._keys = sorted(keys)

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        if "domain" in extent:
            low, high = extent["domain"]
            if not any(low <= domain.encode() <= high for domain in CLEANUP_DOMAINS):
                return False
        if "key" not in extent:
            return True
        low, high = extent["key"]
        return any(low <= key <= high for key in self._keys)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        of_keys = pc.is_in(rows["key"], pa.array([key.decode() for key in self._keys], pa.string()))
        return pc.and_(of_keys, pc.is_in(rows["domain"], pa.array(CLEANUP_DOMAINS, pa.string())))


class Everything:
    """Selection of all rows."""

    def may_be_in(self, _extent: Extent, /) -> bool:
        """Return whether an extent may hold wanted rows."""
        return True

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        return pc.is_valid(rows["key"])


def overlaps(extent: Extent, column: str, low: Any, high: Any) -> bool:
    """Return whether an extent may hold values of a column from `low` to `high`, both included."""
    if column not in extent:
        return True
    smallest, largest = extent[column]
    return bool(smallest <= high and largest >= low)
