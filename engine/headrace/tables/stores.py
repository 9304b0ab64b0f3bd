"""Opening of tables by URI: Delta on disks and object stores, or memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.errors import StorageError
from headrace.tables.delta_table import DeltaStore
from headrace.tables.files import Storage
from headrace.tables.memory_disk import is_in_memory
from headrace.tables.memory_table import MemoryStore
from headrace.tables.schemas import ALL_TABLES
from headrace.tables.store import TableMissingError, TableStore, storage_errors
from headrace.tables.view import TableView

ViewOf = Callable[[str], TableView]
"""Function that opens a state table by its name."""


def table_store(uri: str, storage: Storage = None) -> TableStore:
    """Return the store of a table. Read nothing yet."""
    return MemoryStore(uri) if is_in_memory(uri) else DeltaStore(uri, storage)


def state_view(job_folder: str, name: str, version: int, storage: Storage = None) -> TableView:
    """Return the rows of a job's state table at a version.

    Raises `StorageError` when the table is gone, or its log cannot be read.
    """
    uri = f"{job_folder}/{name}"
    try:
        with storage_errors(f"to read {uri}"):
            return TableView(ALL_TABLES[name], table_store(uri, storage).at(version))
    except TableMissingError as error:
        msg = (
            f"state table {uri} is gone, or its log is, but checkpoints name its version {version}. Bring the whole job folder "
            "back from a backup that is not older than the job's sinks."
        )
        raise StorageError(msg) from error


def state_views(job_folder: str, versions: Mapping[str, int], storage: Storage = None) -> ViewOf:
    """Return a function that opens the state tables of a job by name, each at its version."""
    return lambda name: state_view(job_folder, name, versions[name], storage)
