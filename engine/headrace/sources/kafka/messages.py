"""Decoding of a topic's messages: each value is an object, read as a line of a JSON file is, or an event of a change feed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.changelog import COMPACTED
from headrace.api.graph import SourceNode
from headrace.config import EventOptions, SourceConfig
from headrace.records.foreign_values import readable
from headrace.records.plain_values import MISSING
from headrace.sources.envelope import Envelope, OpenedEvents
from headrace.sources.folder.format import DecodedRows, wanted_columns
from headrace.sources.json_rows import JsonRows
from headrace.sources.kafka.around import OP, Around
from headrace.sources.kafka.payloads import Payloads
from headrace.sources.kafka.schemas import SchemaStore
from headrace.storage.storage import Storage

_TOMBSTONE: Final = "the message has no value (a tombstone)"
_VALUE, _KEY = "the value", "the key"


class Messages(msgspec.Struct, frozen=True):
    """Settings for decoding the rows of a landed file."""

    on_tombstone: Literal["quarantine", "skip", "delete"] = "quarantine"
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


class _Around(msgspec.Struct, frozen=True):
    """Message in the quarantine, without its key and its value."""

    topic: str
    partition: int
    offset: int
    timestamp: Any
    headers: Any


def _around(raw: str) -> _Around | None:
    try:
        return msgspec.json.decode(raw, type=_Around)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _place(_: int) -> str:
    return _VALUE


def _is_compacted(node: SourceNode) -> bool:
    """Return whether messages alone say the kinds of rows, so that a member of the same name says nothing of them."""
    kinds = {value: kind.symbol for value, kind in node.kinds}
    return {"field": node.row_kind, **kinds} == COMPACTED


class MessageReader:
    """Decoder of one source's messages to rows of its record."""

    def __init__(self, node: SourceNode, messages: Messages, storage: Storage | None = None) -> None:
        """Make a decoder to the record of `node`. `storage` has the credentials for the folder of schemas."""
        columns, feed = wanted_columns(node), messages.events
        store = None
        if messages.schemas is not None and storage is not None:
            store = SchemaStore(storage.at(messages.schemas))
        self._on_tombstone = messages.on_tombstone
        of_rows = () if feed is not None else columns
        as_objects = self._on_tombstone == "delete"  # the row of a deletion is made of its key
        self._values = Payloads(messages.values, store, of_rows, messages.schema, as_objects=as_objects)
        self._keys = Payloads(messages.keys, store, (), as_objects=feed is None)
        self._around = Around(columns)
        self._needs_keys = feed is not None or as_objects or self._around.has_key
        own_kinds = feed is None and not (as_objects and _is_compacted(node))
        self._rows = JsonRows(node, columns, of_file=False, are_decoded=self._values.are_objects, own_kinds=own_kinds)
        self._envelope = None if feed is None else Envelope(feed, node, columns)

    def read(self, table: pa.Table) -> DecodedRows:
        """Return the rows of messages; `table` comes from `read_messages`."""
        values = table["value"].to_pylist()
        tombstones = [position for position, value in enumerate(values) if value is None]
        errors: dict[int, str] = {}
        objects = self._objects(values, errors)
        keys = self._keys_of(table, errors)
        if self._on_tombstone == "delete":
            for position in tombstones:
                key = keys[position]
                objects[position] = key if isinstance(key, Mapping) else {}
        else:
            errors |= dict.fromkeys(tombstones, _TOMBSTONE)
        skipped = frozenset(tombstones if self._on_tombstone == "skip" else ())
        if self._envelope is None:
            rows = self._rows.table(objects, errors, _place, self._around.read(table, keys))
            return DecodedRows(rows, errors, skipped)
        events = self._envelope.open(objects, errors, _place, keys)
        rows = self._rows.table(events.rows, errors, _place, self._beside(events, table, keys))
        return DecodedRows(rows, errors, skipped | events.skipped)

    def _objects(self, values: Sequence[bytes | None], errors: dict[int, str]) -> list[Any]:
        """Return the objects of values. A value that is written as null is none, and no tombstone."""
        objects = self._values.read(values, errors, _VALUE)
        for position, (value, read) in enumerate(zip(values, objects, strict=True)):
            if read is None and value is not None:
                errors.setdefault(position, f"{_VALUE} is not an object (it is None)")
        return objects

    def _keys_of(self, table: pa.Table, errors: dict[int, str]) -> Sequence[Any]:
        """Return the keys of messages, where they are needed: as bytes, where they have no form. Those of events are read where an event lacks its row."""
        if not self._needs_keys:
            return ()
        of_messages = table["key"].to_pylist()
        if self._envelope is not None:
            return self._keys.read(of_messages, {}, _KEY)
        return of_messages if self._keys.form == "text" else self._keys.read(of_messages, errors, _KEY)

    def _beside(self, events: OpenedEvents, table: pa.Table, keys: Sequence[Any]) -> dict[str, list[Any]]:
        """Return what stands beside the rows of events: in the events themselves, or else around their messages."""
        around = self._around.read(table, keys)
        around.pop(OP, None)
        merged = {
            name: [other if own is MISSING else own for own, other in zip(events.beside[name], others, strict=True)]
            for name, others in around.items()
            if name in events.beside
        }
        return {**around, **events.beside, **merged}

    def raw(self, table: pa.Table, position: int) -> str:
        r"""Return a message as the quarantine stores it: its value as JSON where it can be read, else as text; a byte that is not UTF-8 is written as `\xff`."""
        row = {name: readable(column[position]) for name, column in zip(table.schema.names, table.columns, strict=True)}
        shown = {name: payloads.shown(row[name]) for name, payloads in (("key", self._keys), ("value", self._values))}
        return msgspec.json.encode(row | shown, enc_hook=str).decode()

    def is_row(self, table: pa.Table, position: int, raw: str) -> bool:
        """Return whether a message is the one of a text that `raw` has returned: one at the same offset, of the same time and headers.

        How keys and values are shown depends on the schemas that are known: a message may be requeued because its schema is now.
        """
        around = _around(raw)
        return around is not None and around == _around(self.raw(table, position))

    def places(self, table: pa.Table, positions: Sequence[int]) -> Sequence[str]:
        """Return where messages are in their topic, as TOPIC-PARTITION@OFFSET."""
        chosen = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
        places = zip(*(column.to_pylist() for column in chosen.columns), strict=True)
        return [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
