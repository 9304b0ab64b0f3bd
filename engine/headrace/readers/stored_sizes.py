"""How many rows the state tables of a job store, and the bytes of their files, by the statistics in the tables' logs.

No file of rows is opened. A task writes a file of its own for each operator, so that the statistics of the file name the operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint
from headrace.readers.query import reading
from headrace.tables.schemas import TIMERS

SEVERAL: Final = "several operators"
"""Stands for the operator of a file with rows of several ones, or whose log does not tell."""


def stored_sizes(job: JobAtCheckpoint) -> dict[str, tuple[int, int]] | None:
    """Return the stored rows of state, timers and histories, and the bytes of their files, by operator.

    Returns None where a log lacks the number of rows of a file. Raises `StorageError` when the storage refuses, or when a log no longer has
    the version.
    """
    sizes: dict[str, tuple[int, int]] = {}
    for file in (file for name in (*WITH_STATE, TIMERS) for file in _files(job, name)):
        if file["num_records"] is None:
            return None
        rows, size = sizes.get(operator := _operator_of(file), (0, 0))
        sizes[operator] = (rows + file["num_records"], size + file["size_bytes"])
    return sizes


def _files(job: JobAtCheckpoint, name: str) -> Iterator[dict[str, Any]]:
    """Yield the files of a state table, with their statistics; none of a table that the checkpoint does not record."""
    version = job.checkpoint.versions.get(name)
    if version is None:
        return
    uri = f"{job.config.job_folder}/{name}"
    with reading(uri, version, job.config.job):
        actions = job.snapshot(uri, version).add_actions()
    wanted = ("num_records", "size_bytes", "min.operator", "max.operator")
    yield from actions.select([column for column in wanted if column in actions.schema.names]).to_pylist()


def _operator_of(file: dict[str, Any]) -> str:
    first, last = file.get("min.operator"), file.get("max.operator")
    return SEVERAL if first is None or first != last else str(first)
