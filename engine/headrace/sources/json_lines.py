"""Files of JSON lines: one object per line, in UTF-8.

Each line that is not blank is a row. A line that is not a JSON object is a bad row, and does not affect other rows.
"""

from __future__ import annotations

import codecs
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from headrace.api import SourceNode
from headrace.sources.file_format import FileRows, content_of, wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.tables.files import Storage


class _Line(NamedTuple):
    """Line that is a row: its number in the file (from 1), and its bytes."""

    number: int
    content: bytes


@dataclass(frozen=True, slots=True)
class JsonLines:
    """Format of JSON lines. A missing field has its default, else null; fields that the record lacks are ignored."""

    suffixes = (".json", ".jsonl", ".ndjson", ".json.gz", ".jsonl.gz", ".ndjson.gz")

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - counts lines
        """Count the rows of a file. Reads the whole file. Raises one of `UNREADABLE`."""
        return len(_lines(uri, storage))

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        lines = _lines(uri, storage)
        faults: dict[int, str] = {}
        rows = JsonRows(node, wanted_columns(node, columns))
        table = rows.table([line.content for line in lines], faults, lambda position: f"line {lines[position].number}")
        return FileRows(table, faults, lambda number: lines[number].content.decode(errors="backslashreplace"))


def _lines(uri: str, storage: Storage) -> list[_Line]:
    content = content_of(uri, storage).removeprefix(codecs.BOM_UTF8)
    lines = enumerate(content.split(b"\n"), 1)
    return [_Line(number, line.removesuffix(b"\r")) for number, line in lines if line.strip(b" \t\r")]
