"""Parquet files, and their columns as Arrow tables.

INT96, in which Spark writes times unless it is told otherwise, holds days and nanoseconds. Arrow turns it into 64 bits of
nanoseconds, which end in the year 2262: 9999-12-31 would become a day in 1816. So they are read in microseconds, except
where a time is finer than that.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.api.graph import SourceNode
from headrace.names import counted
from headrace.records.value_rules import FIRST_TIME, LAST_TIME
from headrace.sources.folder.format import DamagedFileError, FileRows, located
from headrace.storage.storage import Storage

_PER_MICROSECOND: Final = 1_000
_ROWS_PER_BYTE: Final = 1 << 17
"""No writer packs more rows into a byte: a group of 64 Mi rows, the largest that Arrow writes, has a footer of hundreds of bytes."""

_ROWS_AT_ONCE: Final = 20_000
"""Most rows that a step of reading in parts takes."""
_STEPS: Final = 8
"""Number of steps in which a part is read, by what the footer says of the size of rows. They take more memory where values repeat."""

_END: Final = 1 << 16
"""Number of bytes at the end of a file that are read at once, as Arrow does: most footers are shorter."""
_FOOTER_SIZE: Final = 8
"""Number of bytes at the end of a file: the length of its footer, and `PAR1`."""
_SIGNATURE: Final = 28
"""Number of bytes by which the plain footer of a file with encrypted columns is longer than what it says: a nonce and a tag."""


class ParquetColumns:
    """Reader of one file."""

    def __init__(self, file: Storage) -> None:
        """Read the footer.

        Raises `OSError` and `pa.ArrowException` where it cannot be read, and `DamagedFileError` where its numbers of rows cannot be.
        """
        self._place = file
        source = file.open()
        size = source.size()
        end = source.read_at(min(_END, size), max(0, size - _END))
        self._footer = _footer(source, end)
        self._file = self._open("us", source)
        _check_counts(self._footer, size, has_columns=not _is_signed(self._footer, end))

    @property
    def schema(self) -> pa.Schema:
        """Return the columns with their types."""
        return self._file.schema_arrow

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        names: list[str] = self.schema.names
        return names

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        count: int = self._footer.num_rows
        return count

    def read(self, names: Collection[str] = ()) -> pa.Table:
        """Read these columns, all without `names`.

        Raises `pa.ArrowException` where they cannot be read, and `DamagedFileError` where the footer says another number of rows, and
        for a column of INT96 whose times neither micro- nor nanoseconds can represent.
        """
        table = self._file.read(columns=[*names] or None)
        if table.num_columns and table.num_rows != self.rows:
            msg = f"its footer says {counted(self.rows, 'row')}, and it has {table.num_rows:,}"
            raise DamagedFileError(msg)
        old = [name for name in self._int96() if not names or name in names]
        if not old:
            return table
        fine = self._open("ns").read(columns=old)
        for place, column in enumerate(table.schema.names):
            if column in old and _is_finer(table.column(place), fine[column]):
                table = table.set_column(place, column, _in_nanoseconds(column, table.column(place), fine[column]))
        return table

    def can_be_read_in_parts(self) -> bool:
        """Return whether parts of the file tell the same of its columns as the whole: times of INT96 are looked at together."""
        return self.rows > 0 and not self._int96()

    def parts(self, limit: int) -> Iterator[pa.Table]:
        """Yield the rows in parts of about `limit` bytes.

        Raises `pa.ArrowException` where they cannot be read, and `DamagedFileError` where the footer says another number of rows.
        """
        waiting, size, rows = [], 0, 0
        for batch in self._file.iter_batches(batch_size=self._rows_within(limit // _STEPS)):
            rows += batch.num_rows
            waiting.append(batch)
            size += batch.nbytes
            if size >= limit:
                yield pa.Table.from_batches(waiting)
                waiting, size = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)
        if self.schema.names and rows != self.rows:
            msg = f"its footer says {counted(self.rows, 'row')}, and it has {rows:,}"
            raise DamagedFileError(msg)

    def _rows_within(self, size: int) -> int:
        """Return the number of rows that take about so many bytes, at least one."""
        groups = [self._footer.row_group(number) for number in range(self._footer.num_row_groups)]
        whole = sum(group.total_byte_size for group in groups)
        count: int = max(1, min(_ROWS_AT_ONCE, size * self.rows // max(whole, 1)))
        return count

    def _open(self, unit: str, source: Any = None) -> Any:
        return pq.ParquetFile(source or self._place.open(), metadata=self._footer, coerce_int96_timestamp_unit=unit)

    def _int96(self) -> list[str]:
        """Return the columns with INT96, also in a part; names that are there twice are left to the check of names."""
        schema = self._file.schema
        leaves = [schema.column(place) for place in range(len(schema))]
        paths = [leaf.path for leaf in leaves if leaf.physical_type == "INT96"]
        names = [name for name in self.names if self.names.count(name) == 1] if paths else []
        return [name for name in names if any(f"{path}.".startswith(f"{name}.") for path in paths)]


def _footer(source: Any, end: bytes) -> Any:
    """Return the footer of a file, of which the `end` was read: Arrow need not ask an object store for it again."""
    has_whole = _length(end) + _FOOTER_SIZE <= len(end)
    return pq.ParquetFile(pa.BufferReader(end) if has_whole else source).metadata


def _length(end: bytes) -> int:
    """Return the length of the footer that the end of a file tells."""
    return int.from_bytes(end[-_FOOTER_SIZE:-4], "little")


def _is_signed(footer: Any, end: bytes) -> bool:
    """Return whether a footer is signed: it is plain, and columns of the file are encrypted."""
    is_signed: bool = _length(end) == footer.serialized_size + _SIGNATURE
    return is_signed


def _check_counts(footer: Any, size: int, *, has_columns: bool) -> None:
    """Refuse a footer whose numbers of rows contradict each other, or the file's size: memory and ordinals are given out by them.

    With `has_columns` it also looks at what the footer says of columns. Arrow ends the process that asks so for an encrypted one.
    """
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    if short := next((group for group in groups if group.num_columns != footer.num_columns), None):
        msg = f"its footer says {counted(footer.num_columns, 'column')}, and a group has {short.num_columns}"
        raise DamagedFileError(msg)
    places = range(footer.num_columns if has_columns else 0)
    flat = [place for place in places if not footer.schema.column(place).max_repetition_level][:1]
    rows = sum(group.num_rows for group in groups)
    other = next(
        (group for group in groups for place in flat if group.column(place).num_values != group.num_rows), None
    )
    if rows != footer.num_rows or other is not None:
        parts = rows if other is None else sum(group.column(flat[0]).num_values for group in groups)
        msg = f"its footer says {counted(footer.num_rows, 'row')}, and its parts have {parts:,}"
        raise DamagedFileError(msg)
    if has_columns and any(_has_values(group) for group in groups if not group.num_rows):
        msg = "its footer says that a group has no rows, and has the smallest of its values"
        raise DamagedFileError(msg)
    if not 0 <= rows <= size * _ROWS_PER_BYTE:
        msg = f"its footer says {counted(rows, 'row')}, and the file has {counted(size, 'byte')}"
        raise DamagedFileError(msg)


def _has_values(group: Any) -> bool:
    statistics = [group.column(place).statistics for place in range(group.num_columns)]
    return any(column is not None and column.has_min_max for column in statistics)


def _is_finer(micros: pa.ChunkedArray, nanos: pa.ChunkedArray) -> bool:
    """Return whether a time of INT96 is finer than a microsecond. Times outside all years do not count: their rows are refused."""
    for coarse, fine in _times(micros, nanos):
        numbers = _numbers(coarse)
        is_other = pc.not_equal(_numbers(fine), pc.multiply(numbers, _PER_MICROSECOND))
        is_time = pc.and_(pc.greater_equal(numbers, FIRST_TIME * 1_000), pc.less(numbers, (LAST_TIME + 1) * 1_000))
        if pc.any(pc.and_(is_other, is_time)).as_py():
            return True
    return False


def _in_nanoseconds(name: str, micros: pa.ChunkedArray, nanos: pa.ChunkedArray) -> pa.ChunkedArray:
    for coarse, fine in _times(micros, nanos):
        cut = pc.floor_temporal(fine, unit="microsecond").cast(pa.timestamp("us"), safe=False)
        if not pc.all(pc.equal(_numbers(cut), _numbers(coarse))).as_py() and len(coarse) > coarse.null_count:
            msg = f"column {name} has INT96 times that are finer than a microsecond, and others outside the years 1678 to 2261"
            raise DamagedFileError(msg)
    return nanos


def _numbers(times: pa.Array) -> pa.Array:
    return times.cast(pa.int64())


def _times(micros: pa.ChunkedArray, nanos: pa.ChunkedArray) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Yield the times of a column, and of its parts, that the two readings have in different units."""
    coarse, fine = micros.combine_chunks(), nanos.combine_chunks()
    yield from _leaves(coarse, fine)


def _leaves(coarse: pa.Array, fine: pa.Array) -> Iterator[tuple[pa.Array, pa.Array]]:
    if coarse.type == fine.type:
        return
    if pa.types.is_struct(coarse.type):
        for left, right in zip(coarse.flatten(), fine.flatten(), strict=True):
            yield from _leaves(left, right)
    elif pa.types.is_map(coarse.type):
        yield from _leaves(coarse.items, fine.items)
    elif pa.types.is_timestamp(coarse.type):
        yield coarse, fine
    else:
        yield from _leaves(coarse.flatten(), fine.flatten())


def count_rows(file: Storage) -> int:
    """Count the rows of a Parquet file. Reads only the footer. Raises one of `UNREADABLE`."""
    return ParquetColumns(file).rows


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Format of Parquet files. Columns have the file's types; columns that the file lacks are left out."""

    suffixes = (".parquet",)

    def count(self, file: Storage, node: SourceNode) -> int:  # noqa: ARG002 - the footer has the count
        """Count the rows of a file. Raises one of `UNREADABLE`."""
        return count_rows(file)

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the columns of a file. Reads only the footer. Raises one of `UNREADABLE`."""
        return ParquetColumns(file).schema

    def read(
        self,
        file: Storage,
        node: SourceNode,
        columns: Collection[str] = (),
    ) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        return located(ParquetColumns(file).read(columns), node)
