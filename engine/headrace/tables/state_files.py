"""Layout of rows in the files of the state tables: a look-up of a few keys should read little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tables.files import LateValues, ParquetLayout, StagedFile, Storage, stage
from headrace.tables.schemas import ALL_TABLES, ANSWERS, KEYED_STATE, TIMERS

ROWS_PER_GROUP = 16_384
"""Rows per row group: a look-up of one key reads at least one. A quarter of it makes reading a whole table a third slower."""

_NEVER_TWICE = frozenset(
    {
        "key",
        "user_key",
        "value",
        "last_access",
        "expires_at",
        "timestamp",
        "upsert_key",
        "row",
        "inserted_at",
        "record",
        "element",
        "digest",
        "position",
        "ordinal",
    }
)


_SORTED_BY = {TIMERS: "timestamp", ANSWERS: "ordinal"}
_WITHIN_KEY = ("state", "namespace", "user_key")
"""Sort columns within a key: so a page of a list or map is in few row groups."""


def sort_column(table: str) -> str:
    """Return the column by which an operator's rows are sorted in each file, before `key`.

    Timers are looked up by time, answers by place of arrival, everything else by key.
    """
    return _SORTED_BY.get(table, "key_group")


def parts(table: str, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a state table in parts, one for each file; no empty parts.

    Timers of different domains are in different files, so a look-up in one domain reads nothing of the others.
    """
    if table != TIMERS:
        divided = [rows]
    else:
        divided = [rows.filter(pc.equal(rows["domain"], domain)) for domain in pc.unique(rows["domain"])]
    yield from (part for part in divided if part.num_rows)


def stage_state(
    job_folder: str,
    table: str,
    name: str,
    rows: pa.Table,
    storage: Storage = None,
    *,
    values: Sequence[bytes | None] | None = None,
) -> StagedFile:
    """Sort rows of a state table and stage them as a file. Raises `StorageError` when the storage refuses.

    `values`, if given, replace the rows' column `value`: they become a column only when their row group is written.
    """
    wanted = ["operator", sort_column(table), "key"]
    if table == KEYED_STATE and rows["user_key"].null_count < rows.num_rows:
        wanted += _WITHIN_KEY
    names = [column for column in wanted if column in rows.schema.names]
    order = pc.sort_indices(rows.select(names), [(column, "ascending") for column in names])
    layout = _layout(table)
    if values is not None:
        layout = replace(layout, late_values=LateValues(values, order))
    return stage(f"{job_folder}/{table}", name, rows.take(order), storage, layout=layout)


def _layout(table: str) -> ParquetLayout:
    # A look-up spends its time on decoding: with lz4 and plain texts it needs a quarter less CPU than with zstd and
    # dictionaries (`make bench-state-look-ups`). The files are half as large again, but compaction keeps the tables small.
    names = ALL_TABLES[table].schema.names
    dictionary = [name for name in names if name not in _NEVER_TWICE]
    return ParquetLayout(compression="lz4", dictionary=dictionary, rows_per_group=ROWS_PER_GROUP)
