"""Decoding of a topic's messages: each value is a JSON object, read as a line of a JSON file is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

import msgspec
import pyarrow as pa

from headrace.api import SourceNode
from headrace.sources.file_format import wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.tables.files import Storage, read_parquet

_TOMBSTONE: Final = "the message has no value (a tombstone)"


class MessageRows(NamedTuple):
    """Rows of messages, the reasons of those that do not fit, and those of them that are skipped without a word."""

    table: pa.Table
    faults: Mapping[int, str]
    skipped: frozenset[int]


class Messages(msgspec.Struct, frozen=True):
    """Settings for decoding the rows of a landed file."""

    on_tombstone: Literal["quarantine", "skip"] = "quarantine"


def read_messages(uri: str, storage: Storage = None) -> pa.Table:
    r"""Read a landed file. Keys and values are text; a byte that is not UTF-8 is written as `\xff`."""
    return text_columns(read_parquet(uri, storage))


def text_columns(table: pa.Table) -> pa.Table:
    """Return messages with their keys and values as text."""
    for name in ("key", "value"):
        table = table.set_column(table.schema.names.index(name), name, _as_text(table[name]))
    return table


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist())
        return pa.chunked_array([pa.array(texts, pa.string())])


class MessageReader:
    """Decoder of one source's messages to rows of its record."""

    def __init__(self, node: SourceNode, messages: Messages) -> None:
        """Make a decoder to the record of `node`."""
        self._rows = JsonRows(node, wanted_columns(node), of_file=False)
        self._skips = messages.on_tombstone == "skip"

    def read(self, table: pa.Table) -> MessageRows:
        """Return the rows of messages; `table` comes from `read_messages`."""
        values = table["value"].to_pylist()
        faults: dict[int, str] = {}
        rows = self._rows.table(values, faults, lambda _: "the value")
        tombstones = {position: _TOMBSTONE for position, value in enumerate(values) if value is None}
        return MessageRows(rows, {**faults, **tombstones}, frozenset(tombstones if self._skips else ()))


def message_places(table: pa.Table, positions: Sequence[int]) -> list[str]:
    """Return where messages are in their topic, as TOPIC-PARTITION@OFFSET."""
    chosen = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
    places = zip(*(column.to_pylist() for column in chosen.columns), strict=True)
    return [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
