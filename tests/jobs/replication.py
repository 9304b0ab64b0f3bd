"""Changes of a PostgreSQL database in the form of Debezium's events, from its own logical decoding (`pgoutput`, protocol 1).

It reads what PostgreSQL's manual says of the messages ("Logical Replication Message Formats"), and shares no code with the engine.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, NamedTuple

UNAVAILABLE = "__debezium_unavailable_value"


class Column(NamedTuple):
    name: str
    is_key: bool
    type: int
    modifier: int


class Message(NamedTuple):
    """Message of a topic: its key and its value, as values of JSON."""

    key: Any
    value: Any


class Feed:
    """Reader of a publication's changes by SQL, with a replication slot of its own."""

    def __init__(self, cursor: Any, table: str) -> None:
        """Begin the feed: changes from now on are in it."""
        self._cursor, self._relations = cursor, dict[int, list[Column]]()
        cursor.execute(f"create publication feed for table {table}")
        cursor.execute("select pg_create_logical_replication_slot('feed', 'pgoutput')")

    def messages(self) -> Iterator[Message]:
        """Yield the messages of all changes since the last call."""
        options = "'proto_version', '1', 'publication_names', 'feed'"
        self._cursor.execute(
            f"select lsn - '0/0'::pg_lsn, data from pg_logical_slot_get_binary_changes('feed', null, null, {options})"
        )
        for lsn, data in self._cursor.fetchall():
            yield from self._of_change(int(lsn), _Bytes(bytes(data)))

    def _of_change(self, lsn: int, data: _Bytes) -> Iterator[Message]:
        kind = data.take("c").decode()
        if kind == "R":
            self._relation(data)
        elif kind == "T":
            yield Message(None, {"before": None, "after": None, "op": "t", "source": _source(lsn), "ts_ms": 1})
        elif kind in "IUD":
            columns = self._relations[data.take("i")]
            before, after = None, None
            while data.rest:
                part = data.take("c").decode()
                row = [*data.row(columns)]
                before, after = (before, row) if part == "N" else (row, after)
            yield from _messages(lsn, "c" if kind == "I" else "u", columns, before, after)

    def _relation(self, data: _Bytes) -> None:
        oid, *_ = data.take("i"), data.text(), data.text(), data.take("c")
        count = data.take("h")
        self._relations[oid] = [data.column() for _ in range(count)]


def _messages(
    lsn: int, op: str, columns: list[Column], before: list[Any] | None, after: list[Any] | None
) -> Iterator[Message]:
    """Yield what Debezium sends: a tombstone behind a deletion, and for an update of the key a deletion and an insert.

    It copies large values that an update has not changed from the old row, where that has them (`REPLICA IDENTITY FULL`).
    """
    if before is not None and after is not None:
        after = [old if new == UNAVAILABLE else new for old, new in zip(before, after, strict=True)]
    if after is not None and (before is None or _key(columns, before) == _key(columns, after)):
        yield _message(lsn, op, columns, before, after)
        return
    assert before is not None
    yield _message(lsn, "d", columns, before, None)
    yield Message(_key(columns, before), None)
    if after is not None:
        yield _message(lsn, "c", columns, None, after)


def _key(columns: list[Column], row: list[Any]) -> dict[str, Any]:
    return {column.name: value for column, value in zip(columns, row, strict=True) if column.is_key}


def _message(lsn: int, op: str, columns: list[Column], before: list[Any] | None, after: list[Any] | None) -> Message:
    names = [column.name for column in columns]
    rows = [None if row is None else dict(zip(names, row, strict=True)) for row in (before, after)]
    payload = {"before": rows[0], "after": rows[1], "op": op, "source": _source(lsn), "ts_ms": 1}
    fields = [_field(column) for column in columns]
    parts = [{"field": part, "type": "struct", "optional": True, "fields": fields} for part in ("before", "after")]
    key = _key(columns, after if after is not None else before or [])
    return Message(key, {"schema": {"type": "struct", "fields": parts}, "payload": payload})


def _source(lsn: int) -> dict[str, Any]:
    return {"connector": "postgresql", "lsn": lsn, "ts_ms": 1_700_000_000_000, "table": "items"}


class _Bytes:
    """Reader of a message's bytes."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, kind: str) -> Any:
        size = struct.calcsize(f"!{kind}")
        (value,) = struct.unpack(f"!{kind}", self.rest[:size])
        self.rest = self.rest[size:]
        return value

    def text(self) -> str:
        text, _, self.rest = self.rest.partition(b"\0")
        return text.decode()

    def column(self) -> Column:
        is_key, name = self.take("b") == 1, self.text()
        return Column(name, is_key, self.take("i"), self.take("i"))

    def row(self, columns: list[Column]) -> Iterator[Any]:
        assert self.take("h") == len(columns)
        for column in columns:
            kind = self.take("c")
            if kind == b"t":
                size = self.take("i")
                text, self.rest = self.rest[:size].decode(), self.rest[size:]
                yield _value(column, text)
            else:
                yield UNAVAILABLE if kind == b"u" else None


_NAMES = {
    1082: "io.debezium.time.Date",
    1083: "io.debezium.time.MicroTime",
    1114: "io.debezium.time.MicroTimestamp",
    1184: "io.debezium.time.ZonedTimestamp",
    1700: "org.apache.kafka.connect.data.Decimal",
    2950: "io.debezium.data.Uuid",
}

_TYPES = {16: "boolean", 20: "int64", 23: "int32", 1082: "int32", 1083: "int64", 1114: "int64", 1700: "bytes"}


def _field(column: Column) -> dict[str, Any]:
    scale = {"parameters": {"scale": str(_scale(column))}} if column.type == 1700 else {}
    kind = _TYPES.get(column.type, "string")
    return {"field": column.name, "type": kind, "optional": True, "name": _NAMES.get(column.type), **scale}


def _scale(column: Column) -> int:
    return (column.modifier - 4) & 0xFFFF


def _value(column: Column, text: str) -> Any:
    match column.type:
        case 16:
            return text == "t"
        case 20 | 23:
            return int(text)
        case 1082:
            return (date.fromisoformat(text) - date(1970, 1, 1)).days
        case 1083:
            read = time.fromisoformat(text)
            return ((read.hour * 60 + read.minute) * 60 + read.second) * 1_000_000 + read.microsecond
        case 1114:
            passed = datetime.fromisoformat(text) - datetime.fromisoformat("1970-01-01")
            return (passed.days * 86_400 + passed.seconds) * 1_000_000 + passed.microseconds
        case 1184:
            return datetime.fromisoformat(text).astimezone(UTC).isoformat().replace("+00:00", "Z")
        case 1700:
            number = int(Decimal(text).scaleb(_scale(column)))
            return base64.b64encode(number.to_bytes(number.bit_length() // 8 + 1, signed=True)).decode()
        case _:
            return text
