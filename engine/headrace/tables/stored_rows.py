"""Rules that every stored row follows, checked by all readers: a row that breaks a rule was not written by Headrace.

Without the check, a null in a column that must have none would silently drop the row, or cause an error far from the table. The
rules are implemented twice, for rows in memory and as SQL for DuckDB.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import RowKind
from headrace.async_io.element import Status
from headrace.errors import StorageError
from headrace.state.timer_service import DOMAINS
from headrace.tables.schemas import (
    ANSWERS,
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    TIMERS,
    StateTable,
)

ADVICE: Final = (
    "Headrace does not write that, so somebody else has changed the table's files. Nothing was changed now. Bring the whole job "
    "folder back from a backup that is not older than the job's sinks."
)
_OF_LIVE_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    KEYED_STATE: ("value",),
    BUFFERED_REQUESTS: ("record", "block_id"),
    ASYNC_REQUESTS: ("element", "status", "attempts", "cost_ms"),
    ANSWERS: ("ordinal", "service", "status", "attempts", "request", "answered_at", "expires_at"),
    MATERIALIZER_HISTORY: ("row", "row_kind", "inserted_at"),
}
"""Columns that are null only in rows of deleted entries. Readers of such rows do not check them."""

_ALLOWED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    TIMERS: {"domain": tuple(DOMAINS)},
    ASYNC_REQUESTS: {"status": tuple(status.value for status in Status)},
    ANSWERS: {"status": (Status.COMPLETED.value, Status.QUARANTINED.value)},
    MATERIALIZER_HISTORY: {"row_kind": tuple(kind.symbol for kind in RowKind)},
}
_REFUSED: Final = re.compile(r"Column '(\w+)' is declared as non-nullable but contains null values")
_NAMES: Final = ("operator", "key", "state", "domain", "source", "position", "checkpoint_id")
_SHOWN = 100


def typed_rows(uri: str, rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert rows to the columns and types of a schema; a column that they lack, since they have an earlier format, is null.

    Raises `StorageError`, with the table, the row and the column, for a type that cannot be converted, and for a null in a
    column that must have none.
    """
    if rows.schema.equals(schema) and not any(rows[name].null_count for name in _never_null(schema)):
        return rows
    columns = [_typed(uri, rows, column) for column in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def check_rows(uri: str, rows: pa.Table, table: StateTable) -> pa.Table:
    """Return rows of a state table (all columns or some) after checking their values.

    Raises `StorageError`, with the table, the row and the column, for a live row without a value, and for a value that its
    column cannot have.
    """
    names = rows.schema.names
    for name in _OF_LIVE_ROWS.get(table.name, ()):
        if name in names and "deleted" in names and rows[name].null_count:
            _refuse(uri, rows, name, pc.and_(pc.is_null(rows[name]), pc.invert(rows["deleted"])))
    for name, allowed in _ALLOWED.get(table.name, {}).items():
        if name in names and rows.num_rows:
            known = pc.is_in(rows[name], pa.array([*allowed, None], pa.string()))
            if not pc.all(known).as_py():
                _refuse(uri, rows, name, pc.invert(known))
    return rows


def damaged(uri: str, what: str) -> StorageError:
    """Return the error for a table with rows that Headrace cannot have written."""
    return StorageError(f"table {uri} is damaged: {what}. {ADVICE}")


def checked_sql(changes: str, table: StateTable, columns: tuple[str, ...]) -> str:
    """Return SQL for a relation of changes. A query fails at a null in one of its `columns` that must have none."""
    names = [name for name in columns if name in _never_null(table.schema)]
    row = " || ', '".join(f""" || '{name} ' || coalesce(CAST("{name}" AS VARCHAR), 'null')""" for name in names)
    checked = []
    for name in names:
        message = f"'{MARK}{table.name} is damaged: column ''{name}'' is null in the row of '{row}"
        checked.append(f"""CASE WHEN "{name}" IS NULL THEN error({message}) ELSE "{name}" END AS "{name}" """)
    return f"(SELECT * REPLACE ({', '.join(checked)}) FROM {changes})"  # noqa: S608 - our own names


def null_refused(error: Exception) -> str | None:
    """Return the fault if deltalake has refused a null in a column that must have none; None for any other error."""
    match = _REFUSED.search(str(error))
    return f"column '{match[1]}' is null in a row" if match else None


MARK: Final = "stored rows: table "
"""Beginning of DuckDB's message for a query that failed because of `checked_sql`."""


def _typed(uri: str, rows: pa.Table, column: pa.Field) -> pa.ChunkedArray:
    if column.name not in rows.schema.names:
        values = pa.chunked_array([pa.nulls(rows.num_rows, column.type)])
    else:
        values = rows[column.name]
        if values.type != column.type:
            try:
                values = values.cast(column.type)
            except (pa.ArrowException, ValueError) as error:
                raise damaged(uri, f"column '{column.name}' is {values.type}, not {column.type} ({error})") from error
    if not column.nullable and values.null_count:
        _refuse(uri, rows, column.name, pc.is_null(values))
    return values


def _never_null(schema: pa.Schema) -> list[str]:
    return [column.name for column in schema if not column.nullable]


def _refuse(uri: str, rows: pa.Table, name: str, wrong: pa.ChunkedArray) -> None:
    """Raise `StorageError` for the first wrong row, if there is one."""
    place = pc.index(wrong, True).as_py()
    if place < 0:
        return
    row = rows.slice(place, 1).select([column for column in _NAMES if column in rows.schema.names])
    where = ", ".join(f"{column} {row[column][0].as_py()}" for column in row.schema.names)
    value = rows[name][place].as_py() if name in rows.schema.names else None
    shown = "null" if value is None else f"'{str(value)[:_SHOWN]}', which it cannot be,"
    raise damaged(uri, f"column '{name}' is {shown} in the row of {where}")
