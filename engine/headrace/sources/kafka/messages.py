"""Decoding of a topic's messages: each value is an object, read as a line of a JSON file is, or an event of a change feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.graph import SourceNode
from headrace.config import EventOptions, SourceConfig
from headrace.records.foreign_values import readable
from headrace.sources.envelope import Envelope
from headrace.sources.folder.format import DecodedRows, wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.sources.kafka.payloads import Payloads
from headrace.sources.kafka.schemas import SchemaStore
from headrace.storage.storage import Storage

_TOMBSTONE: Final = "the message has no value (a tombstone)"
_VALUE, _KEY = "the value", "the key"


class Messages(msgspec.Struct, frozen=True):
    """Settings for decoding the rows of a landed file."""

    on_tombstone: Literal["quarantine", "skip"] = "quarantine"
    events: EventOptions | None = None
    values: str = "json"
    keys: str = "text"
    schemas: str | None = None
    """Folder of the schemas whose numbers keys and values begin with; None: they have no such beginning."""
    schema: str | None = None
    """Schema of all values."""

    @classmethod
    def of(cls, config: SourceConfig, schemas: str | None = None, schema: str | None = None) -> Self:
        """Return the settings of a source. A change feed has a tombstone behind each deletion, which says nothing more."""
        skips = "skip" if config.events is not None else config.on_tombstone
        return cls(skips, config.events, config.values, config.message_keys, schemas, schema)

    @property
    def with_schemas(self) -> Sequence[str]:
        """Return the columns of a landed file whose bytes begin with the number of a schema that is needed."""
        forms = {"value": self.values, "key": self.keys}
        return [name for name, form in forms.items() if self.schemas is not None and form in {"avro", "protobuf"}]


def read_messages(file: Storage) -> pa.Table:
    """Read a landed file."""
    return pq.ParquetFile(file.open()).read()


def _place(_: int) -> str:
    return _VALUE


class MessageReader:
    """Decoder of one source's messages to rows of its record."""

    def __init__(self, node: SourceNode, messages: Messages, storage: Storage | None = None) -> None:
        """Make a decoder to the record of `node`. `storage` has the credentials for the folder of schemas."""
        columns, feed = wanted_columns(node), messages.events
        store = None
        if messages.schemas is not None and storage is not None:
            store = SchemaStore(storage.at(messages.schemas))
        self._values = Payloads(messages.values, store, () if feed is not None else columns, messages.schema)
        self._keys = Payloads(messages.keys, store, ())
        self._rows = JsonRows(node, columns, of_file=False, are_decoded=self._values.are_objects)
        self._envelope = None if feed is None else Envelope(feed, node, columns)
        self._skips = messages.on_tombstone == "skip"

    def read(self, table: pa.Table) -> DecodedRows:
        """Return the rows of messages; `table` comes from `read_messages`."""
        values = table["value"].to_pylist()
        tombstones = {position: _TOMBSTONE for position, value in enumerate(values) if value is None}
        errors: dict[int, str] = {}
        objects = self._values.read(values, errors, _VALUE)
        skipped = frozenset(tombstones if self._skips else ())
        if self._envelope is None:
            rows = self._rows.table(objects, errors, _place)
        else:
            keys = self._keys.read(table["key"].to_pylist(), {}, _KEY)
            events = self._envelope.open(objects, errors, _place, keys)
            rows = self._rows.table(events.rows, errors, _place, events.beside)
            skipped |= events.skipped
        return DecodedRows(rows, {**errors, **tombstones}, skipped)

    def raw(self, table: pa.Table, position: int) -> str:
        r"""Return a message as the quarantine stores it: its value as JSON where it can be read, else as text; a byte that is not UTF-8 is written as `\xff`."""
        row = {name: readable(column[position]) for name, column in zip(table.schema.names, table.columns, strict=True)}
        shown = {name: payloads.shown(row[name]) for name, payloads in (("key", self._keys), ("value", self._values))}
        return msgspec.json.encode(row | shown, enc_hook=str).decode()

    def places(self, table: pa.Table, positions: Sequence[int]) -> Sequence[str]:
        """Return where messages are in their topic, as TOPIC-PARTITION@OFFSET."""
        chosen = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
        places = zip(*(column.to_pylist() for column in chosen.columns), strict=True)
        return [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
