"""Vacuum: removing files that no checkpoint within retention needs, and no savepoint ever."""

from __future__ import annotations

from collections.abc import Iterator

from pyarrow import fs

from engine import clock
from engine.checkpoint._delta import open_table
from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.checkpoint.files import file_system
from engine.checkpoint.open_job import OpenJob, open_job
from engine.checkpoint.tables import STATE_TABLES
from engine.config import JobConfig

_HOUR = 3_600_000


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Remove files older than the retention that no kept checkpoint names; return their paths.

    Kept are the last checkpoint, those younger than `retention.hours`, and all savepoints. With `dry_run` nothing is removed.
    """
    with open_job(config, run_id) as job:
        store, folder = file_system(config.job_folder, config.storage_options)
        unneeded = list(_unneeded(job, store, folder))
        if not dry_run:
            for path in unneeded:
                store.delete_file(path)
    return [config.job_folder + path.removeprefix(folder) for path in unneeded]


def _unneeded(job: OpenJob, store: fs.FileSystem, folder: str) -> Iterator[str]:
    oldest = clock.now() - job.config.retention.hours * _HOUR
    kept = [checkpoint for checkpoint in job.log.checkpoints if _is_kept(checkpoint, job, oldest)]
    for name in STATE_TABLES:
        versions = {checkpoint.versions[name] for checkpoint in kept} | {job.versions[name]}
        needed = {file for version in versions for file in _files(job, name, version)}
        for path in _old_files(store, f"{folder}/{name}", oldest):
            if path.rpartition("/")[2] not in needed:
                yield path
    # What dead attempts left between their stages, and outputs that were published long ago.
    due = {f"{folder}/{file.path}" for files in job.last.outputs.values() for file in files}
    for between in ("transit", "outputs"):
        for path in _old_files(store, f"{folder}/{between}", oldest, recursive=True):
            if path not in due:
                yield path


def _old_files(store: fs.FileSystem, folder: str, oldest: int, *, recursive: bool = False) -> Iterator[str]:
    """Parquet files that were written before `oldest` (ms)."""
    for file in store.get_file_info(fs.FileSelector(folder, allow_not_found=True, recursive=recursive)):
        if file.extension == "parquet" and file.mtime_ns < oldest * 1_000_000:
            yield file.path


def _is_kept(checkpoint: Checkpoint, job: OpenJob, oldest: int) -> bool:
    return (
        checkpoint.kind is Kind.SAVEPOINT
        or checkpoint.checkpoint_id == job.last.checkpoint_id
        or checkpoint.committed_at >= oldest
    )


def _files(job: OpenJob, name: str, version: int) -> set[str]:
    table = open_table(job.tables.uri(name), version=version, storage=job.config.storage_options)
    return {uri.rpartition("/")[2] for uri in table.file_uris()}
