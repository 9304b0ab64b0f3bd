"""Parts of a message around its value: the key, headers, time and place, for fields with names of two underscores.

Such a field is named by `field(name="__offset")`, or in the job's file. A member of a key, or one header, is named by a path: `__key.id`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from headrace.records.column_kinds.texts import Binary
from headrace.records.column_types import Column
from headrace.records.plain_values import MISSING
from headrace.records.value_rules import Instant

KEY: Final = "__key"
OP: Final = "__op"
"""What a message does to the row of its key: `u` sets it, `d`, a tombstone, deletes it."""
_HEADERS: Final = "__headers"
_ONE: Final = 2
"""Names in the path of a header whose name has no dot."""
_PER_SECOND: Final = 1_000


class Around:
    """Reader of the wanted parts of messages beside their values."""

    def __init__(self, columns: Sequence[Column]) -> None:
        """Take the columns of a source, of which some may be such parts."""
        self._wanted = {name for column in columns for name in (column.stored, *column.path[:1])} & _PARTS.keys()
        self._dotted = [
            column.stored for column in columns if column.path[:1] == (_HEADERS,) and len(column.path) > _ONE
        ]
        self._bytes = {column.stored for column in columns if _holds_bytes(column)}

    @property
    def has_key(self) -> bool:
        """Return whether the key is wanted."""
        return KEY in self._wanted

    def read(self, messages: pa.Table, keys: Sequence[Any]) -> dict[str, list[Any]]:
        """Return the wanted parts of messages, by the names of columns. `keys` are the keys as objects, or as bytes."""
        values = {name: _PARTS[name](messages) for name in self._wanted - {KEY, _HEADERS}}
        if KEY in self._wanted:
            values[KEY] = [self._as_wanted(key, KEY) for key in keys]
        if _HEADERS in self._wanted:
            values[_HEADERS] = [self._headers(headers or ()) for headers in messages["headers"].to_pylist()]
            for column in self._dotted:  # names of headers may have dots, as paths have
                name = column.removeprefix(f"{_HEADERS}.")
                values[column] = [headers.get(name, MISSING) for headers in values[_HEADERS]]
        return values

    def _headers(self, headers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return headers by name: of those with one name, the last."""
        pairs = ((header["key"], header["value"]) for header in headers)
        return {name: self._as_wanted(value, f"{_HEADERS}.{name}", _HEADERS) for name, value in pairs}

    def _as_wanted(self, value: Any, *names: str) -> Any:
        """Return bytes as text where a field of text has one of the names. Bytes that are no text stay, and fit no such field."""
        if not isinstance(value, bytes) or self._bytes.intersection(names):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value


def _holds_bytes(column: Column) -> bool:
    part = column.parts[-1] if column.stored == _HEADERS and column.parts else column
    return isinstance(part.kind, Binary)


def _times(messages: pa.Table) -> list[Any]:
    times = messages["timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    return [None if time is None else Instant(time, _PER_SECOND) for time in times]


def _column(name: str) -> Callable[[pa.Table], list[Any]]:
    return lambda messages: messages[name].to_pylist()


_PARTS: Final[Mapping[str, Callable[[pa.Table], list[Any]]]] = {
    KEY: _column("key"),
    _HEADERS: _column("headers"),
    OP: lambda messages: ["d" if value is None else "u" for value in messages["value"].to_pylist()],
    "__timestamp": _times,
    "__topic": _column("topic"),
    "__partition": _column("partition"),
    "__offset": _column("offset"),
}
