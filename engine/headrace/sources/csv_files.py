"""CSV files: rows of text fields. Column names come from the first row, or from the record."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api import SourceNode
from headrace.config import CsvOptions
from headrace.names import counted
from headrace.plan.column_types import Column
from headrace.plan.plain_values import OtherType
from headrace.plan.value_rules import written_number
from headrace.sources.csv_rows import CsvRow, csv_rows
from headrace.sources.file_format import (
    HEAD,
    DamagedFileError,
    FileRows,
    content_of,
    head_of,
    present_columns,
    typed_table,
    wanted_columns,
)
from headrace.tables.files import Storage

_NUMBER: Final = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)
_WHOLE: Final = re.compile(r"-?[0-9]{1,4000}", re.ASCII)
_NO_NUMBERS: Final = {text: float(text) for text in ("nan", "inf", "-inf", "infinity", "-infinity")}
_TRUTH: Final = {"true": True, "false": False}
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

    suffixes = (".csv", ".tsv", ".csv.gz", ".tsv.gz")

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(self._rows(uri, node, storage).rows)

    def schema(self, uri: str, storage: Storage = None) -> pa.Schema | None:
        """Return the columns of a file's header, without types; None if it has none. Raises one of `UNREADABLE`."""
        if not self.options.header:
            return None
        head = head_of(uri, storage)
        row = next(self._parsed(head), None)
        if row is None or (len(head) >= HEAD and head.count(b"\n") == 0):
            return None
        return pa.schema([pa.field(name, pa.null()) for name in self._header(row)])

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        names, rows, width = self._rows(uri, node, storage)
        faults = {
            position: f"line {row.line} {why}"
            for position, row in enumerate(rows)
            if (why := self._fault(row, width)) is not None
        }
        wanted = present_columns(node, names, columns)
        values = {column.name: self._values(names.index(column.name), rows, column, faults) for column in wanted}
        table = typed_table(values, node, wanted, len(rows), faults)
        return FileRows(table, faults, lambda number: self._raw(rows[number]))

    def _rows(self, uri: str, node: SourceNode, storage: Storage) -> _Rows:
        rows = list(self._parsed(content_of(uri, storage)))
        if not self.options.header or not rows:
            names = [column.name for column in wanted_columns(node)]
            return _Rows(names, rows, len(names))
        return _Rows(self._header(rows[0]), rows[1:], len(rows[0].fields))

    def _parsed(self, content: bytes) -> Iterator[CsvRow]:
        text = content.decode(self.options.encoding, errors="surrogateescape").removeprefix("\ufeff")
        return csv_rows(text, self.options.delimiter, frozenset(self.options.null_values), self.options.escape)

    def _header(self, row: CsvRow) -> list[str]:
        """Return the names in a header. Raises `DamagedFileError` for one that cannot be read."""
        names = self._names(row)
        fault = self._fault_of_header(row, names)
        if fault is not None:
            msg = f"its header {fault}"
            raise DamagedFileError(msg)
        return names

    @staticmethod
    def _names(header: CsvRow) -> list[str]:
        """Return the names in a header, without empty ones at its end, as spreadsheets write them."""
        names = [name or "" for name in header.fields]
        while names and not names[-1]:
            names.pop()
        return names

    def _fault_of_header(self, row: CsvRow, names: Sequence[str]) -> str | None:
        if _ESCAPED.search(row.text):
            return f"is not {self.options.encoding}"
        if row.fault is not None:
            return row.fault
        if not all(names):
            return "has a column without a name"
        twice = sorted({name for name in names if names.count(name) > 1})
        return f"has more than one column {', '.join(twice)}" if twice else None

    def _fault(self, row: CsvRow, width: int) -> str | None:
        if _ESCAPED.search(row.text):
            return f"is not {self.options.encoding}"
        if row.fault is not None:
            return row.fault
        if len(row.fields) != width:
            what = "the header has" if self.options.header else "the record has"
            return f"has {counted(len(row.fields), 'field')}, {what} {width}"
        return None

    def _values(self, place: int, rows: Sequence[CsvRow], column: Column, faults: Mapping[int, str]) -> list[Any]:
        texts = [None if position in faults else row.fields[place] for position, row in enumerate(rows)]
        read = _reader(column)
        return texts if read is None else [None if text is None else read(text) for text in texts]

    def _raw(self, row: CsvRow) -> str:
        if _ESCAPED.search(row.text) is None:
            return row.text
        content = row.text.encode(self.options.encoding, "surrogateescape")
        return content.decode(self.options.encoding, "backslashreplace")


def _reader(column: Column) -> Callable[[str], Any] | None:
    """Return the function that parses a text for a column; None where the text is the value.

    A text that cannot be parsed stays a text, so the column's type check refuses it.
    """
    if column.parts:
        return _json
    if column.is_time or pa.types.is_integer(column.type):
        return _number
    if pa.types.is_floating(column.type):
        return lambda text: written_number(text) if _NUMBER.fullmatch(text) else _NO_NUMBERS.get(text.lower(), text)
    if pa.types.is_boolean(column.type):
        return lambda text: _TRUTH.get(text.lower(), text)
    return None


def _number(text: str) -> int | float | Decimal | str:
    if _WHOLE.fullmatch(text):
        return int(text)
    return written_number(text) if _NUMBER.fullmatch(text) else text


_decode_json = msgspec.json.Decoder(float_hook=written_number).decode


def _json(text: str) -> Any:
    try:
        return _decode_json(text)
    except (msgspec.DecodeError, RecursionError):
        return OtherType(repr(text))
