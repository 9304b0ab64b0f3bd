"""Rows of `keyed_state` with their own stamps and TTLs."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from headrace.tables.live_rows import last_rows_sql
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES

SCHEMA = STATE_TABLES[KEYED_STATE].schema


def row(stamp, *, own=None, state="s", user_key="0", checkpoint=1, deleted=False, operator="op"):
    """A row of `keyed_state`, stamped at `stamp` (ms)."""
    return {
        "operator": operator,
        "key_group": 0,
        "key": '"k"',
        "state": state,
        "user_key": user_key,
        "value": "1",
        "last_access": None if stamp is None else datetime.fromtimestamp(stamp / 1000, UTC),
        "ttl_ms": own,
        "checkpoint_id": checkpoint,
        "deleted": deleted,
    }


def table(rows):
    """The rows in the schema of `keyed_state`."""
    return pa.Table.from_pylist([{**dict.fromkeys(SCHEMA.names), **fields} for fields in rows], SCHEMA)


def survivors(rows, dead):
    """Return the user keys of the live entries, by the SQL `dead`."""
    sql = last_rows_sql("changes", STATE_TABLES[KEYED_STATE], unless=dead)
    with duckdb.connect(":memory:") as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("changes", table(rows))
        return sorted(row[0] for row in connection.sql(f"SELECT user_key FROM ({sql})").fetchall())
