"""Reading of a few rows of a state table: only files and row groups that may hold one of them.

Files are chosen by the statistics in the Delta log, row groups by those in a file's footer, which is read at the first look-up
in the file. Both are kept in memory while the table is read at this version.

Two alternatives were measured on random keys of 1,000,000 (`make bench-state-look-ups`) and rejected: `DeltaTable.scan` with
the keys in its predicate, and a semi-join by DuckDB. If 1,000 keys are in all row groups, all three cost about the same. But
both alternatives read every footer again for each call, so a single key costs many times more. Also, the scan needs keys as SQL
text, and DuckDB cannot read an object store by itself.
"""

from __future__ import annotations

import os
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.state.key_groups import KeyGroupRange
from headrace.tables.files import Storage, file_system
from headrace.tables.overlay import resolved
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.selections import SINGLE, Extent, Selection, overlaps
from headrace.tables.state_files import sort_column
from headrace.tables.store import storage_errors
from headrace.tables.stored_rows import check_rows, damaged, typed_rows
from headrace.tables.stores import table_store

_READERS = min(8, 2 * (os.cpu_count() or 1))
"""Number of files read at once: an object store answers slowly, but answers many requests in parallel."""

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
        job_folder: str,
        table: str,
        version: int,
        *,
        operator: str,
        key_groups: KeyGroupRange,
        columns: Sequence[str],
        storage: Storage = None,
    ) -> None:
        """List the table's files. `columns` are the columns that `read` returns.

        Raises `StorageError` when the table's log cannot be read.
        """
        self._uri = f"{job_folder}/{table}"
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
        self._store, self._folder = file_system(self._uri, storage)
        with storage_errors(f"to read {self._uri}"):
            listed = _files(table_store(self._uri, storage).at(version).add_actions())
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
            with storage_errors(f"to read {self._uri}"):
                parts = list(_in_parallel(lambda pair: self._read(pair[0], selection, pair[1]), list(by_file.values())))
            yield self._combine(parts), _beginning(groups[0]) if groups else None

    def _groups_of(self, selection: Selection) -> list[tuple[_File, _RowGroup]]:
        """Return the row groups that may hold wanted rows."""
        candidates = [file for file in self._files if selection.may_be_in(file.extent)]
        with storage_errors(f"to read {self._uri}"):
            footers = list(_in_parallel(self._known_footer, candidates))
        return [
            (file, group)
            for file, footer in zip(candidates, footers, strict=True)
            for group in footer.row_groups
            if self._is_ours(group.extent) and selection.may_be_in(group.extent)
        ]

    def _known_footer(self, file: _File) -> _Footer:
        if file.footer is None:
            with self._store.open_input_file(resolved(f"{self._folder}/{file.path}")) as source:
                file.footer = self._footer(source, file.path)
        return file.footer

    def read(self, selection: Selection) -> PrunedRead:
        """Return the wanted rows, in no particular order.

        Raises `StorageError` when a file is gone, damaged, or out of reach.
        """
        candidates = [file for file in self._files if selection.may_be_in(file.extent)]
        with storage_errors(f"to read {self._uri}"):
            parts = list(_in_parallel(lambda file: self._read(file, selection), candidates))
        return self._combine(parts)

    def _combine(self, parts: Sequence[PrunedRead]) -> PrunedRead:
        tables = [part.rows for part in parts if part.rows.num_rows]
        rows = pa.concat_tables(tables) if tables else self._schema.empty_table()
        return PrunedRead(
            rows, *(sum(numbers) for numbers in zip((0, 0, 0), *(part[1:] for part in parts), strict=True))
        )

    def _read(self, file: _File, selection: Selection, among: Container[int] | None = None) -> PrunedRead:
        with self._store.open_input_file(resolved(f"{self._folder}/{file.path}")) as source:
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
        selected = rows.filter(selection.among(rows))
        selected = typed_rows(self._uri, selected.filter(self._ours(selected)), self._schema)
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
