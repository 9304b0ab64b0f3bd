"""Stored rows of one operator, table by table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.broadcast_store import BROADCAST_KEY
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.schemas import QUARANTINE, STATE_TABLES
from headrace.tables.stores import ViewOf

STATE_OF_OPERATORS = tuple(name for name in STATE_TABLES if name != QUARANTINE)
"""Tables that hold an operator's state, waiting elements and held records. `quarantine` has the input that it set aside."""


def live_chunks(
    view_of: ViewOf, table: str, operator: str, max_parallelism: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the live rows of an operator in one table, by ranges of key groups; nothing if the table has no files."""
    for part in view_of(table).of(operator).ranges(KeyGroupRange.all_of(max_parallelism)):
        yield part.live(columns)


def count_rows(view_of: ViewOf, operator: str, max_parallelism: int, tables: Iterable[str]) -> dict[str, int]:
    """Return the number of live rows of an operator by table, without zeros."""
    counts = {
        table: sum(rows.num_rows for rows in live_chunks(view_of, table, operator, max_parallelism, ["key"]))
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}


def has_keyed_rows(view_of: ViewOf, operator: str, max_parallelism: int) -> bool:
    """Return whether an operator has rows with a key. Broadcast state has none."""
    return any(
        pc.any(pc.not_equal(rows["key"], BROADCAST_KEY.decode())).as_py()
        for table in STATE_OF_OPERATORS
        for rows in live_chunks(view_of, table, operator, max_parallelism, ["key"])
    )
