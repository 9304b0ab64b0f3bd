"""Events of change feeds, which hold a row and what happened to it: those of Debezium and Maxwell, as JSON or decoded from Avro.

An event becomes one row: the new row of an insert or an update, the old one of a deletion. What stands beside the row has names that begin
with two underscores, as in the flattened events of Debezium (`ExtractNewRecordState`): `__op`, `__ts_ms`, `__source_lsn`.

Events of Debezium with a schema say what their numbers are: such values become what records take (`connect_types`). Values that were
decoded from Avro are that already.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from headrace.api.graph import SourceNode
from headrace.config import EventOptions
from headrace.records.column_types import Column
from headrace.records.plain_values import MISSING
from headrace.records.value_rules import written_number
from headrace.sources.connect_types import Type, types_of_key, types_of_rows

BESIDE: Final = "__"
"""Beginning of the names of what stands beside a row."""

Text = bytes | str | Mapping[str, Any]
"""Event, or key of a message: as JSON, or decoded."""
_Members = Mapping[str, Any]
"""Members of an object: `msgspec.Raw` of one in JSON, values of a decoded one."""
_Types = Mapping[str, Type]


class OpenedEvents(NamedTuple):
    """Rows of events, by position."""

    rows: list[bytes | dict[str, Any] | None]
    """Rows as JSON, or decoded as their events are; None where there is no row."""
    beside: dict[str, list[Any]]
    """Values that stand beside the rows, by the names of columns."""
    skipped: frozenset[int]
    """Events that change no row of the table."""


@dataclass(frozen=True, slots=True)
class Event:
    """Row that an event changes."""

    row: _Members
    beside: Callable[[str], Any]
    """Getter of what stands beside the row, by its name."""
    old: _Members
    """Columns of the row before an update, as far as the event has them."""
    types: _Types
    is_deletion: bool


class EventError(Exception):
    """Reason why a text is no event of a feed, or has no row. It follows the name of the text."""


class Envelope:
    """Reader of the events of one feed, for the columns of a source."""

    def __init__(self, options: EventOptions, node: SourceNode, columns: Sequence[Column]) -> None:
        """Take what the job's file says of the feed, the source, and its columns, of which some may stand beside the rows."""
        self._options, self._read = options, FEEDS[options.feed]
        self._beside = [column.stored for column in columns if column.stored.startswith(BESIDE)]
        self._wanted = {name for column in columns for name in (column.stored, *column.path[:1])}
        fields = {field for key in node.keys or () for field in key}
        self._keys = {column.stored for column in columns if column.name in fields}

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
        rows: list[bytes | dict[str, Any] | None] = []
        beside: dict[str, list[Any]] = {name: [] for name in self._beside}
        skipped = set()
        for position, text in enumerate(texts):
            row: bytes | dict[str, Any] | None = None
            values = [None] * len(beside)
            try:
                event = (
                    None if text is None else self._read(text, keys[position] if keys else None, self._options.table)
                )
                if event is not None:
                    row = self._row(event, is_decoded=isinstance(text, Mapping))
                    values = [event.beside(name.removeprefix(BESIDE)) for name in beside]
                elif text is not None:
                    skipped.add(position)
                    problems[position] = f"{place(position)} is an event that changes no row"
            except EventError as error:
                row, problems[position] = None, f"{place(position)} {error}"
            rows.append(row)
            for of_column, value in zip(beside.values(), values, strict=True):
                of_column.append(value)
        return OpenedEvents(rows, beside, frozenset(skipped))

    def _row(self, event: Event, *, is_decoded: bool) -> bytes | dict[str, Any]:
        """Return the row of an event with the values of the wanted columns as records take them. Raises `EventError` where it cannot."""
        values = dict(event.row)
        wanted = self._wanted & values.keys()
        if not event.is_deletion:
            _complete(values, wanted, event.old)
            self._check_keys(values, event.old)
        for name in wanted & event.types.keys():
            try:
                values[name] = _converted(values[name], name, event.types[name])
            except EventError:
                if not event.is_deletion or name in self._keys:
                    raise
                values[name] = _NULL  # a deletion needs the key alone
        return {name: _decoded(value) for name, value in values.items()} if is_decoded else msgspec.json.encode(values)

    def _check_keys(self, values: _Members, old: _Members) -> None:
        """Refuse an update of a column by which the rows are told apart: the row of the old key would stay."""
        for name in sorted(self._keys & values.keys() & old.keys()):
            if (before := _value(old, name)) != (after := _value(values, name)):
                msg = (
                    f"changes {name} from {before!r:.60} to {after!r:.60}, by which the pipeline tells rows apart: an update of a key has to come "
                    "as a deletion of the old row and an insert of the new one"
                )
                raise EventError(msg)


def changes_a_row(options: EventOptions, text: bytes) -> bool:
    """Return whether an event changes a row of the table; True for what is no event, which is a bad row."""
    try:
        return FEEDS[options.feed](text, None, options.table) is not None
    except EventError:
        return True


def plain_rows(options: EventOptions, texts: Iterable[bytes]) -> list[dict[str, Any]]:
    """Return the rows of events as plain values, for a look at a feed; not those of events that cannot be read."""
    rows = []
    for text in texts:
        with suppress(EventError):
            event = FEEDS[options.feed](text, None, options.table)
            if event is not None:
                rows.append({name: _decoded(_with_type(event, name)) for name in event.row})
    return rows


def _with_type(event: Event, name: str) -> msgspec.Raw:
    return _converted(event.row[name], name, event.types[name]) if name in event.types else event.row[name]


_NULL: Final = msgspec.Raw(b"null")


def _converted(value: msgspec.Raw, name: str, kind: Type) -> msgspec.Raw:
    plain = _decoded(value)
    try:
        return value if plain is None else msgspec.Raw(msgspec.json.encode(kind(plain)))
    except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
        msg = f"has {plain!r:.60} in {name}, which does not fit the type that the event's schema gives ({error})"
        raise EventError(msg) from error


def _members(text: Any, what: str = "") -> _Members:
    """Return the members of an object. Errors begin with `what`, which is a part of the text."""
    if isinstance(text, Mapping):
        return text
    if not isinstance(text, bytes | str):
        msg = f"{what}is not an object (it is {text!r:.60})"
        raise EventError(msg)
    try:
        return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError as error:
        msg = f"{what}is not a JSON object ({error})"
        raise EventError(msg) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"{what}is not JSON ({error})"
        raise EventError(msg) from error


_decode: Final = msgspec.json.Decoder(float_hook=written_number).decode


def _decoded(value: Any) -> Any:
    if not isinstance(value, msgspec.Raw):
        return value
    try:
        return _decode(value)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        msg = f"has {bytes(value)[:60]!r}, which cannot be read ({error})"
        raise EventError(msg) from error


def _value(members: _Members, name: str) -> Any:
    return MISSING if name not in members else _decoded(members[name])


def _part(members: _Members, name: str) -> _Members:
    return _object(members[name]) if _is_object(members.get(name)) else {}


def _object(value: Any) -> _Members:
    """Return the members of a value that `_is_object`."""
    return _members(bytes(value) if isinstance(value, msgspec.Raw) else value)


def _is_object(value: Any) -> bool:
    return bytes(value).lstrip()[:1] == b"{" if isinstance(value, msgspec.Raw) else isinstance(value, Mapping)


# ------------------------------------------------------------------------------------------------------------- Debezium

_TIMES: Final = frozenset({"ts_ms", "ts_us", "ts_ns"})


def _debezium(text: Text, key: Text | None, table: str | None) -> Event | None:
    """Return an event of Debezium; None for one of another table, a heartbeat, a tombstone, or an event of a transaction or of the log."""
    members = _members(text)
    schema = members.get("schema", _NULL)
    payload = members.get("payload")
    if isinstance(payload, msgspec.Raw) and "op" not in members:
        if bytes(payload) == b"null":
            return None
        members = _members(bytes(payload), "has a payload that ")
    if _changes_nothing(members) or not _is_of_table(_part(members, "source"), table):
        return None
    op = _value(members, "op")
    if op == "m":
        return None
    if not isinstance(op, str) or op not in _OPS:
        raise EventError(_without_row(op))
    row, types = _deleted(members, schema, key) if op == "d" else (members.get("after"), _types(types_of_rows, schema))
    if row is None or not _is_object(row):
        what = "before is null, and so is the key" if op == "d" else "after is no row"
        msg = f"is an event of Debezium without a row: op is {op}, and {what}"
        raise EventError(msg)
    old = _part(members, "before") if op == "u" else {}
    return Event(_object(row), partial(_beside_debezium, members), old, types, op == "d")


_OPS: Final = frozenset("crud")


def _changes_nothing(members: _Members) -> bool:
    """Return whether members are those of a heartbeat, of the begin or end of a transaction, or of a change of a table."""
    names = members.keys()
    is_heartbeat = bool(names) and names <= _TIMES
    return is_heartbeat or ("op" not in names and ({"status", "id"} <= names or "ddl" in names))


def _is_of_table(source: _Members, table: str | None) -> bool:
    """Return whether an event is of the table that the job's file names, alone or behind its schema and database."""
    if table is None:
        return True
    database, schema, own = (str(_value(source, name)) for name in ("db", "schema", "table"))
    return table in {own, f"{schema}.{own}", f"{database}.{own}", f"{database}.{schema}.{own}"}


def _deleted(members: _Members, schema: msgspec.Raw, key: Text | None) -> tuple[Any, _Types]:
    """Return the row of a deletion and its types: the old row, or else the key of the message."""
    if _part(members, "before") or key is None:
        return members.get("before"), _types(types_of_rows, schema)
    of_key = _members(key, "has no row, and its key ")
    if isinstance(key, Mapping):
        return key, {}
    if "payload" in of_key and "schema" in of_key:
        return of_key["payload"], _types(types_of_key, of_key["schema"])
    return msgspec.Raw(key.encode() if isinstance(key, str) else key), {}


def _types(read: Callable[[bytes], _Types], schema: Any) -> _Types:
    if not isinstance(schema, msgspec.Raw):
        return {}
    try:
        return read(bytes(schema))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        msg = f"has a schema that is none of Kafka Connect ({error})"
        raise EventError(msg) from error


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


_PLACEHOLDER: Final = "__debezium_unavailable_value"
_BYTES: Final = [*_PLACEHOLDER.encode()]
_PLACEHOLDERS: Final = (
    *(_PLACEHOLDER, [_PLACEHOLDER], {_PLACEHOLDER: _PLACEHOLDER}, _BYTES, _PLACEHOLDER.encode()),
    *("X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", ["X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="]),
    ["b68a35a7-17ad-35b3-af2a-ae46edb4545a"],
    f'{{"{_PLACEHOLDER}":"{_PLACEHOLDER}"}}',
)
"""Values of a large column that an update did not change, and that the database does not write to its log again, by the column's type."""
_MARKS: Final = (
    b"__debezium_unavailable_value",
    b"X19kZWJleml1bV91bmF2",
    b"95,95,100",
    b"95, 95, 100",
    b"b68a35a7-17ad-35b3",
)


def _complete(values: dict[str, msgspec.Raw], wanted: Collection[str], old: _Members) -> None:
    """Take values that the log does not repeat from the old row. Raises `EventError` where that lacks a wanted one, too."""
    for name in _unavailable(values, wanted):
        if name not in old or [*_unavailable(old, [name])]:
            msg = (
                f"lacks the value of {name}, which this update did not change and the database does not write again: in PostgreSQL, "
                "ALTER TABLE ... REPLICA IDENTITY FULL lets events have it"
            )
            raise EventError(msg)
        values[name] = old[name]


def _unavailable(values: _Members, names: Collection[str]) -> Iterator[str]:
    for name in sorted(names):
        value = values[name]
        may_be = not isinstance(value, msgspec.Raw) or any(mark in bytes(value) for mark in _MARKS)
        if may_be and _decoded(value) in _PLACEHOLDERS:
            yield name


# -------------------------------------------------------------------------------------------------------------- Maxwell


def _maxwell(text: Text, _: Text | None, table: str | None) -> Event | None:
    """Return an event of Maxwell; None for one of another table, the begin and the end of a bootstrap, and changes of tables."""
    members = _members(text)
    kind = _value(members, "type")
    if not isinstance(kind, str):
        msg = f"is no event of Maxwell: it has no type{'' if kind is MISSING else f', but {kind!r:.60}'}"
        raise EventError(msg)
    names = {"db": members.get("database", _NULL), "table": members.get("table", _NULL)}
    if kind.startswith(("table-", "database-")) or kind in _BOOTSTRAP or not _is_of_table(names, table):
        return None
    if not _is_object(members.get("data")):
        msg = f"is an event of Maxwell without a row: type is {kind}, and data is no row"
        raise EventError(msg)
    old = _part(members, "old") if kind == "update" else {}
    return Event(_part(members, "data"), partial(_beside_maxwell, members), old, {}, kind == "delete")


_BOOTSTRAP: Final = frozenset({"bootstrap-start", "bootstrap-complete"})


def _beside_maxwell(members: _Members, name: str) -> Any:
    """Return a member of an event; `ts_ms` is its time in milliseconds, where it has seconds."""
    seconds = _value(members, "ts") if name == "ts_ms" and name not in members else MISSING
    return seconds * 1000 if type(seconds) is int else _value(members, name)


FEEDS: Final[Mapping[str, Callable[[Text, Text | None, str | None], Event | None]]] = {
    "debezium": _debezium,
    "maxwell": _maxwell,
}
"""Readers of events by the names of feeds: of a text, the key of its message, and the name of the table. Each raises `EventError`."""
