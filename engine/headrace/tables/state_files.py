"""How rows lie in the files of the state tables: so that a look-up of a few keys reads little of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from headrace.tables.files import ParquetLayout, StagedFile, Storage, stage
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS

ROWS_PER_GROUP = 16_384
"""What is read at least for one key. A quarter of it makes reading a whole table a third slower."""

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
    }
)


_WITHIN_KEY = ("state", "namespace", "user_key")
"""How lists and maps of one key are sorted: a page of one is then found in few groups of rows."""


def sort_column(table: str) -> str:
    """The column by which an operator's rows are sorted in each file, before `key`.

    Timers are asked for by time, everything else by key.
    """
    return "timestamp" if table == TIMERS else "key_group"


def parts(table: str, rows: pa.Table) -> Iterator[pa.Table]:
    """Rows of a state table, a part for each file; nothing for none.

    Timers of different domains lie in different files: who looks for one kind then reads nothing of the other.
    """
    if table != TIMERS:
        found = [rows]
    else:
        found = [rows.filter(pc.equal(rows["domain"], domain)) for domain in pc.unique(rows["domain"])]
    yield from (part for part in found if part.num_rows)


def stage_state(job_folder: str, table: str, name: str, rows: pa.Table, storage: Storage = None) -> StagedFile:
    """Stage rows of a state table, sorted; see `headrace.tables.files.stage`."""
    wanted = ["operator", sort_column(table), "key"]
    if table == KEYED_STATE and rows["user_key"].null_count < rows.num_rows:
        wanted += _WITHIN_KEY
    order = [(column, "ascending") for column in wanted if column in rows.schema.names]
    return stage(f"{job_folder}/{table}", name, rows.sort_by(order), storage, layout=_layout(table))


def _layout(table: str) -> ParquetLayout:
    # A look-up spends its time on unpacking: with lz4 and plain texts it costs a quarter less CPU than with zstd and
    # dictionaries. That takes half more space, in tables that compaction keeps small (`make bench-state-look-ups`).
    names = STATE_TABLES[table].schema.names
    dictionary = [name for name in names if name not in _NEVER_TWICE]
    return ParquetLayout(compression="lz4", dictionary=dictionary, rows_per_group=ROWS_PER_GROUP)
