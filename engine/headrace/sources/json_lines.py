"""Files of JSON lines: one object per line, in UTF-8.

Each line that is not blank is a row. A line that is not a JSON object is a bad row, and does not affect other rows.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from headrace.api import SourceNode
from headrace.plan.plain_values import MISSING
from headrace.sources.file_format import FileRows, content_of, typed_table, wanted_columns
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
        wanted = wanted_columns(node, columns)
        decoder = msgspec.json.Decoder(_row_type([column.name for column in wanted]))
        faults: dict[int, str] = {}
        rows = [_decoded(line, decoder, faults, position) for position, line in enumerate(lines)]
        values = {
            column.name: [None if row is None else field(row) for row in rows]
            for column, field in zip(wanted, _fields(len(wanted)), strict=True)
        }
        table = typed_table(values, node, wanted, len(rows), faults)
        return FileRows(table, faults, lambda number: lines[number].content.decode(errors="backslashreplace"))


def _lines(uri: str, storage: Storage) -> list[_Line]:
    content = content_of(uri, storage).removeprefix(codecs.BOM_UTF8)
    lines = enumerate(content.split(b"\n"), 1)
    return [_Line(number, line.removesuffix(b"\r")) for number, line in lines if line.strip(b" \t\r")]


def _row_type(names: Sequence[str]) -> type[msgspec.Struct]:
    """Return a type with which msgspec decodes only these fields of an object, of any value."""
    return msgspec.defstruct(
        "Row",
        [(f"f{number}", Any, MISSING) for number in range(len(names))],
        rename={f"f{number}": name for number, name in enumerate(names)},
    )


def _fields(count: int) -> list[Callable[[msgspec.Struct], Any]]:
    """Return getters of the fields of `_row_type`."""
    return [attrgetter(f"f{number}") for number in range(count)]


def _decoded(
    line: _Line, decoder: msgspec.json.Decoder[Any], faults: dict[int, str], position: int
) -> msgspec.Struct | None:
    try:
        line.content.decode()  # msgspec does not check the bytes of fields that it skips
        row: msgspec.Struct = decoder.decode(line.content)
    except UnicodeDecodeError as error:
        why = f"is not UTF-8 ({error.reason} at byte {error.start})"
    except msgspec.ValidationError as error:
        why = f"is not a JSON object ({error})"
    except msgspec.DecodeError as error:
        why = f"is not JSON ({error})"
    except RecursionError:
        why = "is not read: its lists and objects are nested too deep"
    else:
        return row
    faults[position] = f"line {line.number} {why}"
    return None
