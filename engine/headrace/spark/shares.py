"""Shares of keyed tasks, read from the files in transit: the rows of their key groups, in arrival order, as Spark's shuffle has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.reports import BatchSettings
from headrace.spark.transit import ROWS_AT_ONCE, Takes, transit_schema
from headrace.state.key_groups import key_group_range
from headrace.tables.files import Storage, read_parquet


def read_transit(paths: Sequence[str], takes: Takes, storage: Storage) -> pa.Table:
    """Return all rows of files in transit to a keyed stage, unordered."""
    schema = transit_schema(takes)
    tables = [read_parquet(path, storage).cast(schema) for path in paths]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def share_of(rows: pa.Table, index: int, batch: BatchSettings) -> Iterator[pa.RecordBatch]:
    """Yield the rows of task `index`, sorted, in batches."""
    groups = key_group_range(index, batch.max_parallelism, batch.parallelism)
    column = rows["key_group"]
    share = rows.filter(pc.and_(pc.greater_equal(column, groups.first), pc.less_equal(column, groups.last)))
    share = share.combine_chunks()  # sorts one chunk in half of the time
    ordered = share if _is_sorted(share["order"].combine_chunks()) else share.sort_by("order")
    yield from ordered.to_batches(max_chunksize=ROWS_AT_ONCE)


def _is_sorted(orders: pa.Array) -> bool:
    """Return whether orders ascend already, as those of one source task do: to look is far cheaper than to sort rows."""
    return len(orders) < 2 or pc.all(pc.less_equal(orders[:-1], orders[1:])).as_py()  # noqa: PLR2004
