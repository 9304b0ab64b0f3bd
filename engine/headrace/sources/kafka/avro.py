"""Keys and values of messages in Avro, read by the schemas that they were written with."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.records.column_types import Column
from headrace.sources.avro_values import with_own_types
from headrace.sources.folder.avro_schema import AvroSchema
from headrace.sources.folder.format import DamagedFileError
from headrace.sources.kafka.payload import PayloadError
from headrace.sources.kafka.schemas import RegisteredSchema


def avro_reader(schema: RegisteredSchema, columns: Sequence[Column]) -> Callable[[bytes], Any]:
    """Return a reader of payloads in Avro, for these columns. Raises `PayloadError` where the schema cannot be read.

    Values of logical types are those of a source of Avro files; those of Kafka Connect and Debezium are what their names say.
    """
    value_of = _parsed(schema, columns).reader()

    def read(payload: bytes) -> Any:
        content = io.BytesIO(payload)
        try:
            value = value_of(content, len(payload))
        except RecursionError as error:
            msg = "is not read: its records are nested too deep"
            raise PayloadError(msg) from error
        except Exception as error:  # fastavro raises errors of any type for damaged bytes
            why = f"{type(error).__name__}: {error!s:.200}".rstrip(": ")
            msg = f"is not written by its schema ({why})"
            raise PayloadError(msg) from error
        if content.read(1):
            msg = "is not written by its schema: it has more bytes than that needs"
            raise PayloadError(msg)
        return value

    return read


def _parsed(schema: RegisteredSchema, columns: Sequence[Column]) -> AvroSchema:
    try:
        root, *references = (
            with_own_types(_decoded(text), of_connect=True)
            for text in (schema.text, *(reference.text for reference in schema.references))
        )
        parsed = AvroSchema.of(root, references)
        fields = parsed.root.get("fields", ()) if isinstance(parsed.root, dict) else ()
        names = {field["name"] for field in fields}
        for column in columns:
            if names.intersection((column.stored, *column.path[:1])):
                parsed.refuse_recursion(column)
    except (msgspec.MsgspecError, RecursionError) as error:
        msg = f"which is no JSON ({error})"
        raise PayloadError(msg) from error
    except DamagedFileError as error:
        msg = f"which is of no use here: {error}"
        raise PayloadError(msg) from error
    return parsed


def _decoded(text: str) -> Any:
    """Return a schema from its text. Some registries return the name of a primitive type without quotes."""
    return text if text in _PRIMITIVES else msgspec.json.decode(text)


_PRIMITIVES = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
