"""Columns of a table as Delta's log has them."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema


def to_logged(schema: pa.Schema) -> dict[str, Any]:
    """Return a schema as it stands in the log of a Delta table."""
    logged: dict[str, Any] = msgspec.json.decode(Schema.from_arrow(schema).to_json())
    return logged


def from_logged(logged: dict[str, Any]) -> pa.Schema:
    """Return the Arrow schema of a schema in the log of a Delta table."""
    return pa.schema(Schema.from_json(msgspec.json.encode(logged).decode()))
