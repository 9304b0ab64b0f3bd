"""What a job knows of its sinks' tables: stored with a checkpoint, so that publishing it needs no user code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema

SinkSchemas = dict[str, tuple[pa.Schema, tuple[str, ...]]]
"""By sink: the Arrow schema of its table, and its primary key; an empty key for one that rows are only appended to."""


class SinkTable(msgspec.Struct, frozen=True):
    """The columns of a sink's table as Delta's log has them, and its primary key."""

    schema: dict[str, Any]
    key: tuple[str, ...] = ()


SinkTables = dict[str, SinkTable]
"""By sink."""


def to_stored(schemas: SinkSchemas) -> SinkTables:
    """Return the tables of sinks as a checkpoint has them."""
    return {
        name: SinkTable(msgspec.json.decode(Schema.from_arrow(schema).to_json()), key)
        for name, (schema, key) in schemas.items()
    }


def to_schemas(tables: Mapping[str, SinkTable]) -> SinkSchemas:
    """Return the tables of sinks as they are written."""
    return {
        name: (pa.schema(Schema.from_json(msgspec.json.encode(table.schema).decode())), table.key)
        for name, table in tables.items()
    }
