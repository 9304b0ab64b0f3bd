"""CSV files: columns of a record from rows of text fields.

Column names come from the first row of a file, from the job's file, or from the record.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.config import CsvOptions
from headrace.names import counted
from headrace.records.column_types import Column
from headrace.sources.folder.compression import packed_too
from headrace.sources.folder.csv_notation import Notation
from headrace.sources.folder.csv_rows import CsvRow, Dialect, csv_rows
from headrace.sources.folder.encoding import NO_TEXT, decoded, shown_text
from headrace.sources.folder.format import (
    HEAD,
    DamagedFileError,
    FileRows,
    content_of,
    head_of,
    present_columns,
    typed_table,
    wanted_columns,
)
from headrace.storage.storage import Storage

_SHOWN_NAMES: Final = 12
_DELIMITERS: Final = ";,\t|"
"""Usual delimiters, which names of columns rarely have."""


class _Rows(NamedTuple):
    """Rows of a file below its header. The first fields of a row have these names; a row has `width` fields."""

    names: Sequence[str]
    rows: Sequence[CsvRow]
    width: int


@dataclass(frozen=True, slots=True)
class CsvFiles:
    """Format of CSV files. A list, map or struct is JSON text in its field."""

    options: CsvOptions
    given: Collection[str] = ()
    """Columns that files without a header lack: the names of their folders have them."""

    suffixes = packed_too(".csv", ".tsv")

    def count(self, file: Storage, node: SourceNode) -> int:
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(self._rows(file, node).rows)

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the columns of a file, without types; None if only the record names them. Raises one of `UNREADABLE`.

        Also raises `DamagedFileError` for a file without its header, and for a first row that has not the columns of the job's file.
        """
        if not self.options.header and not self.options.columns:
            return None
        head = head_of(file)
        is_whole = len(head) < HEAD
        row = self._first_row(head, is_whole=is_whole)
        if row is None and is_whole and self.options.header:
            raise self._headless(is_blank=not head)
        if row is None:
            return None
        if self.options.header:
            names = self._header(row)
        else:
            names = [*self.options.columns]
            if row.problem is None and len(row.fields) != len(names):
                msg = f"its first row {self._other_width(row, len(names))}"
                raise DamagedFileError(msg)
        return pa.schema([pa.field(name, pa.null()) for name in names])

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        names, rows, width = self._rows(file, node)
        problems = {
            position: f"line {row.line} {why}"
            for position, row in enumerate(rows)
            if (why := self._problem(row, width)) is not None
        }
        wanted, notation = present_columns(node, names, columns), Notation(self.options)
        values = {
            column.stored: _values(names.index(column.stored), rows, column, notation, problems) for column in wanted
        }
        table = typed_table(values, node, wanted, len(rows), problems)
        return FileRows(
            table,
            problems,
            lambda number: shown_text(rows[number].text, self.options.encoding),
            header=self.about_header(names),
        )

    def about_header(self, names: Sequence[str]) -> str:
        """Return what an error about a missing column says of the columns that a file has, which follows its reason."""
        if not self.options.header:
            return f" (csv.columns has: {', '.join(self.options.columns)})" if self.options.columns else ""
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) + (", ..." if len(names) > _SHOWN_NAMES else "")
        others = [
            other for other in _DELIMITERS if other != self.options.delimiter and any(other in name for name in names)
        ]
        doubt = (
            f"; csv.delimiter is {self.options.delimiter!r}, and {' or '.join(map(repr, others))} may be the one to write there"
            if others
            else ""
        )
        return f" (its header has: {shown}{doubt})"

    def _rows(self, file: Storage, node: SourceNode) -> _Rows:
        text = decoded(content_of(file), self.options.encoding)
        rows = list(self._parsed(text))
        if self.options.header and not rows:
            raise self._headless(is_blank=not text)
        if not self.options.header:
            fields = [column.stored for column in wanted_columns(node) if column.stored not in self.given]
            names = self.options.columns or fields
            return _Rows(names, rows, len(names))
        return _Rows(self._header(rows[0]), rows[1:], len(rows[0].fields))

    def _first_row(self, head: bytes, *, is_whole: bool) -> CsvRow | None:
        """Return the first row of a file; None if there is none, or if it is not whole in the head."""
        text = decoded(head, self.options.encoding, is_whole=is_whole)
        try:
            rows = self._parsed(text)
            row = next(rows, None)
            return row if is_whole or next(rows, None) is not None else None
        except DamagedFileError:
            if is_whole:
                raise
            return None

    def _parsed(self, text: str) -> Iterator[CsvRow]:
        options = self.options
        nulls = frozenset(options.null_values)
        dialect = Dialect(options.delimiter, options.quote, options.escape, nulls, options.comment, options.skip_lines)
        return csv_rows(text, dialect)

    def _header(self, row: CsvRow) -> list[str]:
        """Return the names in a header. Raises `DamagedFileError` for one that cannot be read."""
        names = self._names(row)
        problem = self._problem_of_header(row, names)
        if problem is not None:
            msg = f"its header {problem}"
            raise DamagedFileError(msg)
        return names

    @staticmethod
    def _names(header: CsvRow) -> list[str]:
        """Return the names in a header, without empty ones at its end, as spreadsheets write them.

        The first may be empty: R and pandas write the numbers of rows below it.
        """
        names = [name or "" for name in header.fields]
        while names and not names[-1]:
            names.pop()
        return names

    def _headless(self, *, is_blank: bool) -> DamagedFileError:
        """Return the error for a file without its header."""
        lines = 0 if is_blank else self.options.skip_lines
        behind = f" behind its first {counted(lines, 'line')}" if lines else ""
        return DamagedFileError(
            f"it is empty{behind}, and should have a header even without rows: an upload may have failed, or csv.header is to be false"
        )

    def _problem_of_header(self, row: CsvRow, names: Sequence[str]) -> str | None:
        if NO_TEXT.search(row.text):
            return f"is not {self.options.encoding}"
        if row.problem is not None:
            return row.problem
        if not all(names[1:]):
            return "has a column without a name"
        twice = sorted({name for name in names if names.count(name) > 1})
        return f"has more than one column {', '.join(twice)}" if twice else None

    def _problem(self, row: CsvRow, width: int) -> str | None:
        if NO_TEXT.search(row.text):
            return f"is not {self.options.encoding}"
        if row.problem is not None:
            return row.problem
        return self._other_width(row, width) if len(row.fields) != width else None

    def _other_width(self, row: CsvRow, width: int) -> str:
        named = "csv.columns has" if self.options.columns else "the record has"
        return f"has {counted(len(row.fields), 'field')}, {'the header has' if self.options.header else named} {width}"


def _values(
    place: int, rows: Sequence[CsvRow], column: Column, notation: Notation, problems: Mapping[int, str]
) -> list[Any]:
    texts = [None if position in problems else row.fields[place] for position, row in enumerate(rows)]
    read = notation.reader(column.kind)
    return texts if read is None else [None if text is None else read(text) for text in texts]
