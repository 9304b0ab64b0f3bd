"""Vacuum: deleting files that no checkpoint within retention needs, and no savepoint ever."""

from __future__ import annotations

from collections.abc import Sequence

from pyarrow import fs

from headrace import clock, faults
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import open_job
from headrace.commit.vacuum_intents import INTENTS, VacuumIntent, commit_intent, complete, open_intents
from headrace.config import JobConfig
from headrace.tables.files import file_system, path_of
from headrace.tables.schemas import STATE_TABLES
from headrace.tables.store import storage_errors
from headrace.tables.stores import state_view

_HOUR = 3_600_000


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Delete files older than the retention that no kept checkpoint names; return their paths.

    Kept are the last checkpoint, those younger than `retention.hours`, and all savepoints. The list of files is committed
    before the first of them is deleted (see `vacuum_intents`). Files that an earlier vacuum has committed and not deleted
    are deleted as well. With `dry_run` nothing is written. Raises `FencedError` when another run holds the job or takes it
    before the commit; then nothing is deleted.
    """
    if dry_run:
        log = CheckpointLog(config.job_folder, config.storage_options)
        return _uris(config, _unneeded(config, log.resolve(config), log.checkpoints, ()))
    with open_job(config, run_id) as job:
        intents = open_intents(config, job.checkpoints)
        files = _unneeded(config, job.last, job.checkpoints, intents)
        faults.reached("vacuum.listed")
        if files:
            commit_intent(job, files)
            intents = open_intents(config, job.checkpoints)
    faults.reached("vacuum.committed")
    for intent in intents:
        complete(config, intent)
    return _uris(config, {file for intent in intents for file in intent.files})


def _unneeded(
    config: JobConfig, last: Checkpoint, checkpoints: Sequence[Checkpoint], intents: Sequence[VacuumIntent]
) -> set[str]:
    """Return the files that no kept checkpoint needs and no intent names, relative to the job's folder."""
    oldest = clock.now() - config.retention.hours * _HOUR
    kept = [checkpoint for checkpoint in checkpoints if checkpoint is last or _is_kept(checkpoint, oldest)]
    unneeded: set[str] = set()
    for name in STATE_TABLES:
        unneeded |= _old_files(config, name, oldest) - _needed_files(config, name, kept)
    # Attempts that died left these between their stages; outputs were published; an intent's commit failed.
    for folder in ("transit", "outputs", INTENTS):
        unneeded |= _old_files(config, folder, oldest, recursive=True)
    unneeded -= {file.path for files in last.outputs.values() for file in files}
    return unneeded.difference(*({intent.path, *intent.files} for intent in intents))


def _is_kept(checkpoint: Checkpoint, oldest: int) -> bool:
    return checkpoint.kind is Kind.SAVEPOINT or checkpoint.committed_at >= oldest


def _needed_files(config: JobConfig, name: str, kept: Sequence[Checkpoint]) -> set[str]:
    """Return the files of a state table at all kept checkpoints."""
    versions = {checkpoint.versions[name] for checkpoint in kept}
    views = [state_view(config.job_folder, name, version, config.storage_options) for version in versions]
    with storage_errors(f"to read {config.job_folder}/{name}"):
        return {f"{name}/{file}" for view in views for file in view.files()}


def _old_files(config: JobConfig, name: str, oldest: int, *, recursive: bool = False) -> set[str]:
    """Return the Parquet files in a folder of the job that were written before `oldest` (ms)."""
    store, root = file_system(config.job_folder, config.storage_options)
    selector = fs.FileSelector(f"{root}/{name}", allow_not_found=True, recursive=recursive)
    with storage_errors(f"to list the files in {config.job_folder}/{name}"):
        return {
            path.removeprefix(f"{root}/")
            for file in store.get_file_info(selector)
            if (path := path_of(file)) is not None and path.endswith(".parquet") and file.mtime_ns < oldest * 1_000_000
        }


def _uris(config: JobConfig, files: set[str]) -> list[str]:
    return [f"{config.job_folder}/{file}" for file in sorted(files)]
