"""Decoding of a topic's messages: each value is a JSON object, read as a line of a JSON file is, or an event of a change feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.api.graph import SourceNode
from headrace.config import SourceConfig
from headrace.sources.envelope import Envelope
from headrace.sources.folder.format import DecodedRows, wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.storage.storage import Storage

_NOT_UTF8: Final = "the value is not UTF-8"
_IS_UTF8: Final = "is_utf8"
_TOMBSTONE: Final = "the message has no value (a tombstone)"


class Messages(msgspec.Struct, frozen=True):
    """Settings for decoding the rows of a landed file."""

    on_tombstone: Literal["quarantine", "skip"] = "quarantine"
    envelope: str | None = None

    @classmethod
    def of(cls, config: SourceConfig) -> Self:
        """Return the settings of a source. A change feed has a tombstone behind each deletion, which says nothing more."""
        return cls("skip" if config.envelope is not None else config.on_tombstone, config.envelope)


def read_messages(file: Storage) -> pa.Table:
    r"""Read a landed file. Keys and values are text; a byte that is not UTF-8 is written as `\xff`."""
    return text_columns(pq.ParquetFile(file.open()).read())


def text_columns(table: pa.Table) -> pa.Table:
    """Return messages with their keys and values as text. The column `is_utf8` says which values are, if some are not."""
    values = table["value"]
    texts = {name: _as_text(table[name]) for name in ("key", "value")}
    if texts["value"] is None:
        table = table.append_column(_IS_UTF8, pa.array([*map(_is_utf8, values.to_pylist())], pa.bool_()))
    for name, text in texts.items():
        column = _escaped(table[name]) if text is None else text
        table = table.set_column(table.schema.names.index(name), name, column)
    return table


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return bytes as text; None if some are not UTF-8."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return None


def _escaped(values: pa.ChunkedArray) -> pa.ChunkedArray:
    texts = (None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist())
    return pa.chunked_array([pa.array(texts, pa.string())])


def _place(_: int) -> str:
    return "the value"


def _is_utf8(value: bytes | None) -> bool:
    try:
        (value or b"").decode()
    except UnicodeDecodeError:
        return False
    return True


class MessageReader:
    """Decoder of one source's messages to rows of its record."""

    def __init__(self, node: SourceNode, messages: Messages) -> None:
        """Make a decoder to the record of `node`."""
        columns, feed = wanted_columns(node), messages.envelope
        self._rows = JsonRows(node, columns, of_file=False)
        self._envelope = None if feed is None else Envelope(feed, columns)
        self._skips = messages.on_tombstone == "skip"

    def read(self, table: pa.Table) -> DecodedRows:
        """Return the rows of messages; `table` comes from `read_messages`."""
        values = table["value"].to_pylist()
        tombstones = {position: _TOMBSTONE for position, value in enumerate(values) if value is None}
        errors: dict[int, str] = {}
        if _IS_UTF8 in table.schema.names:
            wrong = pc.indices_nonzero(pc.invert(table[_IS_UTF8])).to_pylist()
            errors = dict.fromkeys(wrong, _NOT_UTF8)
            values = [None if position in errors else value for position, value in enumerate(values)]
        skipped = frozenset(tombstones if self._skips else ())
        if self._envelope is None:
            rows = self._rows.table(values, errors, _place)
        else:
            events = self._envelope.open(values, errors, _place, table["key"].to_pylist())
            rows = self._rows.table(events.rows, errors, _place, events.beside)
            skipped |= events.skipped
        return DecodedRows(rows, {**errors, **tombstones}, skipped)

    def places(self, table: pa.Table, positions: Sequence[int]) -> Sequence[str]:
        """Return where messages are in their topic, as TOPIC-PARTITION@OFFSET."""
        chosen = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
        places = zip(*(column.to_pylist() for column in chosen.columns), strict=True)
        return [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
