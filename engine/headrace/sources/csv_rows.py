"""Parser of CSV text to rows of fields (RFC 4180). Pure: no files, no types.

A field that begins with a quote ends at the next quote that is not doubled; any other field is taken literally. If the quotes
of a row are wrong, the row is one line, and parsing goes on at the next line. So a missing closing quote damages one row,
not the rows after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

QUOTE: Final = '"'


class CsvRow(NamedTuple):
    """Row of a file: its line number (from 1), its text, and its fields; or the `fault` for which it has no fields."""

    line: int
    text: str
    fields: Sequence[str | None]
    fault: str | None = None


def csv_rows(text: str, delimiter: str, null_values: frozenset[str]) -> Iterator[CsvRow]:
    """Yield the rows of a text; empty lines are no rows. A field without quotes is null if it is one of `null_values`."""
    place, line = 0, 1
    while place < len(text):
        end = _line_end(text, place)
        row_text = text[place:end]
        if QUOTE in row_text:
            row, end = _quoted_row(text, place, line, delimiter, null_values)
            yield row
        elif row_text := row_text.removesuffix("\r"):
            yield CsvRow(line, row_text, [_plain(part, null_values) for part in row_text.split(delimiter)])
        line += text.count("\n", place, end) + 1
        place = end + 1


def _line_end(text: str, place: int) -> int:
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _plain(field: str, null_values: frozenset[str]) -> str | None:
    return None if field in null_values else field


def _quoted_row(text: str, start: int, line: int, delimiter: str, null_values: frozenset[str]) -> tuple[CsvRow, int]:
    """Return the row that begins at `start`, and the place of its end."""
    fields: list[str | None] = []
    place = start
    while True:
        if text.startswith(QUOTE, place):
            closing = _closing_quote(text, place + 1)
            if closing < 0:
                return _bad_row(text, start, line, "has a quote that is not closed")
            fields.append(text[place + 1 : closing].replace(QUOTE * 2, QUOTE))
            place = closing + 1
            rest = text[place : place + 2]
            if not rest.startswith((delimiter, "\n")) and rest not in {"", "\r", "\r\n"}:
                return _bad_row(text, start, line, "has text after a closing quote")
            if not rest.startswith(delimiter):
                break
            place += 1
        else:
            end = _line_end(text, place)
            comma = text.find(delimiter, place, end)
            field = text[place : end if comma < 0 else comma]
            fields.append(_plain(field.removesuffix("\r") if comma < 0 else field, null_values))
            if comma < 0:
                place = end
                break
            place = comma + 1
    end = _line_end(text, place)
    return CsvRow(line, text[start:end].removesuffix("\r"), fields), end


def _closing_quote(text: str, place: int) -> int:
    """Return the place of the quote that closes the field whose text begins at `place`; -1 without one."""
    while (place := text.find(QUOTE, place)) >= 0:
        if not text.startswith(QUOTE, place + 1):
            return place
        place += 2
    return -1


def _bad_row(text: str, start: int, line: int, why: str) -> tuple[CsvRow, int]:
    end = _line_end(text, start)
    return CsvRow(line, text[start:end].removesuffix("\r"), (), why), end
