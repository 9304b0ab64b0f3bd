"""Avro files (object container files). A file with any damage is refused as a whole: nobody can tell where its records begin."""

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
    """Format of Avro files. Logical timestamp types are read as times; no field accepts other logical types, except `uuid`."""

    suffixes = (".avro",)

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - blocks hold their counts
        """Count the rows of a file. Reads the file and decompresses its blocks to check their counts. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        return container.rows

    def read(self, uri: str, node: SourceNode, storage: Storage = None, columns: Collection[str] = ()) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        container = AvroContainer.of(content_of(uri, storage))
        _check_counts(container)
        fields = container.schema["fields"] if _is_record(container.schema) else None
        if fields is None:
            msg = "its schema is no record, so it has no columns"
            raise DamagedFileError(msg)
        records = list(_records(container))
        wanted = [
            column for column in wanted_columns(node, columns) if column.name in {field["name"] for field in fields}
        ]
        converts = {field["name"]: _converter(field["type"]) for field in fields}
        values = {
            column.name: _converted([record[column.name] for record in records], converts[column.name])
            for column in wanted
        }
        faults: dict[int, str] = {}
        table = typed_table(values, node, wanted, len(records), faults)
        return FileRows(table, faults, lambda number: _text(records[number], converts))


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
            msg = f"one of its blocks claims {block.records:,} records, but has fewer bytes"
            raise DamagedFileError(msg)


def _records(container: AvroContainer) -> Iterator[dict[str, Any]]:
    """Yield the records; values of logical types stay the numbers that are stored.

    With logical types, fastavro makes Python's `datetime`, and fails for the whole file if one value is outside its years.
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
    except Exception as error:  # fastavro raises errors of any type for damaged bytes
        msg = f"its records cannot be read: {type(error).__name__}: {error!s:.200}"
        raise DamagedFileError(msg) from error


def _check_end(content: io.BytesIO) -> None:
    if content.read(1):
        msg = "one of its blocks has more bytes than its records need"
        raise DamagedFileError(msg)


def _without_logical_types(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {
            name: part if name in {"default", "doc", "aliases", "symbols"} else _without_logical_types(part)
            for name, part in schema.items()
            if name != "logicalType"
        }
    return [_without_logical_types(part) for part in schema] if isinstance(schema, list) else schema


def _converted(values: list[Any], convert: _Convert | None) -> list[Any]:
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(schema: Any) -> _Convert | None:
    """Return the function that converts stored values of a schema; None where they need no conversion.

    A union with one branch besides null is converted like that branch. A union of several branches is not converted.
    """
    if isinstance(schema, list):
        branches = [field for field in schema if field != "null"]
        return _converter(branches[0]) if len(branches) == 1 else None
    if not isinstance(schema, dict):
        return None
    if (logical := schema.get("logicalType")) is not None and logical != "uuid":
        return _logical(str(logical), schema)
    if schema.get("type") in {"array", "map"}:
        return _items(schema)
    if _is_record(schema):
        converts = {field["name"]: convert for field in schema["fields"] if (convert := _converter(field["type"]))}
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
        changed = {
            name: None if record[name] is None else convert_field(record[name])
            for name, convert_field in converts.items()
        }
        return record | changed

    return convert


def _logical(logical: str, schema: dict[str, Any]) -> _Convert | None:
    name, _, unit = logical.rpartition("-")
    if name in {"timestamp", "local-timestamp"} and unit in _PER_MILLISECOND and schema.get("type") == "long":
        per_millisecond = _PER_MILLISECOND[unit]
        return lambda value: Instant(value, per_millisecond)
    if logical == "decimal" and isinstance(scale := schema.get("scale", 0), int):
        return lambda value: _decimal(value, scale)
    if logical in {"date", "time-millis", "time-micros", "duration"}:
        return lambda value: OtherType(f"{value!r} ({logical})")
    return None


def _decimal(value: Any, scale: int) -> Any:
    return Decimal(int.from_bytes(value, "big", signed=True)).scaleb(-scale) if isinstance(value, bytes) else value


def _text(record: dict[str, Any], converts: dict[str, _Convert | None]) -> str:
    """Return a record as a JSON object, whatever values it has."""
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
        return {_shown(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, list) else value
