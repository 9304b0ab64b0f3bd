"""Parser of CSV: a text becomes rows of text fields. It knows neither files nor types.

A field that begins with a quote ends at the next quote that is not doubled (RFC 4180); any other field is taken literally. If
the quotes of a row are wrong, the row is one line, and parsing goes on at the next line. So a missing closing quote damages one
row, not the rows after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from headrace.names import counted
from headrace.sources.folder.format import DamagedFileError


class Dialect(NamedTuple):
    """Characters of a kind of CSV, and what stands before its first row."""

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    """Character behind which, in quotes, any character is taken as it is."""
    null_values: frozenset[str] = frozenset({""})
    """Texts that are null where they have no quotes."""
    comment: str | None = None
    """First character of lines that are passed over."""
    skip_lines: int = 0
    """Lines before the first row."""


class CsvRow(NamedTuple):
    """Row of a file: its line number (from 1), its text, and its fields; or the `problem` for which it has no fields."""

    line: int
    text: str
    fields: Sequence[str | None]
    problem: str | None = None


_BARE_RETURN: Final = "has a carriage return outside quotes, and other lines end with a line feed"


def csv_rows(text: str, dialect: Dialect) -> Iterator[CsvRow]:
    r"""Yield the rows of a text; empty lines and comments are no rows.

    Lines end with `\n` or `\r\n`; in a text without `\n` they end with `\r`. Raises `DamagedFileError` for a text with fewer
    lines than stand before its first row.
    """
    parser = _Parser(text, dialect, "\n" if "\n" in text else "\r")
    quote, comment = dialect.quote, dialect.comment
    place, line = parser.behind_preamble(), 1 + dialect.skip_lines
    while place < len(text):
        end = parser.line_end(place)
        row_text = text[place:end]
        if comment is not None and row_text.startswith(comment):
            pass
        elif quote is not None and quote in row_text:
            row, end = parser.quoted_row(place, line)
            yield row
        elif row_text := row_text.rstrip("\r"):
            yield parser.plain_row(row_text, line)
        line += text.count(parser.newline, place, end) + 1
        place = end + 1


class _Parser:
    def __init__(self, text: str, dialect: Dialect, newline: str) -> None:
        self.text, self.newline = text, newline
        self._delimiter, self._nulls, self._skipped = dialect.delimiter, dialect.null_values, dialect.skip_lines
        self._quote = dialect.quote or ""
        self._escapes = None if dialect.escape is None else _quotes_and(dialect.escape, self._quote)

    def behind_preamble(self) -> int:
        """Return the place of the first row."""
        place = 0
        for line in range(self._skipped if self.text else 0):
            if place >= len(self.text):
                msg = f"it has {counted(line, 'line')}, and {self._skipped} should stand before its first row"
                raise DamagedFileError(msg)
            place = self.line_end(place) + 1
        return place

    def line_end(self, place: int) -> int:
        end = self.text.find(self.newline, place)
        return len(self.text) if end < 0 else end

    def plain_row(self, row_text: str, line: int) -> CsvRow:
        if "\r" in row_text:
            return CsvRow(line, row_text, (), _BARE_RETURN)
        return CsvRow(line, row_text, [self._plain(part) for part in row_text.split(self._delimiter)])

    def quoted_row(self, start: int, line: int) -> tuple[CsvRow, int]:
        """Return the row that begins at `start`, and the place of its end."""
        fields: list[str | None] = []
        place = start
        while True:
            if self.text.startswith(self._quote, place):
                closing = self._closing_quote(place + 1)
                if closing < 0:
                    return self._bad_row(start, line, "has a quote that is not closed")
                fields.append(self._unquoted(self.text[place + 1 : closing]))
                place = closing + 1
                if not self.text.startswith(self._delimiter, place):
                    break
            else:
                end = self.line_end(place)
                comma = self.text.find(self._delimiter, place, end)
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
        return None if field in self._nulls else field

    def _unquoted(self, field: str) -> str:
        """Return the value of a field from its text between quotes."""
        if self._escapes is None:
            return field.replace(self._quote * 2, self._quote)
        return self._escapes.sub(lambda match: match[1] or self._quote, field)

    def _closing_quote(self, place: int) -> int:
        """Return the place of the quote that closes the field whose text begins at `place`; -1 without one."""
        if self._escapes is not None:
            parts = self._escapes.finditer(self.text, place)
            return next((part.start() for part in parts if part[0] == self._quote), -1)
        while (place := self.text.find(self._quote, place)) >= 0:
            if not self.text.startswith(self._quote, place + 1):
                return place
            place += 2
        return -1

    def _bad_row(self, start: int, line: int, why: str) -> tuple[CsvRow, int]:
        end = self.line_end(start)
        return CsvRow(line, self.text[start:end].rstrip("\r"), (), why), end


def _quotes_and(escape: str, quote: str) -> re.Pattern[str]:
    """Return the pattern of what may mean a quote in a field: an escaped character, a doubled quote, or one quote."""
    one = re.escape(quote)
    return re.compile(f"{re.escape(escape)}(.)|{one}{one}|{one}", re.DOTALL)
