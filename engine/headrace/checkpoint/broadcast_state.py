"""Broadcast state and held broadcast records in their tables: every task reads them, one task writes them."""

from __future__ import annotations

import pyarrow as pa

from headrace.checkpoint._compaction import live_entries
from headrace.checkpoint._delta import Options, open_table, read
from headrace.checkpoint.tables import KEYED_STATE, STATE_TABLES
from headrace.state.broadcast_store import BROADCAST_KEY, BroadcastRow
from headrace.state.key_groups import KeyGroupRange, key_group


def broadcast_groups(max_parallelism: int) -> KeyGroupRange:
    """Return the key group of broadcast rows: the task that owns it stores them."""
    group = key_group(BROADCAST_KEY, max_parallelism)
    return KeyGroupRange(group, group)


def load(
    job_folder: str, version: int, operator: str, max_parallelism: int, *, storage: Options = None
) -> list[BroadcastRow]:
    """Return an operator's broadcast state as of a version of `keyed_state`."""
    table = open_table(f"{job_folder}/{KEYED_STATE}", version=version, storage=storage)
    group, _ = broadcast_groups(max_parallelism)
    predicate = f"operator = '{operator}' AND key_group = {group} AND key = '{BROADCAST_KEY.decode()}'"
    rows = live_entries(read(table, STATE_TABLES[KEYED_STATE].schema, predicate=predicate), KEYED_STATE)
    stamps = rows["last_access"].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64()).to_pylist()
    columns = (rows[name].to_pylist() for name in ("state", "user_key", "value"))
    return [
        BroadcastRow(state, user_key.encode(), value.encode(), stamp or 0)
        for state, user_key, value, stamp in zip(*columns, stamps, strict=True)
    ]
