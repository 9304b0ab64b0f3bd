"""Files of JSON, in UTF-8: one object per line, or one array of objects, or one object over several lines.

Each line that is not blank, or each element of the array, is a row. One that is not a JSON object is a bad row, and does not
affect other rows.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api import SourceNode
from headrace.sources.file_format import DamagedFileError, FileRows, content_of, wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.tables.files import Storage

_BLANK: Final = b" \t\r\n"


class _Line(NamedTuple):
    """Line or element that is a row: its place in the file, as errors name it, and its bytes."""

    place: str
    content: bytes


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Format of JSON lines. A missing field has its default, else null; fields that the record lacks are ignored."""

    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - counts lines
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(_lines(uri, storage))

    def schema(self, uri: str, storage: Storage = None) -> pa.Schema | None:  # noqa: ARG002 - each row has members of its own
        """Return None: each row has members of its own."""
        return None

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        lines = _lines(uri, storage)
        faults: dict[int, str] = {}
        rows = JsonRows(node, wanted_columns(node, columns))
        table = rows.table([line.content for line in lines], faults, lambda position: lines[position].place)
        return FileRows(table, faults, lambda number: lines[number].content.decode(errors="backslashreplace"))


def _lines(uri: str, storage: Storage) -> list[_Line]:
    content = content_of(uri, storage).removeprefix(codecs.BOM_UTF8)
    first = content.lstrip(_BLANK)[:1]
    if first == b"[":
        return _array(content)
    if first == b"{" and _first_error(content) is not None and _error(content) is None:
        return [_Line("the object", content)]
    return _numbered(content)


def _numbered(content: bytes) -> list[_Line]:
    lines = enumerate(content.split(_line_end(content)), 1)
    return [_Line(f"line {number}", line.removesuffix(b"\r")) for number, line in lines if line.strip(_BLANK)]


def _line_end(content: bytes) -> bytes:
    """Return what ends a line: a carriage return only in a file without line feeds, as old systems write it."""
    return b"\r" if b"\n" not in content else b"\n"


def _array(content: bytes) -> list[_Line]:
    """Return the elements of the array that a file is. Raises `DamagedFileError` for an array that cannot be read.

    A file whose first line is an array, and whose next ones are objects, has lines: the first is a bad row.
    """
    try:
        elements = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, RecursionError) as error:
        if _first_error(content) is None:
            return _numbered(content)
        msg = f"it begins with a JSON array that cannot be read ({error}), and lines must be objects"
        raise DamagedFileError(msg) from error
    return [_Line(f"element {number}", bytes(element)) for number, element in enumerate(elements, 1)]


def _first_error(content: bytes) -> Exception | None:
    """Return why the first line that is not blank is no JSON; None if it is."""
    return _error(content.lstrip(_BLANK).split(_line_end(content), 1)[0])


def _error(text: bytes) -> Exception | None:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        return error
    return None
