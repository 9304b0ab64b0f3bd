"""Avro files (object container files). A file with any damage is refused as a whole: nobody can tell where its records begin."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa

from headrace.api import SourceNode
from headrace.names import counted
from headrace.plan.plain_values import Instant, OtherType
from headrace.sources.avro_container import AvroContainer, read_header
from headrace.sources.file_format import (
    HEAD,
    DamagedFileError,
    FileRows,
    content_of,
    head_of,
    present_columns,
    typed_table,
)
from headrace.tables.files import Storage

_PER_MILLISECOND: Final = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}
_TIMES: Final = ("timestamp", "local-timestamp")
_NO_RECORD: Final = "its schema is no record, so it has no columns"
_PREFIX: Final = "headrace-"
_LARGEST_SCALE: Final = 1_000
_ALL_DIGITS: Final = Context(prec=1_000_000)
_Read = Callable[[Any, dict[str, Any]], Any]


@dataclass(frozen=True, slots=True)
class AvroFiles:
    """Format of Avro files. Timestamps are times, decimals are numbers; no field accepts other logical types, except `uuid`."""

    suffixes = (".avro",)

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - blocks hold their counts
        """Count the rows of a file. Reads the file and decompresses its blocks to check their counts. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        return container.rows

    def schema(self, uri: str, storage: Storage = None) -> pa.Schema | None:
        """Return the fields of a file's header, without types; None for a longer header. Raises one of `UNREADABLE`."""
        head = head_of(uri, storage)
        try:
            schema, _, _ = read_header(head)
        except DamagedFileError:
            if len(head) < HEAD:
                raise
            return None
        if not _is_record(schema):
            raise DamagedFileError(_NO_RECORD)
        return pa.schema([pa.field(field["name"], pa.null()) for field in schema["fields"]])

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        fields = container.schema["fields"] if _is_record(container.schema) else None
        if fields is None:
            raise DamagedFileError(_NO_RECORD)
        records = list(_records(container))
        wanted = present_columns(node, [field["name"] for field in fields], columns)
        values = {column.name: [record[column.name] for record in records] for column in wanted}
        faults: dict[int, str] = {}
        table = typed_table(values, node, wanted, len(records), faults)
        return FileRows(table, faults, lambda number: _text(records[number]))


def _is_record(schema: Any) -> bool:
    """Return whether a schema is a record whose fields can be read."""
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    return isinstance(fields, list) and all(
        isinstance(field, dict) and isinstance(field.get("name"), str) and "type" in field for field in fields
    )


def _check_counts(container: AvroContainer) -> None:
    """Refuse a block with more records than bytes: only a record of nothing but nulls has no byte."""
    for block in container.blocks:
        if block.records > len(container.unpacked(block)):
            msg = f"one of its blocks claims {counted(block.records, 'record')}, but has fewer bytes"
            raise DamagedFileError(msg)


def _records(container: AvroContainer) -> Iterator[dict[str, Any]]:
    """Yield the records, with values of logical types as `_LOGICAL` makes them.

    fastavro itself makes Python's `datetime`, and fails for the whole file if one value is outside its years.
    """
    import fastavro
    from fastavro.read import LOGICAL_READERS

    LOGICAL_READERS.update(_READERS)
    try:
        schema = fastavro.parse_schema(_with_own_types(container.schema))
        for block in container.blocks:
            content = io.BytesIO(container.unpacked(block))
            for _ in range(block.records):
                yield fastavro.schemaless_reader(  # type: ignore[misc]  # a record, as `_is_record` has checked
                    content, schema, None, handle_unicode_errors="surrogateescape"
                )
            _check_end(content)
    except DamagedFileError:
        raise
    except Exception as error:  # fastavro raises errors of any type for damaged bytes
        msg = f"its records cannot be read: {type(error).__name__}: {error!s:.200}"
        raise DamagedFileError(msg) from error


def _check_end(content: io.BytesIO) -> None:
    if content.read(1):
        msg = "one of its blocks has more bytes than its records need"
        raise DamagedFileError(msg)


def _with_own_types(schema: Any) -> Any:
    """Return a schema whose logical types have our names, so that fastavro calls our readers wherever such a value is.

    That is also behind a named type that is used again, and in any branch of a union. Other logical types are left out.
    """
    if isinstance(schema, list):
        return [_with_own_types(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    own = {
        name: part if name in {"default", "doc", "aliases", "symbols"} else _with_own_types(part)
        for name, part in schema.items()
        if name != "logicalType"
    }
    kind, logical = schema.get("type"), schema.get("logicalType")
    known = isinstance(kind, str) and isinstance(logical, str) and (kind, logical) in _LOGICAL
    return own | {"logicalType": f"{_PREFIX}{logical}"} if known else own


def _instant(per_millisecond: int) -> _Read:
    return lambda value, _: Instant(value, per_millisecond)


def _decimal(value: bytes, schema: dict[str, Any]) -> Any:
    scale = schema.get("scale", 0)
    if not isinstance(scale, int) or not 0 <= scale <= _LARGEST_SCALE:
        return OtherType(f"{value!r} (decimal of scale {scale!r:.20})")
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale, _ALL_DIGITS)


def _other(value: Any, schema: dict[str, Any]) -> OtherType:
    return OtherType(f"{value!r} ({schema['logicalType'].removeprefix(_PREFIX)})")


_LOGICAL: Final[dict[tuple[str, str], _Read]] = {
    **{("long", f"{name}-{unit}"): _instant(per) for name in _TIMES for unit, per in _PER_MILLISECOND.items()},
    **dict.fromkeys((("bytes", "decimal"), ("fixed", "decimal")), _decimal),
    **dict.fromkeys((("int", "date"), ("int", "time-millis"), ("long", "time-micros"), ("fixed", "duration")), _other),
}
"""Readers of values by their type and logical type."""


def _reader(read: _Read) -> Callable[..., Any]:
    return lambda value, schema=None, _reader_schema=None: read(value, schema)


_READERS: Final = {f"{kind}-{_PREFIX}{logical}": _reader(read) for (kind, logical), read in _LOGICAL.items()}
"""The same by the keys of fastavro."""


def _text(record: dict[str, Any]) -> str:
    """Return a record as a JSON object, whatever values it has."""
    return msgspec.json.encode(_shown(record), enc_hook=str).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Instant):
        return value.milliseconds
    if isinstance(value, OtherType):
        return value.text
    if isinstance(value, dict):
        return {_shown(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
