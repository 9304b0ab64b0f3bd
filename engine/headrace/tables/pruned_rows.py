"""A few rows of a state table: the files and row groups that may hold them, and the selection of rows.

Files are chosen by the statistics in the Delta log, row groups by those in a file's footer, which is read at the first look-up
in the file. Both are kept in memory while the table is read at this version.

Two alternatives were measured on random keys of 1,000,000 (`make bench-state-look-ups`) and rejected: `DeltaTable.scan` with
the keys in its predicate, and a semi-join by DuckDB. If 1,000 keys are in all row groups, all three cost about the same. But
both alternatives read every footer again for each call, so a single key costs many times more. Also, the scan needs keys as SQL
text, and DuckDB cannot read an object store by itself.

Selections of rows of a state table: first by the extent of a file or row group, then by row.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.state.cleanup import CLEANUP_DOMAINS
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.overlay import resolved
from headrace.storage.refusals import doing
from headrace.storage.table import damaged, typed_rows
from headrace.tables.changelog import sort_column
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import check_rows
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS

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


_READERS = min(8, 2 * (os.cpu_count() or 1))
"""Number of files read at once: an object store is slow, but serves many requests in parallel."""

_NOTHING = (b"\xff", b"")
"""Bounds in an `Extent` of a column without values."""


class PrunedRead(NamedTuple):
    """Rows that were wanted, and the amounts read to find them."""

    rows: pa.Table
    rows_read: int
    bytes_read: int
    files_read: int


class _RowGroup(NamedTuple):
    number: int
    rows: int
    size: int
    extent: Extent


class _Footer(NamedTuple):
    metadata: pq.FileMetaData
    row_groups: list[_RowGroup]


@dataclass(slots=True)
class _File:
    path: str
    extent: Extent
    footer: _Footer | None = field(default=None, repr=False)


class PrunedRows:
    """Rows of one operator and key-group range in a state table at one version. Reads may overlap."""

    def __init__(
        self,
        folder: JobFolder,
        table: str,
        version: int,
        *,
        operator: str,
        key_groups: KeyGroupRange,
        columns: Sequence[str],
    ) -> None:
        """List the table's files. `columns` are the columns that `read` returns.

        Raises `StorageError` when the table's log cannot be read.
        """
        self._uri = folder.within(table)
        self._operator = operator
        self._key_groups = key_groups
        self._table = STATE_TABLES[table]
        schema = self._table.schema
        self._schema = pa.schema([schema.field(name) for name in columns])
        self._needed = list(dict.fromkeys([*columns, "operator", "key_group", "key"]))
        # As dictionaries: decoding an operator's name a million times costs more than comparing it.
        self._repeated = [name for name in ("operator", "state") if name in self._needed]
        pruning = ["operator", "key_group", sort_column(table), "key", *(["user_key"] if table == KEYED_STATE else [])]
        self._pruning = {name: schema.field(name).type for name in pruning}
        self._store, self._folder = folder.file_system(table)
        listed = _files(folder.table(table).at(version).add_actions())
        self._files = [file for file in listed if self._is_ours(file.extent)]

    def in_order(self, selection: Selection) -> Iterator[tuple[PrunedRead, bytes | None]]:
        """Yield the wanted rows in rounds, each with a user key: later rounds have only rows from that key on (None: the end).

        A round reads the row groups that overlap the first one: in a compacted list or map of any size, that is one row group.
        Raises `StorageError` when a file is gone, damaged, or out of reach.
        """
        groups = sorted(self._groups_of(selection), key=_beginning)
        while groups:
            _, reach = groups[0][1].extent.get("user_key", (b"", None))
            count = next(
                (at for at, group in enumerate(groups) if reach is not None and _beginning(group) > reach), len(groups)
            )
            chosen, groups = groups[:count], groups[count:]
            by_file: dict[str, tuple[_File, set[int]]] = {}
            for file, group in chosen:
                by_file.setdefault(file.path, (file, set()))[1].add(group.number)
            parts = list(_in_parallel(lambda pair: self._read(pair[0], selection, pair[1]), list(by_file.values())))
            yield self._combine(parts), _beginning(groups[0]) if groups else None

    @contextmanager
    def _opened(self, file: _File) -> Iterator[pa.NativeFile]:
        path, location = (resolved(f"{folder}/{file.path}") for folder in (self._folder, self._uri))
        with doing(f"to read {location}"), self._store.open_input_file(path) as source:
            yield source

    def _groups_of(self, selection: Selection) -> list[tuple[_File, _RowGroup]]:
        """Return the row groups that may hold wanted rows."""
        candidates = [file for file in self._files if selection.may_be_in(file.extent)]
        footers = list(_in_parallel(self._known_footer, candidates))
        return [
            (file, group)
            for file, footer in zip(candidates, footers, strict=True)
            for group in footer.row_groups
            if self._is_ours(group.extent) and selection.may_be_in(group.extent)
        ]

    def _known_footer(self, file: _File) -> _Footer:
        if file.footer is None:
            with self._opened(file) as source:
                file.footer = self._footer(source, file.path)
        return file.footer

    def read(self, selection: Selection) -> PrunedRead:
        """Return the wanted rows, in no particular order.

        Raises `StorageError` when a file is gone, damaged, or out of reach.
        """
        candidates = [file for file in self._files if selection.may_be_in(file.extent)]
        parts = list(_in_parallel(lambda file: self._read(file, selection), candidates))
        return self._combine(parts)

    def _combine(self, parts: Sequence[PrunedRead]) -> PrunedRead:
        tables = [part.rows for part in parts if part.rows.num_rows]
        rows = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return PrunedRead(
            rows, *(sum(numbers) for numbers in zip((0, 0, 0), *(part[1:] for part in parts), strict=True))
        )

    def _read(self, file: _File, selection: Selection, among: Container[int] | None = None) -> PrunedRead:
        with self._opened(file) as source:
            footer = file.footer = file.footer or self._footer(source, file.path)
            chosen = [
                group
                for group in footer.row_groups
                if self._is_ours(group.extent)
                and selection.may_be_in(group.extent)
                and (among is None or group.number in among)
            ]
            if not chosen:
                return PrunedRead(self._schema.empty_table(), 0, 0, 0)
            parquet = pq.ParquetFile(source, metadata=footer.metadata, read_dictionary=self._repeated)
            numbers = [group.number for group in chosen]
            rows = parquet.read_row_groups(numbers, columns=self._needed, use_threads=False)
        try:
            selected = rows.filter(selection.among(rows))
            selected = selected.filter(self._ours(selected))
        except (
            pa.ArrowNotImplementedError,
            pa.ArrowInvalid,
        ) as error:  # it compares no column of a type that the table has not
            raise damaged(self._uri, f"a column of {file.path} has another type: {error}") from error
        selected = typed_rows(self._uri, selected, self._schema)
        check_rows(self._uri, selected, self._table)
        return PrunedRead(selected, rows.num_rows, sum(group.size for group in chosen), 1)

    def _footer(self, source: pa.NativeFile, path: str) -> _Footer:
        metadata = pq.read_metadata(source)
        types = metadata.schema.to_arrow_schema()
        for column in self._table.schema:
            if not column.nullable and column.name in self._needed and column.name not in types.names:
                raise damaged(self._uri, f"column '{column.name}' is not in {path}")
        # Bounds of another type, such as another unit of time, cannot be compared.
        columns = {
            metadata.row_group(0).column(number).path_in_schema: number
            for number in range(metadata.num_columns if metadata.num_row_groups else 0)
        }
        pruning = {
            name: columns[name]
            for name, kind in self._pruning.items()
            if name in columns and types.field(name).type == kind
        }
        needed = [columns[name] for name in self._needed if name in columns]
        numbers = range(metadata.num_row_groups)
        return _Footer(metadata, [_row_group(metadata, number, pruning, needed) for number in numbers])

    def _is_ours(self, extent: Extent) -> bool:
        operator = self._operator.encode()
        return overlaps(extent, "operator", operator, operator) and overlaps(extent, "key_group", *self._key_groups)

    def _ours(self, rows: pa.Table) -> pa.Array:
        group = rows["key_group"]
        within = pc.and_(pc.greater_equal(group, self._key_groups.first), pc.less_equal(group, self._key_groups.last))
        return pc.and_(within, pc.equal(rows["operator"], self._operator))


def _files(listed: pa.Table) -> Iterator[_File]:
    texts = {"operator", "key", "domain"}
    columns = {name: listed[name].to_pylist() for name in listed.schema.names if name.startswith(("min.", "max."))}
    for number, path in enumerate(listed["path"].to_pylist()):
        extent: Extent = {}
        for name in ("operator", "key_group", "key", "domain"):
            bounds = [columns[end][number] for end in (f"min.{name}", f"max.{name}") if end in columns]
            if len(bounds) == len(("min", "max")) and None not in bounds:
                low, high = (bound.encode() if name in texts else bound for bound in bounds)
                extent[name] = (low, high)
        yield _File(path, extent)


def _row_group(metadata: pq.FileMetaData, number: int, pruning: dict[str, int], needed: Sequence[int]) -> _RowGroup:
    group = metadata.row_group(number)
    extent: Extent = {}
    for name, column in pruning.items():
        statistics = group.column(column).statistics
        if statistics is not None and statistics.has_min_max:
            extent[name] = (statistics.min_raw, statistics.max_raw)
        if statistics is not None and statistics.has_null_count and name == "user_key":
            if statistics.null_count == group.num_rows:
                extent[name] = _NOTHING
            extent[SINGLE] = (0, 0) if statistics.null_count == 0 else (0, 1)
    size = sum(group.column(column).total_compressed_size for column in needed)
    return _RowGroup(number, group.num_rows, size, extent)


def _beginning(file_and_group: tuple[_File, _RowGroup]) -> bytes:
    beginning: bytes = file_and_group[1].extent.get("user_key", (b"", None))[0]
    return beginning


def _in_parallel(work: Any, items: Sequence[Any]) -> Iterable[Any]:
    if len(items) < 2:  # noqa: PLR2004 - one piece of work needs no threads
        return map(work, items)
    with ThreadPoolExecutor(min(_READERS, len(items))) as pool:
        return list(pool.map(work, items))
