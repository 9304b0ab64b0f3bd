"""Values in the names of a source's folders, as Hive and Spark write them: `day=2026-03-02/country=DE/part-00000.parquet`.

Such a folder has one value of a column for all rows in it, and the files lack the column. A value is text, so it is read as a field of CSV
is. Special characters are escaped: `at=10%3A30`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SourceNode
from headrace.config import FileOptions
from headrace.records.column_types import Column, near_misses
from headrace.records.defaults import defaults_of
from headrace.records.foreign_values import raw_row, shown_value
from headrace.records.plain_values import to_column
from headrace.records.source_values import fitting
from headrace.sources.folder.format import DamagedFileError, FileRows, located, wanted_columns
from headrace.sources.folder.formats import format_of, read_file
from headrace.sources.folder.parquet import ParquetColumns, ParquetFiles
from headrace.storage.storage import Storage

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile("(?:%[0-9A-Fa-f]{2})+")


class FolderValue(NamedTuple):
    """Folder with a value of a column, and the value's text; None for a null."""

    folder: str
    text: str | None


def folder_values(name: str) -> dict[str, FolderValue]:
    """Return the values in the folders of a file's name, by key. Raises `DamagedFileError` for a key that is there twice."""
    values: dict[str, FolderValue] = {}
    for folder in name.split("/")[:-1]:
        key, sign, value = folder.partition("=")
        if key and sign:
            if (column := _plain(key, folder)) in values:
                msg = f"its folders {values[column].folder!r} and {folder!r} both have a value of {column}"
                raise DamagedFileError(msg)
            values[column] = FolderValue(folder, None if value == _NULL else _plain(value, folder))
    return values


def _plain(text: str, folder: str) -> str:
    try:
        return _ESCAPED.sub(lambda match: unquote(match[0], errors="strict"), text)
    except UnicodeDecodeError as error:
        msg = f"the name of its folder {folder!r} has escaped bytes that are not UTF-8"
        raise DamagedFileError(msg) from error


@dataclass(frozen=True, slots=True)
class _Given:
    """Value that a folder gives all rows in it, as plain value and as a column of one row; `problem` is why it does not fit."""

    column: Column
    folder: str
    plain: Any
    array: pa.Array
    problem: str | None

    @property
    def key(self) -> str:
        """Return the name of the column in files."""
        return self.column.stored


def _given(file: str, node: SourceNode) -> Iterator[_Given]:
    """Yield the values of a file's folders that the source has columns for.

    Raises `DamagedFileError` for a key that is there twice, and for one that is almost a column.
    """
    values = folder_values(file)
    columns = wanted_columns(node) if values else []
    for name, why in near_misses([column.stored for column in columns], values):
        msg = f"the names of its folders: {name} {why}"
        raise DamagedFileError(msg)
    for column in columns:
        if column.stored in values and column.parts:
            msg = f"the name of its folder {values[column.stored].folder!r} has a value of {column.stored}, which is a list, map or struct"
            raise DamagedFileError(msg)
        if column.stored in values:
            yield _read(column, values[column.stored], node)


def _read(column: Column, value: FolderValue, node: SourceNode) -> _Given:
    parse = column.kind.parse
    plain = value.text if parse is None or value.text is None else parse(value.text)
    array, problems = to_column([plain], column, None)
    why = next((f"{problem.path} {problem.why}" for problem in problems.values()), None)
    if plain is None and not column.nullable and not _has_default(column, node):
        why = " is null"
    problem = None if why is None else f"{column.stored}{why} (the name of its folder: {value.folder!r})"
    return _Given(column, value.folder, None if problem else plain, array, problem)


def _has_default(column: Column, node: SourceNode) -> bool:
    return defaults_of(node.record).get(column.name) is not None


def read_in_folder(file: Storage, name: str, node: SourceNode, options: FileOptions) -> FileRows:
    """Read all rows of a file, with the values of its folders; `name` is its path from the source's folder.

    Rows whose own value is another one are refused. Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    given = [*_given(name, node)]
    rows = read_file(file, node, options, given={value.key: value.plain for value in given})
    for value in given:
        rows = _with_value(rows, value)
    return rows


def read_parts_in_folder(
    file: Storage, name: str, node: SourceNode, options: FileOptions, limit: int
) -> Iterator[FileRows]:
    """Yield the rows of a file in parts of about `limit` bytes, where its format allows it, and else all at once.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    has_parts = isinstance(format_of(options), ParquetFiles) and not [*_given(name, node)]
    columns = ParquetColumns(file) if has_parts else None
    if columns is None or not columns.can_be_read_in_parts():
        yield read_in_folder(file, name, node, options)
        return
    first = 0
    for table in columns.parts(limit):
        yield replace(located(table, node), first=first, of=columns.rows)
        first += table.num_rows


def _with_value(rows: FileRows, value: _Given) -> FileRows:
    count, names = rows.table.num_rows, rows.table.schema.names
    if value.problem is not None:
        problems = {**rows.problems, **dict.fromkeys(range(count), value.problem)}
        table = rows.table if value.key in names else _with_column(rows.table, value, pa.nulls(count, value.array.type))
        return replace(rows, table=table, problems=problems, is_refused_by_folder=True)
    if value.key not in names:
        return replace(rows, table=_with_column(rows.table, value, pa.repeat(value.array[0], count)))
    if names.count(value.key) > 1 or not _can_be(rows.table[value.key].type, value.column):
        return rows  # refused by its columns
    texts = rows.texts or partial(raw_row, rows.table)
    others = _differences(rows.table[value.key], value)
    table = rows.table.set_column(names.index(value.key), value.key, pa.repeat(value.array[0], count))
    return replace(rows, table=table, problems={**others, **rows.problems}, texts=texts)


def _can_be(kind: pa.DataType, column: Column) -> bool:
    return pa.types.is_null(kind) or column.kind.takes(kind)


def _with_column(table: pa.Table, value: _Given, values: pa.Array) -> pa.Table:
    return table.append_column(value.key, values)


def _differences(own: pa.ChunkedArray, value: _Given) -> Mapping[int, str]:
    """Return the problems of the rows with a value of their own that is not that of the folder. Other engines drop it without a word."""
    fitted, problems = fitting(own, value.column)
    given = fitting(pa.chunked_array([value.array]), value.column)[0][0]
    is_other = pc.not_equal(fitted, given) if given.is_valid else pc.is_valid(fitted)
    whole = own.combine_chunks()
    positions = {*pc.indices_nonzero(pc.fill_null(is_other, False)).to_pylist(), *problems}
    positions &= {*pc.indices_nonzero(whole.is_valid()).to_pylist()}
    return {
        position: f"{value.key} is {shown_value(whole[position])}, and the name of its folder is {value.folder!r}"
        for position in positions
    }


class FolderProblem(NamedTuple):
    """Folder whose value does not fit the source's column, and the reason, as a sentence."""

    why: str
    of_file: bool


def folder_problems(names: Iterable[str], node: SourceNode) -> Iterator[FolderProblem]:
    """Yield each problem of the folders of files once."""
    known: set[FolderProblem] = set()
    for folder in dict.fromkeys(name.rpartition("/")[0] for name in names):
        for problem in _problems_of(f"{folder}/", node):
            if problem not in known:
                known.add(problem)
                yield problem


def _problems_of(name: str, node: SourceNode) -> Iterator[FolderProblem]:
    try:
        given = [*_given(name, node)]
    except DamagedFileError as error:
        yield FolderProblem(f"{name.rstrip('/')}: {error}", of_file=True)
        return
    yield from (FolderProblem(value.problem, of_file=False) for value in given if value.problem is not None)
