"""Files of JSON: one object per line, one array of objects, or objects over several lines.

Each line that is not blank, each element of the array, or each object is a row. One that is not a JSON object is a bad row, and does not
affect other rows. Where the job's file names the array that has the rows, each of these holds one, and its elements are the rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.config import JsonOptions
from headrace.sources.envelope import Envelope
from headrace.sources.folder.compression import packed_too
from headrace.sources.folder.encoding import in_utf8
from headrace.sources.folder.format import HEAD, DamagedFileError, FileRows, content_of, head_of, wanted_columns
from headrace.sources.json_rows import JsonRows, names_in
from headrace.storage.storage import Storage

_BLANK: Final = b" \t\r\n"
_FIRST_ROWS: Final = 1_000
"""Number of rows whose members are the columns of a file, in its check before a run."""
_SPACE: Final = re.compile(r"[ \t\r\n]*")


class _Line(NamedTuple):
    """Line or element that is a row: its place in the file, as errors name it, and its bytes."""

    place: str
    content: bytes


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Format of JSON lines. A missing field has its default, else null; fields that the record lacks are ignored."""

    options: JsonOptions
    given: Mapping[str, Any] = field(default_factory=dict)
    """Plain values of fields that an object may lack."""
    envelope: str | None = None
    """Feed whose events the objects are; None: they are rows."""

    suffixes = packed_too(".json", ".jsonl", ".ndjson")

    def count(self, file: Storage, node: SourceNode) -> int:  # noqa: ARG002 - counts objects
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(self._lines(file))

    def schema(self, file: Storage) -> pa.Schema | None:
        """Return the members of the first rows, without types; None if there are none, and for events. Raises one of `UNREADABLE`."""
        if self.envelope is not None:
            return None
        head = head_of(file)
        is_whole = len(head) < HEAD
        lines = self._of_rows(_first_lines(in_utf8(head, is_whole=is_whole), is_whole=is_whole))
        names = names_in(line.content for line in lines[:_FIRST_ROWS])
        return pa.schema([pa.field(name, pa.null()) for name in names]) if names else None

    def read(self, file: Storage, node: SourceNode, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        lines = self._lines(file)
        problems: dict[int, str] = {}
        wanted, texts = wanted_columns(node, columns), [line.content for line in lines]
        rows = JsonRows(node, wanted, given=self.given)

        def place(position: int) -> str:
            return lines[position].place

        if self.envelope is None:
            table = rows.table(texts, problems, place)
        else:
            events = Envelope(self.envelope, wanted).open(texts, problems, place)
            table = rows.table(events.rows, problems, place, events.beside)
        return FileRows(table, problems, lambda number: lines[number].content.decode(errors="backslashreplace"))

    def first_rows(self, file: Storage, count: int) -> list[bytes]:
        """Return the bytes of the first rows of a file. Raises one of `UNREADABLE`."""
        return [line.content for line in self._lines(file)[:count]]

    def _lines(self, file: Storage) -> Sequence[_Line]:
        return self._of_rows(_rows(in_utf8(content_of(file))))

    def _of_rows(self, lines: Sequence[_Line]) -> Sequence[_Line]:
        """Return the rows of lines: the lines themselves, or the elements of the arrays in them that the job's file names."""
        path = self.options.rows
        return lines if path is None else [row for line in lines for row in _elements_at(line, path)]


def _first_lines(head: bytes, *, is_whole: bool) -> list[_Line]:
    """Return the whole rows at the beginning of a file; none of one array or object that is longer."""
    if is_whole:
        return _rows(head)
    is_of_lines = head.lstrip(_BLANK).startswith(b"{") and _first_error(head) is None
    return _numbered(head.rpartition(_line_end(head))[0]) if is_of_lines else []


def _rows(content: bytes) -> list[_Line]:
    first = content.lstrip(_BLANK)[:1]
    if first == b"[":
        return _array(content)
    if first == b"{" and _first_error(content) is not None:
        if _error(content) is None:
            return [_Line("the object", content)]
        if (objects := _objects(content)) is not None:
            return objects
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


def _objects(content: bytes) -> list[_Line] | None:
    """Return objects that follow each other without commas; None where the first line is a damaged one of lines.

    Raises `DamagedFileError` where an object cannot be read behind one over several lines: nobody can tell where the next begins.
    """
    rows: list[_Line] = []
    try:
        for row in _objects_in(content.decode(errors="surrogateescape")):
            rows.append(row)  # noqa: PERF402 - the rows before the damage are needed
    except (ValueError, RecursionError) as error:
        if not rows or not {*b"\r\n"} & {*rows[0].content}:
            return None
        msg = f"it has objects over several lines, and what follows {rows[-1].place} cannot be read ({error})"
        raise DamagedFileError(msg) from error
    return rows


def _objects_in(text: str) -> Iterator[_Line]:
    """Yield the JSON objects in a text. Raises `ValueError` or `RecursionError` at damage."""
    number, line, end = 0, 1, 0
    while (place := _behind_space(text, end)) < len(text):
        number, line = number + 1, line + text.count("\n", end, place)
        if text[place] != "{":
            msg = f"no object begins at line {line}"
            raise ValueError(msg)
        _, end = _scan(text, place)
        yield _Line(f"object {number} at line {line}", text[place:end].encode(errors="surrogateescape"))
        line += text.count("\n", place, end)


def _behind_space(text: str, place: int) -> int:
    space = _SPACE.match(text, place)
    return place if space is None else space.end()


_scan: Final = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def _elements_at(line: _Line, path: str) -> Iterator[_Line]:
    """Yield the elements of an array within an object. Raises `DamagedFileError` where there is no such array."""
    value: Any = msgspec.Raw(line.content)
    try:
        for name in path.split("."):
            value = msgspec.json.decode(value, type=dict[str, msgspec.Raw])[name]
        elements = msgspec.json.decode(value, type=list[msgspec.Raw])
    except KeyError as error:
        msg = f"{line.place} has no {error.args[0]!r}, and json.rows is {path}"
        raise DamagedFileError(msg) from error
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"{line.place} has no array {path}, which json.rows names ({error})"
        raise DamagedFileError(msg) from error
    for number, element in enumerate(elements, 1):
        yield _Line(f"{line.place}, element {number} of {path}", bytes(element))


def _first_error(content: bytes) -> Exception | None:
    """Return why the first line that is not blank is no JSON; None if it is."""
    return _error(content.lstrip(_BLANK).split(_line_end(content), 1)[0])


def _error(text: bytes) -> Exception | None:
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        return error
    return None
