"""Empty backends for a harness."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from headrace.names import did_you_mean
from headrace.state.backend import HashMapBackend, StateBackend
from headrace.state.key_groups import KeyGroupRange

BackendName = Literal["hashmap", "rocksdb", "delta"]

_CACHE_BYTES = 64 << 20


class DeferredBackend:
    """A backend that never answers at once, so that a test can watch single steps."""

    answers_at_once = False

    def __init__(self, backend: StateBackend) -> None:
        """Read from and write to `backend`."""
        self.get_many = backend.get_many
        self.write_batch = backend.write_batch
        self.scan = backend.scan
        self.items = backend.items
        self.visit = backend.visit
        self.may_have = backend.may_have
        self.scans_keys = backend.scans_keys
        self.close = backend.close


def check_backend(backend: BackendName | StateBackend) -> None:
    """Raise `ValueError` for an unknown name of a backend."""
    names = get_args(BackendName)
    if isinstance(backend, str) and backend not in names:
        msg = f"there is no backend '{backend}'{did_you_mean(backend, names)} (there are: {', '.join(names)})"
        raise ValueError(msg)


def new_backend(name: BackendName, folder: Path, max_parallelism: int) -> StateBackend:
    """Return an empty backend with its files in `folder`. For `hashmap` it imports no libraries of the others."""
    if name == "hashmap":
        return HashMapBackend()
    from headrace.state.rocksdb import RocksDbBackend

    if name == "rocksdb":
        return RocksDbBackend(folder / "state")
    from headrace.commit.job_tables import JobTables
    from headrace.state.state_cache import StateCache
    from headrace.tables.delta_backend import DeltaBackend

    tables = str(folder / "tables")
    return DeltaBackend(
        tables,
        JobTables(tables, "harness", "harness").create(),
        "function",
        KeyGroupRange(0, max_parallelism - 1),
        StateCache(RocksDbBackend(folder / "cache"), _CACHE_BYTES),
        max_parallelism=max_parallelism,
    )
