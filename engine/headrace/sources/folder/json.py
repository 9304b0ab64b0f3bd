"""Files of JSON, in UTF-8: one object per line, or one array of objects, or one object over several lines.

Each line that is not blank, or each element of the array, is a row. One that is not a JSON object is a bad row, and does not
affect other rows.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.sources.folder.format import HEAD, DamagedFileError, FileRows, content_of, head_of, wanted_columns
from headrace.sources.json_rows import JsonRows, names_in
from headrace.storage.storage import Storage

_BLANK: Final = b" \t\r\n"
_FIRST_ROWS: Final = 1_000
"""Number of rows whose members are the columns of a file, in its check before a run."""
_CERTAINLY_WHOLE: Final = HEAD // 2
"""Size of a head below which nothing follows it. That of a packed file may be a little shorter than `HEAD`."""


class _Line(NamedTuple):
    """Line or element that is a row: its place in the file, as errors name it, and its bytes."""

    place: str
    content: bytes


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Format of JSON lines. A missing field has its default, else null; fields that the record lacks are ignored."""

    given: Mapping[str, Any] = field(default_factory=dict)
    """Plain values of fields that an object may lack."""

    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")

    def count(self, file: Storage, node: SourceNode) -> int:  # noqa: ARG002 - counts lines
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(_lines(file))

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the members of the first rows, without types; None if there are none. Raises one of `UNREADABLE`."""
        lines = _first_lines(head_of(file).removeprefix(codecs.BOM_UTF8))
        names = names_in(line.content for line in lines[:_FIRST_ROWS])
        return pa.schema([pa.field(name, pa.null()) for name in names]) if names else None

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        lines = _lines(file)
        problems: dict[int, str] = {}
        rows = JsonRows(node, wanted_columns(node, columns), given=self.given)
        table = rows.table([line.content for line in lines], problems, lambda position: lines[position].place)
        return FileRows(table, problems, lambda number: lines[number].content.decode(errors="backslashreplace"))


def _lines(file: Storage) -> list[_Line]:
    return _rows(content_of(file).removeprefix(codecs.BOM_UTF8))


def _first_lines(head: bytes) -> list[_Line]:
    """Return the whole rows at the beginning of a file; none of one array or object that is longer."""
    if len(head) < _CERTAINLY_WHOLE:
        return _rows(head)
    is_of_lines = head.lstrip(_BLANK).startswith(b"{") and _first_error(head) is None
    return _numbered(head.rpartition(_line_end(head))[0]) if is_of_lines else []


def _rows(content: bytes) -> list[_Line]:
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
