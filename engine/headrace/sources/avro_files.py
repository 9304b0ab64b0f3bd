"""Avro files (object container files). A file that is damaged anywhere is refused as a whole: nothing tells where its records begin."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from headrace.api import SourceNode
from headrace.plan.plain_values import Instant, OtherType
from headrace.sources.avro_container import AvroContainer
from headrace.sources.file_format import DamagedFileError, FileRows, content_of, typed_table, wanted_columns
from headrace.tables.files import Storage

_PER_MILLISECOND: Final = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}
_Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AvroFiles:
    """See `FileFormat`. Logical types that are timestamps are times; other logical types than `uuid` fit no field."""

    suffixes = (".avro",)

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - blocks tell
        """See `FileFormat.count`. Reads the file, and unpacks its blocks to check their numbers of records."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        return container.rows

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """See `FileFormat.read`."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        fields = container.schema["fields"] if _is_record(container.schema) else None
        if fields is None:
            msg = "its schema is no record, so it has no columns"
            raise DamagedFileError(msg)
        records = list(_records(container))
        wanted = [
            column for column in wanted_columns(node, columns) if column.name in {each["name"] for each in fields}
        ]
        converts = {each["name"]: _converter(each["type"]) for each in fields}
        values = {
            column.name: _converted([record[column.name] for record in records], converts[column.name])
            for column in wanted
        }
        faults: dict[int, str] = {}
        table = typed_table(values, node, wanted, len(records), faults)
        return FileRows(table, faults, lambda number: _text(records[number], converts))


def _is_record(schema: Any) -> bool:
    """Tell whether a schema is that of a record whose fields can be read."""
    fields = schema.get("fields") if isinstance(schema, dict) and schema.get("type") == "record" else None
    return isinstance(fields, list) and all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and "type" in each for each in fields
    )


def _check_counts(container: AvroContainer) -> None:
    """Refuse a number of records that a block cannot hold: each has a byte at least, unless it has no field but nulls."""
    for block in container.blocks:
        if block.records > len(container.unpacked(block)):
            msg = f"a block of it says {block.records:,} records, and has fewer bytes"
            raise DamagedFileError(msg)


def _records(container: AvroContainer) -> Iterator[dict[str, Any]]:
    """Yield the records, with the numbers that logical types are stored as.

    fastavro would make moments of Python's `datetime`, and fail for the whole file where one is outside its years.
    """
    import fastavro

    try:
        schema = fastavro.parse_schema(_without_logical_types(container.schema))
        for block in container.blocks:
            content = io.BytesIO(container.unpacked(block))
            for _ in range(block.records):
                yield fastavro.schemaless_reader(  # type: ignore[misc]  # a record, as `_is_record` has checked
                    content, schema, None, handle_unicode_errors="surrogateescape"
                )
            _check_end(content)
    except DamagedFileError:
        raise
    except Exception as error:  # fastavro raises whatever damaged bytes lead to
        msg = f"its records cannot be read: {type(error).__name__}: {error!s:.200}"
        raise DamagedFileError(msg) from error


def _check_end(content: io.BytesIO) -> None:
    if content.read(1):
        msg = "a block of it has more bytes than its records take"
        raise DamagedFileError(msg)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: each if name in {"default", "doc", "aliases", "symbols"} else _without_logical_types(each)
            for name, each in schema.items()
            if name != "logicalType"
        }
    return [_without_logical_types(each) for each in schema] if isinstance(schema, list) else schema


def _converted(values: list[Any], convert: _Convert | None) -> list[Any]:
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(schema: Any) -> _Convert | None:
    """Return the function that gives a stored value its meaning, by its schema; None where it has none but itself.

    A union has the meaning of its only branch beside null. One of several branches that have one is left as it is stored.
    """
    if isinstance(schema, list):
        branches = [each for each in schema if each != "null"]
        return _converter(branches[0]) if len(branches) == 1 else None
    if not isinstance(schema, dict):
        return None
    if (logical := schema.get("logicalType")) is not None and logical != "uuid":
        return _logical(str(logical), schema)
    if schema.get("type") in {"array", "map"}:
        return _items(schema)
    if _is_record(schema):
        converts = {each["name"]: convert for each in schema["fields"] if (convert := _converter(each["type"]))}
        return _fields(converts) if converts else None
    return _converter(schema["type"]) if isinstance(schema.get("type"), dict | list) else None


def _items(schema: dict[str, Any]) -> _Convert | None:
    convert = _converter(schema.get("items", schema.get("values")))
    if convert is None:
        return None
    if schema["type"] == "array":
        return lambda values: _converted(values, convert)
    return lambda values: dict(zip(values, _converted([*values.values()], convert), strict=True))


def _fields(converts: dict[str, _Convert]) -> _Convert:
    def convert(record: dict[str, Any]) -> dict[str, Any]:
        changed = {name: None if record[name] is None else each(record[name]) for name, each in converts.items()}
        return record | changed

    return convert


def _logical(logical: str, schema: dict[str, Any]) -> _Convert | None:
    name, _, unit = logical.rpartition("-")
    if name in {"timestamp", "local-timestamp"} and unit in _PER_MILLISECOND and schema.get("type") == "long":
        per_millisecond = _PER_MILLISECOND[unit]
        return lambda value: Instant(_cut(value, per_millisecond))
    if logical == "decimal" and isinstance(scale := schema.get("scale", 0), int):
        return lambda value: OtherType(repr(_decimal(value, scale)))
    if logical in {"date", "time-millis", "time-micros", "duration"}:
        return lambda value: OtherType(f"{value!r} ({logical})")
    return None


def _cut(value: int, unit: int) -> int:
    """Return a number in another unit, without the part that is less than one, as Arrow does."""
    return value // unit if value >= 0 else -(-value // unit)


def _decimal(value: Any, scale: int) -> Any:
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale) if isinstance(value, bytes) else value


def _text(record: dict[str, Any], converts: dict[str, _Convert | None]) -> str:
    """Return a record as a JSON object, whatever is in it."""
    shown = {name: _shown(*_converted([value], converts.get(name))) for name, value in record.items()}
    return msgspec.json.encode(shown, enc_hook=str).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    if isinstance(value, Instant):
        return value.milliseconds
    if isinstance(value, OtherType):
        return value.text
    if isinstance(value, dict):
        return {_shown(name): _shown(each) for name, each in value.items()}
    return [_shown(each) for each in value] if isinstance(value, list) else value
