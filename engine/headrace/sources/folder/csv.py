"""CSV files: the parser of rows of text fields, and the format of the files.

The parser (RFC 4180) knows neither files nor types. A field that begins with a quote ends at the next quote that is not
doubled; any other field is taken literally. If the quotes of a row are wrong, the row is one line, and parsing goes on
at the next line. So a missing closing quote damages one row, not the rows after it.

Column names come from the first row of a file, or from the record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.config import CsvOptions
from headrace.names import counted
from headrace.records.column_types import Column
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

QUOTE: Final = '"'


class CsvRow(NamedTuple):
    """Row of a file: its line number (from 1), its text, and its fields; or the `problem` for which it has no fields."""

    line: int
    text: str
    fields: Sequence[str | None]
    problem: str | None = None


_BARE_RETURN: Final = "has a carriage return outside quotes, and other lines end with a line feed"


def csv_rows(text: str, delimiter: str, null_values: frozenset[str], escape: str | None = None) -> Iterator[CsvRow]:
    r"""Yield the rows of a text; empty lines are no rows. A field without quotes is null if it is one of `null_values`.

    In quotes, the character behind an `escape` is taken as it is.

    Lines end with `\n` or `\r\n`; in a text without `\n` they end with `\r`.
    """
    newline = "\n" if "\n" in text else "\r"
    parser = _Parser(text, delimiter, null_values, newline, None if escape is None else _quotes_and(escape))
    place, line = 0, 1
    while place < len(text):
        end = parser.line_end(place)
        row_text = text[place:end]
        if QUOTE in row_text:
            row, end = parser.quoted_row(place, line)
            yield row
        elif row_text := row_text.rstrip("\r"):
            yield parser.plain_row(row_text, line)
        line += text.count(parser.newline, place, end) + 1
        place = end + 1


def _quotes_and(escape: str) -> re.Pattern[str]:
    """Return the pattern of what may mean a quote in a field: an escaped character, a doubled quote, or one quote."""
    return re.compile(f'{re.escape(escape)}(.)|""|"', re.DOTALL)


class _Parser(NamedTuple):
    text: str
    delimiter: str
    null_values: frozenset[str]
    newline: str
    escapes: re.Pattern[str] | None
    """Pattern of `_quotes_and`; None without an escape."""

    def line_end(self, place: int) -> int:
        end = self.text.find(self.newline, place)
        return len(self.text) if end < 0 else end

    def plain_row(self, row_text: str, line: int) -> CsvRow:
        if "\r" in row_text:
            return CsvRow(line, row_text, (), _BARE_RETURN)
        return CsvRow(line, row_text, [self._plain(part) for part in row_text.split(self.delimiter)])

    def quoted_row(self, start: int, line: int) -> tuple[CsvRow, int]:
        """Return the row that begins at `start`, and the place of its end."""
        fields: list[str | None] = []
        place = start
        while True:
            if self.text.startswith(QUOTE, place):
                closing = self._closing_quote(place + 1)
                if closing < 0:
                    return self._bad_row(start, line, "has a quote that is not closed")
                fields.append(self._unquoted(self.text[place + 1 : closing]))
                place = closing + 1
                if not self.text.startswith(self.delimiter, place):
                    break
            else:
                end = self.line_end(place)
                comma = self.text.find(self.delimiter, place, end)
                field = self.text[place:end].rstrip("\r") if comma < 0 else self.text[place:comma]
                if "\r" in field:
                    return self._bad_row(start, line, _BARE_RETURN)
                fields.append(self._plain(field))
                place = end if comma < 0 else comma
                if comma < 0:
                    break
            place += 1
        end = self.line_end(place)
        if self.text[place:end].strip("\r"):
            return self._bad_row(start, line, "has text after a closing quote")
        return CsvRow(line, self.text[start:end].rstrip("\r"), fields), end

    def _plain(self, field: str) -> str | None:
        return None if field in self.null_values else field

    def _unquoted(self, field: str) -> str:
        """Return the value of a field from its text between quotes."""
        if self.escapes is None:
            return field.replace(QUOTE * 2, QUOTE)
        return self.escapes.sub(lambda match: match[1] or QUOTE, field)

    def _closing_quote(self, place: int) -> int:
        """Return the place of the quote that closes the field whose text begins at `place`; -1 without one."""
        if self.escapes is not None:
            parts = self.escapes.finditer(self.text, place)
            return next((part.start() for part in parts if part[0] == QUOTE), -1)
        while (place := self.text.find(QUOTE, place)) >= 0:
            if not self.text.startswith(QUOTE, place + 1):
                return place
            place += 2
        return -1

    def _bad_row(self, start: int, line: int, why: str) -> tuple[CsvRow, int]:
        end = self.line_end(start)
        return CsvRow(line, self.text[start:end].rstrip("\r"), (), why), end


_ESCAPED: Final = re.compile("[\udc80-\udcff]")
"""Characters that decoding puts in place of bytes that are not text."""


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

    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

    def count(self, file: Storage, node: SourceNode) -> int:
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(self._rows(file, node).rows)

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the columns of a file's header, without types; None if it has none. Raises one of `UNREADABLE`."""
        if not self.options.header:
            return None
        head = head_of(file)
        row = next(self._parsed(head), None)
        if row is None or (len(head) >= HEAD and head.count(b"\n") == 0):
            return None
        return pa.schema([pa.field(name, pa.null()) for name in self._header(row)])

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        names, rows, width = self._rows(file, node)
        problems = {
            position: f"line {row.line} {why}"
            for position, row in enumerate(rows)
            if (why := self._problem(row, width)) is not None
        }
        wanted = present_columns(node, names, columns)
        values = {column.name: self._values(names.index(column.name), rows, column, problems) for column in wanted}
        table = typed_table(values, node, wanted, len(rows), problems)
        return FileRows(table, problems, lambda number: self._raw(rows[number]))

    def _rows(self, file: Storage, node: SourceNode) -> _Rows:
        rows = list(self._parsed(content_of(file)))
        if not self.options.header or not rows:
            names = [column.name for column in wanted_columns(node) if column.name not in self.given]
            return _Rows(names, rows, len(names))
        return _Rows(self._header(rows[0]), rows[1:], len(rows[0].fields))

    def _parsed(self, content: bytes) -> Iterator[CsvRow]:
        text = content.decode(self.options.encoding, errors="surrogateescape").removeprefix("\ufeff")
        return csv_rows(text, self.options.delimiter, frozenset(self.options.null_values), self.options.escape)

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
        """Return the names in a header, without empty ones at its end, as spreadsheets write them."""
        names = [name or "" for name in header.fields]
        while names and not names[-1]:
            names.pop()
        return names

    def _problem_of_header(self, row: CsvRow, names: Sequence[str]) -> str | None:
        if _ESCAPED.search(row.text):
            return f"is not {self.options.encoding}"
        if row.problem is not None:
            return row.problem
        if not all(names):
            return "has a column without a name"
        twice = sorted({name for name in names if names.count(name) > 1})
        return f"has more than one column {', '.join(twice)}" if twice else None

    def _problem(self, row: CsvRow, width: int) -> str | None:
        if _ESCAPED.search(row.text):
            return f"is not {self.options.encoding}"
        if row.problem is not None:
            return row.problem
        if len(row.fields) != width:
            what = "the header has" if self.options.header else "the record has"
            return f"has {counted(len(row.fields), 'field')}, {what} {width}"
        return None

    def _values(self, place: int, rows: Sequence[CsvRow], column: Column, problems: Mapping[int, str]) -> list[Any]:
        texts = [None if position in problems else row.fields[place] for position, row in enumerate(rows)]
        parse = column.kind.parse
        return texts if parse is None else [None if text is None else parse(text) for text in texts]

    def _raw(self, row: CsvRow) -> str:
        if _ESCAPED.search(row.text) is None:
            return row.text
        content = row.text.encode(self.options.encoding, "surrogateescape")
        return content.decode(self.options.encoding, "backslashreplace")
