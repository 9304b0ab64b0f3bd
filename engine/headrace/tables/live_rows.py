"""Rules that all stored rows follow, and the rule that makes state of them: the last row of an entry wins.

All readers check stored rows: Headrace has not written a row that breaks a rule. Without the check, a null in a column
that must have none would silently drop the row, or cause an error far from the table.

The last row of an entry, by checkpoint id, is its state, unless it is deleted. A checkpoint writes at most one row of
an entry, so the last row is unique.

Each rule is implemented twice, for rows in memory and as SQL for DuckDB. A test checks that both ways compute the same
state.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.records import RowKind
from headrace.async_io.pending_call import Status
from headrace.state.timers import DOMAINS
from headrace.storage.table import never_null, refuse_row
from headrace.tables.schemas import (
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    RESPONSES,
    TIMERS,
    StateTable,
)

_OF_LIVE_ROWS: Final[Mapping[str, tuple[str, ...]]] = {
    KEYED_STATE: ("value",),
    BUFFERED_REQUESTS: ("record", "block_id"),
    ASYNC_REQUESTS: ("element", "status", "attempts", "cost_ms"),
    RESPONSES: ("ordinal", "service", "status", "attempts", "request", "responded_at", "expires_at"),
    MATERIALIZER_HISTORY: ("row", "row_kind", "inserted_at"),
}
"""Columns that are null only in rows of deleted entries. Readers of such rows do not check them."""

_ALLOWED: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    TIMERS: {"domain": tuple(DOMAINS)},
    ASYNC_REQUESTS: {"status": tuple(status.value for status in Status)},
    RESPONSES: {"status": (Status.COMPLETED.value, Status.QUARANTINED.value)},
    MATERIALIZER_HISTORY: {"row_kind": tuple(kind.symbol for kind in RowKind)},
}
_REFUSED: Final = re.compile(r"Column '(\w+)' is declared as non-nullable but contains null values")


def check_rows(uri: str, rows: pa.Table, table: StateTable) -> pa.Table:
    """Return rows of a state table (all columns or some) after checking their values.

    Raises `StorageError`, with the table, the row and the column, for a live row without a value, and for a value that its
    column cannot have.
    """
    names = rows.schema.names
    for name in _OF_LIVE_ROWS.get(table.name, ()):
        if name in names and "deleted" in names and rows[name].null_count:
            refuse_row(uri, rows, name, pc.and_(pc.is_null(rows[name]), pc.invert(rows["deleted"])))
    for name, allowed in _ALLOWED.get(table.name, {}).items():
        if name in names and rows.num_rows:
            known = pc.is_in(rows[name], pa.array([*allowed, None], pa.string()))
            if not pc.all(known).as_py():
                refuse_row(uri, rows, name, pc.invert(known))
    return rows


def checked_sql(changes: str, table: StateTable, columns: tuple[str, ...]) -> str:
    """Return SQL for a relation of changes. A query fails at a null in one of its `columns` that must have none."""
    names = [name for name in columns if name in never_null(table.schema)]
    row = " || ', '".join(f""" || '{name} ' || coalesce(CAST("{name}" AS VARCHAR), 'null')""" for name in names)
    checked = []
    for name in names:
        message = f"'{MARK}{table.name} is damaged: column ''{name}'' is null in the row of '{row}"
        checked.append(f"""CASE WHEN "{name}" IS NULL THEN error({message}) ELSE "{name}" END AS "{name}" """)
    return f"(SELECT * REPLACE ({', '.join(checked)}) FROM {changes})"  # noqa: S608 - our own names


def null_refused(error: BaseException) -> str | None:
    """Return the fault if deltalake has refused a null in a column that must have none; None for any other error."""
    match = _REFUSED.search(str(error))
    return f"column '{match[1]}' is null in a row" if match else None


MARK: Final = "stored rows: table "
"""Beginning of DuckDB's message for a query that failed because of `checked_sql`."""


_PLACE = "_place"


def last_rows(changes: pa.Table, table: StateTable, *, keeps_deleted: bool = False) -> pa.Table:
    """Return the last row of each entry that is not deleted, oldest change first. `changes` must have the entry's columns.

    Changes of one operator may lack its name, and the key group, which follows from the key. With `keeps_deleted`, return the last
    rows of deleted entries as well.
    """
    if changes.num_rows == 0:
        return changes
    order = pc.sort_indices(changes, [("checkpoint_id", "ascending")])
    entry = [name for name in table.entry if name in changes.schema.names and _tells_apart(name, changes)]
    places = changes.select(entry).append_column(_PLACE, pc.rank(changes["checkpoint_id"], tiebreaker="first"))
    last = pc.subtract(places.group_by(entry).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"], 1)
    latest = changes.take(order.take(last.take(pc.sort_indices(last))))
    return latest if keeps_deleted else latest.filter(pc.invert(latest["deleted"]))


def _tells_apart(name: str, changes: pa.Table) -> bool:
    """Return whether a column can tell entries apart that agree in the others. The key group follows from the key."""
    return name != "key_group" and changes[name].null_count < changes.num_rows


def in_order(changes: pa.Table) -> pa.Table:
    """Return changes in the order of their checkpoints: if they are applied in this order, the last rows win."""
    return changes.take(pc.sort_indices(changes, [("checkpoint_id", "ascending")]))


def last_rows_sql(changes: str, table: StateTable, *, unless: str = "false") -> str:
    """Return DuckDB's SQL for `last_rows` over the relation `changes`, without entries whose last row meets `unless`."""
    entry = ", ".join(f'"{column}"' for column in table.entry)
    # By name: after a migration, new columns are at the end.
    columns = ", ".join(f'"{name}"' for name in table.schema.names if name != "deleted")
    checked = checked_sql(changes, table, (*table.entry, "checkpoint_id", "deleted"))
    return (
        f"SELECT {columns} FROM (SELECT * FROM {checked} QUALIFY "  # noqa: S608 - our own names
        f"row_number() OVER (PARTITION BY {entry} ORDER BY checkpoint_id DESC) = 1) WHERE NOT deleted AND NOT {unless}"
    )


def last_values_sql(changes: str, table: StateTable, values: Mapping[str, str], *, unless: str = "false") -> str:
    """Return SQL for the last values of each entry: quicker than `last_rows_sql` if only sums are needed.

    `values` are expressions over columns of `changes`, by the names of their results. The result also has the columns that
    identify an entry, except the key group, which follows from the key. `unless` may use all these names.
    """
    entry = ", ".join(f'"{column}"' for column in table.entry if column != "key_group")
    named = tuple(column for column in table.entry if column != "key_group")
    checked = checked_sql(changes, table, (*named, "checkpoint_id", "deleted"))
    # arg_max_null: arg_max would skip nulls, and return an older change.
    last = "".join(f", arg_max_null({value}, checkpoint_id) AS {name}" for name, value in values.items())
    return (
        f"SELECT * EXCLUDE (deleted) FROM (SELECT {entry}, arg_max_null(deleted, checkpoint_id) AS deleted{last} "  # noqa: S608
        f"FROM {checked} GROUP BY ALL) WHERE NOT deleted AND NOT {unless}"
    )
