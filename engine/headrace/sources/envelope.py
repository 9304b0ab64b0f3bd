"""Events of change feeds, which hold a row and what happened to it: those of Debezium and Maxwell, as JSON.

An event becomes one row: the new row of an insert or an update, the old one of a deletion. What stands beside the row has names that begin
with two underscores, as in the flattened events of Debezium (`ExtractNewRecordState`): `__op`, `__ts_ms`, `__source_lsn`.

Events of Debezium with a schema say what their numbers are: days, microseconds, unscaled decimals. Such values become text here.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

import msgspec

from headrace.records.column_types import Column
from headrace.records.plain_values import MISSING

BESIDE: Final = "__"
"""Beginning of the names of what stands beside a row."""

Text = bytes | str
_Members = Mapping[str, msgspec.Raw]


class OpenedEvents(NamedTuple):
    """Rows of events, by position."""

    rows: list[bytes | None]
    """Objects of JSON; None where there is no row."""
    beside: dict[str, list[Any]]
    """Values that stand beside the rows, by the names of columns."""
    skipped: frozenset[int]
    """Events that change no row."""


class Event(NamedTuple):
    """Row of an event, as an object of JSON, and a getter of what stands beside it."""

    row: bytes
    beside: Callable[[str], Any]


class EventError(Exception):
    """Reason why a text is no event of a feed, or has no row. It follows the name of the text."""


class Envelope:
    """Reader of the events of one feed, for the columns of a source."""

    def __init__(self, feed: str, columns: Iterable[Column]) -> None:
        """Take the name of the feed, a key of `FEEDS`; some of the `columns` may stand beside the rows."""
        self._read = FEEDS[feed]
        self._beside = [column.stored for column in columns if column.stored.startswith(BESIDE)]

    def open(
        self,
        texts: Sequence[Text | None],
        problems: dict[int, str],
        place: Callable[[int], str],
        keys: Sequence[Text | None] = (),
    ) -> OpenedEvents:
        """Take the rows out of events; None among the `texts` is none. `keys` are those of messages.

        `problems` gets the reasons of texts without a row; `place` returns how a reason names a text.
        """
        events: list[Event | None] = []
        skipped = set()
        for position, text in enumerate(texts):
            event = None
            try:
                if text is not None and (event := self._read(text, keys[position] if keys else None)) is None:
                    skipped.add(position)
                    problems[position] = f"{place(position)} is an event that changes no row"
            except EventError as error:
                problems[position] = f"{place(position)} {error}"
            events.append(event)
        beside = {
            name: [None if event is None else event.beside(name.removeprefix(BESIDE)) for event in events]
            for name in self._beside
        }
        return OpenedEvents([None if event is None else event.row for event in events], beside, frozenset(skipped))


def _members(text: Text) -> _Members:
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        msg = f"is not a JSON object ({error})"
        raise EventError(msg) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"is not JSON ({error})"
        raise EventError(msg) from error


def _value(members: _Members, name: str) -> Any:
    return MISSING if name not in members else msgspec.json.decode(members[name])


def _is_object(value: msgspec.Raw | None) -> bool:
    return value is not None and bytes(value).lstrip()[:1] == b"{"


# ------------------------------------------------------------------------------------------------------------- Debezium


def _debezium(text: Text, key: Text | None) -> Event | None:
    """Return an event of Debezium; None for a heartbeat, a tombstone, or an event of a transaction or of the log."""
    members = _members(text)
    schema = members.get("schema")
    if "payload" in members and "op" not in members:
        if not _is_object(members["payload"]):
            return None
        members = _members(bytes(members["payload"]))
    op = _value(members, "op")
    if op is MISSING and "ts_ms" in members and not {"before", "after"} & members.keys():
        return None
    if op == "m":
        return None
    if op == "d":
        row, types = _deleted(members, schema, key)
    elif op in {"c", "r", "u"}:
        row, types = _complete(members), _types_of_rows(_bytes(schema))
    else:
        raise EventError(_without_row(op))
    if not _is_object(row):
        what = "before is null, and so is the key" if op == "d" else "after is no row"
        msg = f"is an event of Debezium without a row: op is {op}, and {what}"
        raise EventError(msg)
    return Event(_with_types(bytes(row or b""), types), partial(_beside_debezium, members))


_UNAVAILABLE: Final = (
    b'"__debezium_unavailable_value"',
    b'["__debezium_unavailable_value"]',
    b'"X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="',
)
"""Values of a large column (TOAST) that an update did not change, and that PostgreSQL does not write to its log again: text, texts, bytes."""


def _complete(members: _Members) -> msgspec.Raw | None:
    """Return the new row, with values that the log does not repeat taken from the old row. Raises `EventError` where that lacks them, too."""
    row = members.get("after")
    if row is None or not any(value in bytes(row) for value in _UNAVAILABLE):
        return row
    old, values = _part(members, "before"), dict(_members(bytes(row)))
    for name in [name for name, value in values.items() if bytes(value) in _UNAVAILABLE]:
        if name not in old or bytes(old[name]) in _UNAVAILABLE:
            msg = (
                f"lacks the value of {name}, which this update did not change and PostgreSQL does not write again: ALTER TABLE ... REPLICA "
                "IDENTITY FULL lets events have it"
            )
            raise EventError(msg)
        values[name] = old[name]
    return msgspec.Raw(msgspec.json.encode(values))


def _deleted(
    members: _Members, schema: msgspec.Raw | None, key: Text | None
) -> tuple[msgspec.Raw | None, Mapping[str, _Type]]:
    """Return the row of a deletion and its types: the old row, or else the key of the message."""
    if _is_object(members.get("before")) or key is None:
        return members.get("before"), _types_of_rows(_bytes(schema))
    of_key = _members(key)
    if "payload" in of_key and "schema" in of_key:
        return of_key["payload"], _types_of_key(_bytes(of_key["schema"]))
    return msgspec.Raw(key.encode() if isinstance(key, str) else key), {}


def _without_row(op: Any) -> str:
    if op is MISSING:
        return "is no event of Debezium: it has no op"
    if op == "t":
        return "is a truncate (op t), which removes all rows of the table: no row says which. Go back to before them, or delete them one by one"
    return f"has op {op!r}, not one of c, r, u, d, t, m"


def _beside_debezium(members: _Members, name: str) -> Any:
    """Return a member of an event, as `op`; of its source, as `source_lsn` or `lsn`; or of its transaction, as `transaction_id`."""
    if name in members and name not in {"source", "transaction", "before", "after"}:
        return _value(members, name)
    for part in ("source", "transaction"):
        if name.startswith(f"{part}_"):
            return _value(_part(members, part), name.removeprefix(f"{part}_"))
    return _value(_part(members, "source"), name)


def _part(members: _Members, name: str) -> _Members:
    return _members(bytes(members[name])) if _is_object(members.get(name)) else {}


# -------------------------------------------------------------------------------------------------------------- Maxwell


def _maxwell(text: Text, _: Text | None) -> Event | None:
    """Return an event of Maxwell; None for the begin and the end of a bootstrap, and for changes of tables."""
    members = _members(text)
    kind = _value(members, "type")
    if kind is MISSING:
        msg = "is no event of Maxwell: it has no type"
        raise EventError(msg)
    if not isinstance(kind, str) or kind.startswith(("table-", "database-")) or kind in _BOOTSTRAP:
        return None
    row = members.get("data")
    if not _is_object(row):
        msg = f"is an event of Maxwell without a row: type is {kind}, and data is no row"
        raise EventError(msg)
    return Event(bytes(row or b""), partial(_beside_maxwell, members))


_BOOTSTRAP: Final = frozenset({"bootstrap-start", "bootstrap-complete"})


def _beside_maxwell(members: _Members, name: str) -> Any:
    """Return a member of an event; `ts_ms` is its time in milliseconds, where it has seconds."""
    seconds = _value(members, "ts") if name == "ts_ms" and name not in members else MISSING
    return seconds * 1000 if isinstance(seconds, int) else _value(members, name)


FEEDS: Final[Mapping[str, Callable[[Text, Text | None], Event | None]]] = {"debezium": _debezium, "maxwell": _maxwell}
"""Readers of events, by the names of feeds in the job's file. Each raises `EventError`."""


# ----------------------------------------------------------------------------------------------- types of Kafka Connect

_Type = Callable[[Any], Any]
"""Maker of the plain value, which records take, of a value of JSON. Raises `ValueError` and the like where it does not fit."""


class _Field(msgspec.Struct):
    """Field in a schema of Kafka Connect; the schema of a whole event, too."""

    field: str = ""
    name: str | None = None
    fields: list[_Field] = []
    parameters: dict[str, str] | None = None


def _bytes(schema: msgspec.Raw | None) -> bytes:
    return b"" if schema is None else bytes(schema)


@lru_cache(64)
def _types_of_rows(schema: bytes) -> Mapping[str, _Type]:
    """Return the types of the fields of `before` and `after` that JSON has in a form of its own."""
    parts = {part.field: part.fields for part in _fields(schema)}
    return _types(parts.get("after") or parts.get("before") or ())


@lru_cache(64)
def _types_of_key(schema: bytes) -> Mapping[str, _Type]:
    return _types(_fields(schema))


def _fields(schema: bytes) -> Sequence[_Field]:
    try:
        whole = msgspec.json.decode(schema, type=_Field | None) if schema else None
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"has a schema that is none of Kafka Connect ({error})"
        raise EventError(msg) from error
    return () if whole is None else whole.fields


def _types(fields: Iterable[_Field]) -> Mapping[str, _Type]:
    types: dict[str, _Type] = {}
    for field in fields:
        if field.name == "org.apache.kafka.connect.data.Decimal":
            types[field.field] = partial(_decimal, (field.parameters or {}).get("scale", "0"))
        elif (kind := _TYPES.get(field.name or "")) is not None:
            types[field.field] = kind
    return types


def _with_types(row: bytes, types: Mapping[str, _Type]) -> bytes:
    """Return a row with the values of these types as records take them."""
    if not types:
        return row
    members = dict(_members(row))
    for name in types.keys() & members.keys():
        value = msgspec.json.decode(members[name])
        try:
            plain = None if value is None else types[name](value)
        except (ValueError, TypeError, KeyError, OverflowError, binascii.Error) as error:
            msg = f"has {value!r:.60} in {name}, which does not fit the type that the event's schema gives ({error})"
            raise EventError(msg) from error
        members[name] = msgspec.Raw(msgspec.json.encode(plain))
    return msgspec.json.encode(members)


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - times of databases without a zone


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _time_of(units: int, number: int) -> str:
    """Return the time of a number of units after 1970, a second having that many `units`: to the unit, without a zone."""
    seconds, parts = divmod(number, units)
    whole = _EPOCH + timedelta(seconds=seconds)
    return f"{whole.isoformat()}.{parts:0{len(str(units)) - 1}d}"


def _time_of_day(units: int, number: int) -> str:
    if not 0 <= number < 86_400 * units:
        msg = "a day has 24 hours"
        raise ValueError(msg)
    return _time_of(units, number).partition("T")[2]


def _duration(microseconds: int) -> str:
    sign, (seconds, parts) = "-" if microseconds < 0 else "", divmod(abs(microseconds), 1_000_000)
    return f"{sign}PT{seconds}.{parts:06d}S"


def _decimal(scale: int | str, text: str) -> str:
    """Return a decimal from its unscaled value, the bytes of an integer in Base64."""
    unscaled = int.from_bytes(base64.b64decode(text, validate=True), signed=True)
    digits = tuple(map(int, str(abs(unscaled))))
    return f"{Decimal((int(unscaled < 0), digits, -int(scale))):f}"


def _decimal_of_any_scale(value: Mapping[str, Any]) -> str:
    return _decimal(value["scale"], value["value"])


_TYPES: Final[Mapping[str, _Type]] = {
    "io.debezium.time.Date": _day,
    "org.apache.kafka.connect.data.Date": _day,
    "io.debezium.time.Timestamp": partial(_time_of, 1_000),
    "org.apache.kafka.connect.data.Timestamp": partial(_time_of, 1_000),
    "io.debezium.time.MicroTimestamp": partial(_time_of, 1_000_000),
    "io.debezium.time.NanoTimestamp": partial(_time_of, 1_000_000_000),
    "io.debezium.time.Time": partial(_time_of_day, 1_000),
    "org.apache.kafka.connect.data.Time": partial(_time_of_day, 1_000),
    "io.debezium.time.MicroTime": partial(_time_of_day, 1_000_000),
    "io.debezium.time.NanoTime": partial(_time_of_day, 1_000_000_000),
    "io.debezium.time.MicroDuration": _duration,
    "io.debezium.data.VariableScaleDecimal": _decimal_of_any_scale,
}
"""Types by their names in schemas. Values of all others stand in JSON as records take them."""
