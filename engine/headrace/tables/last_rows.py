"""Rule that computes state from changes: the last row of an entry, by checkpoint id, is its state, unless it is deleted.

A checkpoint writes at most one row of an entry, so the last row is unique. The rule is implemented twice, for rows in memory and
as SQL for DuckDB; a test checks that both agree.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tables.schemas import StateTable
from headrace.tables.stored_rows import checked_sql

_PLACE = "_place"


def last_rows(changes: pa.Table, table: StateTable, *, keeps_deleted: bool = False) -> pa.Table:
    """Return the last row of each entry that is not deleted, oldest change first. `changes` must have the entry's columns.

    With `keeps_deleted`, return the last rows of deleted entries as well.
    """
    ordered = in_order(changes)
    if ordered.num_rows == 0:
        return ordered
    places = ordered.select(list(table.entry)).append_column(_PLACE, pa.arange(0, ordered.num_rows))
    last = places.group_by(list(table.entry)).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"]
    latest = ordered.take(last.take(pc.sort_indices(last)))
    return latest if keeps_deleted else latest.filter(pc.invert(latest["deleted"]))


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
