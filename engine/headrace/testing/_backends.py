"""Empty backends for a harness."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from headrace.state.backend import HashMapBackend, StateBackend
from headrace.state.key_groups import KeyGroupRange

BackendName = Literal["hashmap", "rocksdb", "delta"]

_CACHE_BYTES = 64 << 20


def open_backend(name: BackendName, folder: Path, max_parallelism: int) -> StateBackend:
    """An empty backend whose files are in `folder`. Libraries that the others need are not imported for `hashmap`."""
    if name == "hashmap":
        return HashMapBackend()
    from headrace.state.rocksdb import RocksDbBackend

    if name == "rocksdb":
        return RocksDbBackend(folder / "state")
    from headrace.checkpoint.delta_backend import DeltaBackend
    from headrace.checkpoint.job_tables import JobTables
    from headrace.state.state_cache import StateCache

    tables = str(folder / "tables")
    return DeltaBackend(
        tables,
        JobTables(tables, "harness", "harness").create(),
        "function",
        KeyGroupRange(0, max_parallelism - 1),
        StateCache(RocksDbBackend(folder / "cache"), _CACHE_BYTES),
        max_parallelism=max_parallelism,
    )
