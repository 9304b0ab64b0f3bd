"""Broadcast state in its table: every task reads it, one task writes it."""

from __future__ import annotations

from headrace.state.broadcast_store import BROADCAST_KEY, BroadcastRow
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.tables.files import Storage
from headrace.tables.schemas import KEYED_STATE
from headrace.tables.stores import state_view


def broadcast_groups(max_parallelism: int) -> KeyGroupRange:
    """Return the key group of broadcast rows: the task of this key group writes them."""
    group = key_group(BROADCAST_KEY, max_parallelism)
    return KeyGroupRange(group, group)


def load_broadcast_state(
    job_folder: str, version: int, operator: str, max_parallelism: int, *, storage: Storage = None
) -> list[BroadcastRow]:
    """Return an operator's broadcast state at a version of `keyed_state`."""
    view = state_view(job_folder, KEYED_STATE, version, storage)
    rows = view.of(operator, broadcast_groups(max_parallelism), keys=[BROADCAST_KEY.decode()]).live_rows()
    return [
        BroadcastRow(row["state"], row["user_key"].encode(), row["value"].encode(), row["last_access"] or 0)
        for row in rows
    ]
