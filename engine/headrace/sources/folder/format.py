"""File formats of a folder: their interface, and the rows that reading a file returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SourceNode
from headrace.errors import HeadraceError, SourceError, StorageError
from headrace.records.column_kinds.texts import Text
from headrace.records.column_types import Column, columns_of, near_misses
from headrace.records.foreign_values import raw_row
from headrace.records.plain_values import to_column, value_at
from headrace.records.problems import UnfitValue
from headrace.sources.folder.compression import UNPACKING_ERRORS, packer_of, unpacked_parts
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
_PACKED_HEAD: Final = 1 << 20
"""Number of packed bytes that give at least so many: a block of bzip2, or of zstd, is smaller."""


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

    def is_row(self, table: pa.Table, position: int, raw: str) -> bool:
        """Return whether a row is the one of which the quarantine has this text."""
        ...


class RowsBefore(NamedTuple):
    """Facts of the rows that a Spark transform took: their file, and the numbers of refused rows and of doubtful times among them."""

    file: str
    refused: int
    doubtful: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """All rows of a file, or a part of them, also bad ones, in the file's order.

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
    header: str = ""
    """What an error about a missing column says of those that the file has; empty where the columns of `table` are all of them."""

    first: int = 0
    """Number in the file of the first row: these are a part of its rows, unless `of` is None."""
    of: int | None = None
    """Number of rows of the file, of which these are a part; None: these are all of them."""

    def raw(self, number: int) -> str:
        """Return a row as the quarantine stores it: its text, or a JSON object of its columns."""
        return raw_row(self.table, number) if self.texts is None else self.texts(number)

    def has(self, number: int, raw: str | None) -> bool:
        """Return whether a row has this number, and is the one of which the quarantine has this text."""
        if number >= self.table.num_rows:
            return False
        if self.decoder is None or raw is None:
            return self.raw(number) == raw
        return self.decoder.is_row(self.table, number, raw)


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
    """Return the columns that a source reads: its record's fields and its row kind, or those of them with a name in `columns`."""
    wanted = list(columns_of(node.record, node.names))
    if node.row_kind is not None and node.row_kind not in {
        name for column in wanted for name in (column.name, column.stored)
    }:
        wanted.append(Column(node.row_kind, Text(), nullable=True))
    return [column for column in wanted if not columns or column.stored in columns]


def present_columns(node: SourceNode, names: Sequence[str], columns: Collection[str] = ()) -> list[Column]:
    """Return the wanted columns that a file with these names has.

    Raises `DamagedFileError` for one that the file lacks, and has under a name that is almost the same.
    """
    wanted = wanted_columns(node, columns)
    refuse_near_names([column.stored for column in wanted], names)
    return [column for column in wanted if column.stored in names]


def refuse_near_names(wanted: Iterable[str], names: Sequence[str]) -> None:
    """Raise `DamagedFileError` for a wanted name that a file lacks, and has in almost the same form."""
    for name, why in near_misses(wanted, names):
        msg = f"{name} {why}"
        raise DamagedFileError(msg)


def located(table: pa.Table, node: SourceNode, nulls: Collection[str] = ()) -> FileRows:
    """Return the rows of a table with one more column for each field that is named by a path, and not by a column: its values within structs.

    A path that the table lacks is left out, or null if it is one of `nulls`. Raises `DamagedFileError` for one through a value that is no struct.
    """
    whole = table
    for column in wanted_columns(node):
        if column.path and column.stored not in table.schema.names:
            values = _within_structs(table, column.path)
            if values is None and column.stored in nulls:
                values = pa.nulls(table.num_rows)
            whole = whole if values is None else whole.append_column(column.stored, values)
    return FileRows(table) if whole is table else FileRows(whole, texts=partial(raw_row, table))


def _within_structs(table: pa.Table, path: Sequence[str]) -> pa.ChunkedArray | None:
    """Return the values at a path; None where the table lacks it."""
    root, *names = path
    values = table[root] if table.schema.names.count(root) == 1 else None
    for at, name in enumerate(names, 1):
        if values is None or pa.types.is_null(values.type):
            return values
        if not pa.types.is_struct(values.type):
            msg = f"column {'.'.join(path[:at])} is {values.type}, which is no struct with {name!r}"
            raise DamagedFileError(msg)
        places = values.type.get_all_field_indices(name)
        if len(places) > 1:
            msg = f"more than one field {'.'.join(path[: at + 1])}"
            raise DamagedFileError(msg)
        values = pc.struct_field(values, places) if places else None
    return values


def values_within(rows: Sequence[Any], path: Sequence[str], problems: dict[int, str]) -> list[Any]:
    """Return the values at a path below plain rows; add the problems of rows where the path leads elsewhere, which have None."""
    values = []
    for position, row in enumerate(rows):
        try:
            values.append(value_at(row, path))
        except UnfitValue as error:
            values.append(None)
            problems.setdefault(position, f"{error.problem.path} {error.problem.why}")
    return values


def typed_table(
    values: Mapping[str, Sequence[Any]],
    node: SourceNode,
    columns: Sequence[Column],
    rows: int,
    problems: dict[int, str],
    *,
    of_file: bool = True,
) -> pa.Table:
    """Convert plain values by stored name to a table; add the first problem of each row to `problems`, unless it has one already.

    Raises `DamagedFileError` for rows `of_file` with a value for which a file is refused as a whole.
    """
    fields = {*node.record.__struct_fields__}
    arrays = {}
    for column in columns:
        if column.stored in values:
            record = node.record if column.name in fields else None
            arrays[column.stored], column_problems = to_column(values[column.stored], column, record)
            for position, problem in column_problems.items():
                why = f"{column.stored}{problem.path} {problem.why}"
                if of_file and problem.of_file:
                    msg = f"row {position}: {why}"
                    raise DamagedFileError(msg)
                problems.setdefault(position, why)
    if not arrays:  # an Arrow table without a column has no rows
        return pa.table({"": pa.nulls(rows)})
    return pa.table(arrays)


def head_of(file: Storage) -> bytes:
    """Return the first bytes of a file, unpacked; all of them where they are fewer than `HEAD`.

    Raises `OSError` when it cannot be read, and `DamagedFileError` when it cannot be unpacked.
    """
    packer = packer_of(file.uri)
    with file.open() as stream:
        content: bytes = stream.read(HEAD if packer is None else _PACKED_HEAD)
    return content if packer is None else _unpacked(content, packer, HEAD)


def content_of(file: Storage) -> bytes:
    """Return the bytes of a file, unpacked.

    Raises `OSError` when it cannot be read, and `DamagedFileError` when it cannot be unpacked.
    """
    with file.open() as stream:
        content: bytes = stream.read()
    packer = packer_of(file.uri)
    return content if packer is None else _unpacked(content, packer)


def _unpacked(content: bytes, packer: str, most: int | None = None) -> bytes:
    """Return the unpacked bytes, at `most` so many."""
    parts, size = [], 0
    try:
        for part in unpacked_parts(content, packer):
            parts.append(part)
            size += len(part)
            if most is not None and size >= most:
                break
    except UNPACKING_ERRORS as error:
        msg = f"it cannot be unpacked by {packer}: {error}"
        raise DamagedFileError(msg) from error
    return b"".join(parts)[:most]


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
