"""Recorded tables of a job's sinks: a checkpoint stores them, so that publishing it needs no user code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema

SinkSchemas = dict[str, tuple[pa.Schema, tuple[str, ...]]]
"""Arrow schema and primary key of each sink's table, by sink. The key of an append sink is empty."""


class SinkTable(msgspec.Struct, frozen=True):
    """Columns of a sink's table as in Delta's log, and its primary key."""

    schema: dict[str, Any]
    key: tuple[str, ...] = ()


SinkTables = dict[str, SinkTable]
"""By sink."""


def to_stored(schemas: SinkSchemas) -> SinkTables:
    """Return the tables of sinks in the form that checkpoints store."""
    return {
        name: SinkTable(msgspec.json.decode(Schema.from_arrow(schema).to_json()), key)
        for name, (schema, key) in schemas.items()
    }


def to_schemas(tables: Mapping[str, SinkTable]) -> SinkSchemas:
    """Return the tables of sinks in the form that writers use."""
    return {
        name: (pa.schema(Schema.from_json(msgspec.json.encode(table.schema).decode())), table.key)
        for name, table in tables.items()
    }
