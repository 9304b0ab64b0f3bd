"""Rows of one file of a Delta table, with columns that only the table's log knows, and with the change of each row."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import CHANGE_TYPE, SourceNode
from headrace.api.records import RowKind
from headrace.errors import StorageError
from headrace.records.column_types import Column, columns_of, near_misses
from headrace.sources.delta.mapping import NO_COLUMN, columns_in_file, in_table_names
from headrace.sources.folder.format import DamagedFileError, FileRows, located
from headrace.sources.folder.parquet import ParquetColumns
from headrace.sources.position import Ranges
from headrace.storage.deletion_vectors import DamagedVectorError, DeletionVector
from headrace.storage.delta_log import DeltaLog, LoggedFile, TableState
from headrace.storage.delta_schema import TIMES, DeltaColumn, arrow_type
from headrace.storage.schemes import place_of
from headrace.storage.storage import Storage

_SYMBOLS: Final = {
    "insert": RowKind.INSERT.symbol,
    "update_preimage": RowKind.UPDATE_BEFORE.symbol,
    "update_postimage": RowKind.UPDATE_AFTER.symbol,
    "delete": RowKind.DELETE.symbol,
}
_MINUS: Final = ("delete", "update_preimage")

_CHANGE_COLUMN: Final = DeltaColumn(CHANGE_TYPE)

Side = Literal["minus", "plus"]
"""Half of a change file's rows: `minus` are deletes and pre-images, `plus` inserts and post-images. `minus` sorts first."""


class PartitionValue(msgspec.Struct, frozen=True):
    """Value of a partition column in all rows of a file: its text in the log, and Delta's name of its type."""

    column: str
    type: str
    text: str | None


class Within(msgspec.Struct, frozen=True, omit_defaults=True):
    """Rows whose time in a column lies from `start` to `end` (ms, exclusive). None: without a bound; without a `start`, nulls count too."""

    column: str
    zone: str
    """Time zone of dates, and of timestamps without a zone."""
    start: int | None = None
    end: int | None = None

    def counts(self, times: Times) -> npt.NDArray[np.bool_]:
        """Return for each row whether it counts."""
        counts = times.known.copy()
        if self.start is not None:
            counts &= times.values >= self.start
        if self.end is not None:
            counts &= times.values < self.end
        return counts | ~times.known if self.start is None else counts


class Times(NamedTuple):
    """Time of each row in a column (ms), and whether it has one."""

    values: npt.NDArray[np.int64]
    known: npt.NDArray[np.bool_]


class DeltaRows(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts about a file's rows that are in the table's log.

    `columns` are the table's columns: a column that the file lacks is null. `kind` is the row kind of all rows (a symbol), if
    given. With a `side`, only rows of that side count, by the file's column `_change_type`.
    """

    columns: tuple[DeltaColumn, ...] = ()
    partition: tuple[PartitionValue, ...] = ()
    kind: str | None = None
    side: Side | None = None
    table: str = ""
    """The table's folder, where deletion vectors are; empty without any."""
    vector: DeletionVector | None = None
    """Rows that are deleted: they do not count."""
    only: DeletionVector | None = None
    """If given, only these rows count."""
    net: Ranges | None = None
    """If given, only these rows count: they have changed on balance, and others of the file have not."""
    within: Within | None = None
    """If given, only these rows count."""
    problem: str | None = None
    """If given, why none of the rows can be taken in."""

    def check(self) -> None:
        """Raise `DamagedFileError` where the log itself says that no row can be taken in."""
        if self.problem is not None:
            raise DamagedFileError(self.problem)

    def live_rows(self, place: Storage) -> npt.NDArray[np.int64]:
        """Return the numbers of the rows that count in a file."""
        rows = ParquetColumns(place).rows
        counts = self.counts(place, rows)
        return np.arange(rows) if counts is None else np.flatnonzero(counts)

    def counts(self, storage: Storage, rows: int) -> npt.NDArray[np.bool_] | None:
        """Return for each row of a file with so many `rows` whether it counts; None if all do.

        Raises `OSError` and `DamagedFileError` where a deletion vector cannot be read.
        """
        if self.vector is None and self.only is None and self.net is None and self.within is None:
            return None
        mask = np.full(rows, self.only is None and self.net is None)
        for first, end in self.net or ():
            mask[first:end] = True
        if self.only is not None:
            mask[self._rows(self.only, storage, rows)] = True
        if self.vector is not None:
            mask[self._rows(self.vector, storage, rows)] = False
        if self.within is not None:
            mask &= self.within.counts(column_times(storage, self, self.within.column, self.within.zone))
        return mask

    def _rows(self, vector: DeletionVector, storage: Storage, rows: int) -> npt.NDArray[np.int64]:
        try:
            deleted = vector.rows(storage.at(self.table))
        except DamagedVectorError as error:
            raise DamagedFileError(str(error)) from error
        if len(deleted) and deleted.max() >= rows:
            msg = f"{vector} deletes row {deleted.max():,}, and the file has {rows:,}"
            raise DamagedFileError(msg)
        return deleted


def rows_of(logged: LoggedFile, state: TableState, folder: str, rows: DeltaRows | None = None) -> DeltaRows:
    """Return the facts about a file of a table in `folder`; `rows` has what else is known of its rows."""
    columns = {column.name: column for column in state.columns}
    partition = tuple(
        PartitionValue(name, columns[name].type, (logged.partition or {}).get(columns[name].stored))
        for name in state.partition_columns
    )
    own = rows or DeltaRows()
    table = "" if logged.vector is None and own.only is None else folder
    return msgspec.structs.replace(own, columns=state.in_files, partition=partition, vector=logged.vector, table=table)


def table_rows(table: Storage) -> Iterator[pa.Table]:
    """Yield the rows of a Delta table at its latest version, file by file.

    Raises `StorageError` for a table with a feature that this reader does not know, `OSError` and `pa.ArrowException` where log or
    files cannot be read.
    """
    log = DeltaLog(table.uri, table.options)
    version = log.versions()[-1]
    state = log.state(version)
    if state.unreadable is not None:
        msg = f"table {table.uri} has {state.unreadable}, which Headrace does not read"
        raise StorageError(msg)
    for logged in log.files(version):
        yield read_rows(table.at(place_of(logged.path, table.uri) or logged.path), rows_of(logged, state, table.uri))


def source_rows(place: Storage, delta: DeltaRows | None, node: SourceNode) -> FileRows:
    """Read the rows of a source's file as its record needs them. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
    if delta is not None:
        delta.check()
    nulls = _null_columns(node)
    whole = read_rows(place, delta, nulls=[column.stored for column in nulls if not column.path])
    return located(whole, node, [column.stored for column in nulls])


def _null_columns(node: SourceNode) -> list[Column]:
    """Return the columns that are null where a table lacks them, although their fields have another default.

    Once the table has the column, rows of before are null to every reader. So they are null before, too.
    """
    optional = (column for column in columns_of(node.record, node.names) if column.nullable and not column.required)
    return [column for column in optional if column.default is not None]


def read_rows(
    place: Storage,
    delta: DeltaRows | None,
    columns: Collection[str] = (),
    nulls: Collection[str] = (),
) -> pa.Table:
    """Read the rows of a source's file, with these `columns` only if any are given; add the columns `nulls` if they are absent.

    Without `delta`, return the rows exactly as the file has them. Raises `OSError` and `pa.ArrowException` where the file
    cannot be read.
    """
    file = ParquetColumns(place)
    if delta is None:
        return file.read(columns)
    # Spark leaves an empty column _change_type in data files that a MERGE writes beside files of changes.
    own = (*delta.columns, _CHANGE_COLUMN) if delta.side is not None else delta.columns
    wanted = [column for column in own if not columns or column.name in {*columns, CHANGE_TYPE}]
    stored = columns_in_file(file.schema, wanted)
    # An Arrow table without a column has no rows, so constants could not be added.
    table = file.read([*stored] or file.names[:1])
    table = _of_counting_rows(_without_views(table), delta, place)  # Arrow cannot choose rows of views
    table = in_table_names(table, stored)
    table = _widened(table, [column.name for column in delta.columns if column.type in TIMES])
    table = _of_side(table, delta.side) if delta.side is not None else table
    for value in delta.partition:
        if value.column not in table.schema.names:
            table = table.append_column(value.column, pa.repeat(partition_scalar(value), table.num_rows))
    for column in wanted:
        if column.name not in table.schema.names and column is not _CHANGE_COLUMN:
            table = table.append_column(column.name, pa.nulls(table.num_rows))
    for name in nulls:
        if name not in table.schema.names and not any(near_misses([name], table.schema.names)):
            table = table.append_column(name, pa.nulls(table.num_rows))
    if delta.kind is not None:
        table = table.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(delta.kind), table.num_rows))
    return table.drop([NO_COLUMN]) if NO_COLUMN in table.schema.names and table.num_columns > 1 else table


def _of_counting_rows(table: pa.Table, delta: DeltaRows, place: Storage) -> pa.Table:
    counts = delta.counts(place, table.num_rows)
    return table if counts is None else table.filter(pa.array(counts))


def _widened(table: pa.Table, times: Collection[str]) -> pa.Table:
    """Convert dates of columns that have become timestamps to midnight, in UTC as all timestamps without a zone."""
    for place, field in enumerate(table.schema):
        if field.name in times and pa.types.is_date(field.type):
            table = table.set_column(place, field.name, table.column(place).cast(pa.timestamp("us")))
    return table


def column_times(place: Storage, delta: DeltaRows, name: str, zone: str) -> Times:
    """Return the times that the rows of a file have in a column, also of rows that do not count. Dates are midnights in the zone.

    Raises one of `headrace.sources.folder.format.UNREADABLE`, also for a column of another type.
    """
    every = msgspec.structs.replace(delta, vector=None, only=None, net=None, within=None, side=None, kind=None)
    values = read_rows(place, every, [name])[name].combine_chunks()
    column = next((own for own in delta.columns if own.name == name), DeltaColumn(name))
    return _times_of(values, column, zone)


def _times_of(values: Any, column: DeltaColumn, zone: str) -> Times:
    known: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_null(values.type):
        return Times(np.zeros(len(values), np.int64), known)
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("ms"))
    if not pa.types.is_timestamp(values.type):
        msg = f"column {column.name} has the type {values.type} in the file: a time was expected"
        raise pa.ArrowInvalid(msg)
    if values.type.tz is None and column.type != "timestamp":
        values = pc.assume_timezone(values, zone, ambiguous="earliest", nonexistent="latest")
    per = _UNITS[values.type.unit]
    numbers: npt.NDArray[np.int64] = values.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    return Times(numbers * 1000 if per == 1 else numbers // (per // 1000), known)


_UNITS: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Number of units in a second."""


def row_count(place: Storage, delta: DeltaRows) -> int:
    """Count the rows that `source_rows` returns for the file. Raises as it does."""
    delta.check()
    file = ParquetColumns(place)
    if delta.side is not None:
        return len(_of_side(file.read([CHANGE_TYPE]), delta.side))
    counts = delta.counts(place, file.rows)
    return file.rows if counts is None else int(counts.sum())


def partition_scalar(value: PartitionValue) -> pa.Scalar:
    """Parse a partition value. A time without a zone is in UTC; an empty text is null.

    Raises `pa.ArrowException` for a text that is not a value of the type.
    """
    kind = arrow_type(DeltaColumn(value.column, value.type))
    if not value.text:
        return pa.scalar(None, kind)
    if value.type in TIMES:
        text = value.text.removesuffix("Z").removesuffix("UTC").strip()
        return pa.scalar(text).cast(pa.timestamp("us")).cast(kind)
    if value.type == "binary" and _may_be_bytes(value.text):
        msg = (
            f"partition column {value.column} is binary, and writers encode its value {value.text!r} in different ways"
        )
        raise pa.ArrowInvalid(msg)
    return pa.scalar(value.text, pa.string()).cast(kind)


def _may_be_bytes(text: str) -> bool:
    """Return whether a text may stand for bytes, one a letter, as well as for its letters in UTF-8."""
    return not text.isascii() and max(map(ord, text)) <= _LAST_BYTE


_LAST_BYTE: Final = 0xFF


def _without_views(table: pa.Table) -> pa.Table:
    """Cast view types, which deltalake writes for some texts, to plain ones: Arrow cannot take rows of views."""
    schema = pa.schema([pa.field(field.name, _plain(field.type), field.nullable) for field in table.schema])
    return table if schema.equals(table.schema) else table.cast(schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_string_view(kind):
        return pa.large_string()
    if pa.types.is_binary_view(kind):
        return pa.large_binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type), field.nullable) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return pa.list_(_plain(kind.value_type)) if pa.types.is_list(kind) else kind


def _of_side(table: pa.Table, side: Side) -> pa.Table:
    """Return the rows of one side, with symbols of row kinds.

    Rows of an unknown change type are in `plus`, so that they are read once and refused.
    """
    if CHANGE_TYPE not in table.schema.names:
        msg = f"no column {CHANGE_TYPE} in a file of the change data feed"
        raise pa.ArrowInvalid(msg)
    types = pa.chunked_array([chunk.cast(pa.string()) for chunk in table[CHANGE_TYPE].chunks], pa.string())
    is_minus = pc.fill_null(pc.is_in(types, pa.array(_MINUS)), False)
    keep = is_minus if side == "minus" else pc.invert(is_minus)
    known = pc.index_in(types, pa.array([*_SYMBOLS]))
    symbols = pc.coalesce(pc.take(pa.array([*_SYMBOLS.values()]), known), types)
    place = table.schema.names.index(CHANGE_TYPE)
    return table.set_column(place, CHANGE_TYPE, symbols).filter(keep)
