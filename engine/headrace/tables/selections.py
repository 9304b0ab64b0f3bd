"""Selections of rows of a state table: by the extent of a file or row group first, then row by row."""

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
"""Smallest and largest value of columns; a column that is not named may hold anything.

Values are as Parquet has them: texts as bytes, times as microseconds. Nulls are not counted, so of keyed state the extent of
`user_key` is that of lists and maps, and empty where there are none.
"""

SINGLE = "single"
"""In an `Extent` of keyed state: whether it may hold rows without user key, from no (0) to yes (1)."""


class Selection(Protocol):
    """A rule for the rows that are wanted."""

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
        ...

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        ...


class OfKeys:
    """All rows of some keys, but for elements and entries of their lists and maps; of timers, only those with the right time need be found."""

    def __init__(self, table: str, wanted: Iterable[tuple[int, bytes]]) -> None:
        """`wanted` has each key behind its value in the table's sort column."""
        self._column = sort_column(table)
        self._wanted = sorted(wanted)
        self._keys = pa.array([key.decode() for _, key in self._wanted], pa.string())
        self._times = pa.array([time for time, _ in self._wanted], pa.int64()) if table == TIMERS else None

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
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
    """Rows of some elements and entries of lists and maps, and perhaps some, but not all, rows of others."""

    def __init__(self, wanted: Iterable[tuple[int, bytes, bytes]]) -> None:
        """`wanted` has key group, key and user key of each."""
        self._wanted = sorted(wanted)
        self._keys = pa.array({key.decode() for _, key, _ in self._wanted}, pa.string())
        self._user_keys = pa.array({user_key.decode() for _, _, user_key in self._wanted}, pa.string())

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
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
    """The rows of a key's list or map in one namespace, from a user key on."""

    def __init__(self, key_group: int, state: str, key: bytes, namespace: str, start: bytes) -> None:
        """`start` is the first user key, or any text before it."""
        self._key_group = key_group
        self._state = state
        self._key = key
        self._namespace = namespace
        self._start = start

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
        if "user_key" in extent:
            low, high = extent["user_key"]
            if high < max(low, self._start):
                return False
        in_group = overlaps(extent, "key_group", self._key_group, self._key_group)
        return in_group and overlaps(extent, "key", self._key, self._key)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        found = pc.and_(pc.equal(rows["key"], self._key.decode()), pc.equal(rows["state"], self._state))
        found = pc.and_(found, pc.equal(pc.fill_null(rows["namespace"], ""), self._namespace))
        # A text in the middle of one that UTF-8 has cut: bytes compare as texts do.
        user_keys = rows["user_key"].cast(pa.binary())
        return pc.and_(found, pc.fill_null(pc.greater_equal(user_keys, pa.scalar(self._start, pa.binary())), False))


class Between:
    """Rows whose sort column is from `low` to `high`, both included; of timers, only those of the domain need be found."""

    def __init__(self, table: str, low: int, high: int, domain: str = "") -> None:
        """Bounds are as Parquet has the column."""
        self._column = sort_column(table)
        self._low, self._high = low, high
        self._domain = domain.encode()

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
        if self._domain and not overlaps(extent, "domain", self._domain, self._domain):
            return False
        return overlaps(extent, self._column, self._low, self._high)

    def among(self, rows: pa.Table, /) -> pa.Array:
        """Return a mask of the wanted rows."""
        column = rows[self._column]
        column = column if pa.types.is_integer(column.type) else column.cast(pa.int64())
        return pc.and_(pc.greater_equal(column, self._low), pc.less_equal(column, self._high))


class CleanupTimersOf:
    """The cleanup timers of some keys, whenever they fire.

    The table is sorted by time, so they may lie in any file that has cleanup timers: exact cleanup costs a delta backend one
    read of those for each task, where a local copy has them at hand.
    """

    def __init__(self, keys: Iterable[bytes]) -> None:
        """`keys` are JSON texts."""
        self._keys = sorted(keys)

    def may_be_in(self, extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
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
    """All rows."""

    def may_be_in(self, _extent: Extent, /) -> bool:
        """Return whether rows of this extent may be wanted."""
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
