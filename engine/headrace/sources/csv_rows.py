"""Parser of CSV text to rows of fields (RFC 4180). Pure: no files, no types.

A field that begins with a quote ends at the next quote that is not doubled; any other field is taken literally. If the quotes
of a row are wrong, the row is one line, and parsing goes on at the next line. So a missing closing quote damages one row,
not the rows after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

QUOTE: Final = '"'


class CsvRow(NamedTuple):
    """Row of a file: its line number (from 1), its text, and its fields; or the `fault` for which it has no fields."""

    line: int
    text: str
    fields: Sequence[str | None]
    fault: str | None = None


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
