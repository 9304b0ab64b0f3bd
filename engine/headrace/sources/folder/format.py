"""File formats of a folder: their interface, and the rows that reading a file returns."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.errors import HeadraceError, SourceError, StorageError
from headrace.records.column_kinds import Text
from headrace.records.column_types import Column, columns_of, near_misses
from headrace.records.foreign_values import raw_row
from headrace.records.plain_values import to_column
from headrace.storage.refusals import storage_advice
from headrace.storage.storage import Storage


class DamagedFileError(Exception):
    """File that does not have its format, or is cut off."""


_STORE_ERROR: Final = "AWS Error"
"""What pyarrow says in errors of an object store, which have no number."""
UNREADABLE: Final = (OSError, pa.ArrowException, UnicodeDecodeError, DamagedFileError)
"""Errors of reading a file that is missing, damaged, not of its format, or has a column name that is not UTF-8."""


HEAD: Final = 1 << 16
"""Number of bytes in which a header is looked for."""
_GZIP: Final = 16
"""What zlib adds to the size of its window for the format of gzip."""


class DecodedRows(NamedTuple):
    """Rows with the columns of a record, the reasons of those that do not fit, and those of them that are skipped without a word."""

    table: pa.Table
    problems: Mapping[int, str]
    skipped: frozenset[int]


class RowDecoder(Protocol):
    """Decoder of rows that hold their record in a form of their own. Only rows that are taken in are decoded."""

    def read(self, table: pa.Table) -> DecodedRows:
        """Return the rows of a table in its order."""
        ...

    def places(self, table: pa.Table, positions: Sequence[int]) -> Sequence[str]:
        """Return where rows of a table are in their source, for messages."""
        ...


class RowsBefore(NamedTuple):
    """Facts of the rows that a Spark transform took: their file, and the numbers of refused rows and of doubtful times among them."""

    file: str
    refused: int
    doubtful: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """All rows of a file, also bad ones, in the file's order.

    `problems` has the reasons of bad rows by row number; a bad row is null in each column that cannot be read. `texts` returns
    a row's text in the file; None for formats without text, whose rows are columns only.
    """

    table: pa.Table
    problems: Mapping[int, str] = field(default_factory=dict)
    texts: Callable[[int], str] | None = field(default=None, repr=False)
    decoder: RowDecoder | None = None
    """Decoder of the rows, where the columns of `table` are not those of the record."""
    before: RowsBefore | None = None
    """Facts of the rows that a Spark transform made these rows of; None: no transform did."""
    is_refused_by_folder: bool = False
    """True: all rows are refused for a value in the name of their folder. That brought them together, so the file is not wrong as a whole."""

    def raw(self, number: int) -> str:
        """Return a row as the quarantine stores it: its text, or a JSON object of its columns."""
        return raw_row(self.table, number) if self.texts is None else self.texts(number)


class FileFormat(Protocol):
    """Format of files."""

    @property
    def suffixes(self) -> Sequence[str]:
        """Endings of file names. Other files in the folder are ignored."""
        ...

    def count(self, file: Storage, node: SourceNode) -> int:
        """Count the rows of a file, also bad ones. Raises one of `UNREADABLE`."""
        ...

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the columns of a file, from its header or footer alone; of type null where it has no types. None if it tells none.

        Raises one of `UNREADABLE`.
        """
        ...

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        ...


def wanted_columns(node: SourceNode, columns: Collection[str] = ()) -> list[Column]:
    """Return the columns that a source reads: its record's fields and its row kind, or those of them in `columns`."""
    wanted = list(columns_of(node.record))
    if node.row_kind is not None and node.row_kind not in {column.name for column in wanted}:
        wanted.append(Column(node.row_kind, Text(), nullable=True))
    return [column for column in wanted if not columns or column.name in columns]


def present_columns(node: SourceNode, names: Sequence[str], columns: Collection[str] = ()) -> list[Column]:
    """Return the wanted columns that a file with these names has.

    Raises `DamagedFileError` for one that the file lacks, and has under a name that is almost the same.
    """
    wanted = wanted_columns(node, columns)
    for name, why in near_misses([column.name for column in wanted], names):
        msg = f"{name} {why}"
        raise DamagedFileError(msg)
    return [column for column in wanted if column.name in names]


def typed_table(
    values: Mapping[str, Sequence[Any]],
    node: SourceNode,
    columns: Sequence[Column],
    rows: int,
    problems: dict[int, str],
    *,
    of_file: bool = True,
) -> pa.Table:
    """Convert plain values by column to a table; add the first problem of each row to `problems`, unless it has one already.

    Raises `DamagedFileError` for rows `of_file` with a value for which a file is refused as a whole.
    """
    fields = {column.name for column in columns_of(node.record)}
    arrays = {}
    for column in columns:
        if column.name in values:
            record = node.record if column.name in fields else None
            arrays[column.name], column_problems = to_column(values[column.name], column, record)
            for position, problem in column_problems.items():
                why = f"{column.name}{problem.path} {problem.why}"
                if of_file and problem.of_file:
                    msg = f"row {position}: {why}"
                    raise DamagedFileError(msg)
                problems.setdefault(position, why)
    if not arrays:  # an Arrow table without a column has no rows
        return pa.table({"": pa.nulls(rows)})
    return pa.table(arrays)


def head_of(file: Storage) -> bytes:
    """Return the first bytes of a file, decompressed if its name ends in `.gz`.

    Raises `OSError` when it cannot be read, and `DamagedFileError` when it cannot be decompressed.
    """
    with file.open() as stream:
        head: bytes = stream.read(HEAD)
    if not file.uri.lower().endswith(".gz"):
        return head
    try:
        return zlib.decompressobj(zlib.MAX_WBITS | _GZIP).decompress(head, HEAD)
    except zlib.error as error:
        msg = f"it cannot be unpacked by gzip: {error}"
        raise DamagedFileError(msg) from error


def content_of(file: Storage) -> bytes:
    """Return the bytes of a file, decompressed if its name ends in `.gz`.

    Raises `OSError` when it cannot be read, and `DamagedFileError` when it cannot be decompressed.
    """
    with file.open() as stream:
        content: bytes = stream.read()
    if not file.uri.lower().endswith(".gz"):
        return content
    try:
        return gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        msg = f"it cannot be unpacked by gzip: {error}"
        raise DamagedFileError(msg) from error


def is_damage(error: Exception) -> bool:
    """Return whether an error of `UNREADABLE` tells of a file's content.

    Else the disk or the object store refused to read it, now: its rows may be good, so no file is set aside for that.
    """
    is_refused = isinstance(error, OSError) and (error.errno is not None or _STORE_ERROR in str(error))
    return not is_refused


def is_tried_again(error: Exception) -> bool:
    """Return whether the disk or the object store refused to read a file that is there: then a later run may read it."""
    return not is_damage(error) and not isinstance(error, FileNotFoundError)


def unreadable(source: str, path: str, error: Exception) -> HeadraceError:
    """Return the error for a file that does not have its format, is cut off, or cannot be opened.

    It is a `StorageError`, which Airflow tries again, where the disk or the object store refused to read a file that is there.
    """
    if is_tried_again(error):
        return StorageError(
            f"source '{source}': cannot read {path}: {error}. Nothing was taken in; {storage_advice(error)}."
        )
    return SourceError(
        f"{why_unreadable(source, path, error)}. Nothing was taken in. Repair or remove the file, or set "
        f"'sources.{source}.on_bad_file: quarantine' to go on without it."
    )


def why_unreadable(source: str, path: str, error: Exception) -> str:
    """Return why a file cannot be read, without a full stop."""
    what = (
        f"text in it, or the name of a column, is not UTF-8 ({error})"
        if isinstance(error, UnicodeDecodeError)
        else str(error).rstrip(".")
    )
    return f"source '{source}': cannot read {path}: {what}"
