"""Vacuum: deleting files that no checkpoint within retention needs, and no savepoint ever."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from pyarrow import fs

from headrace import clock, faults
from headrace.commit.branches import Branches
from headrace.commit.checkpoint import Checkpoint
from headrace.commit.landed_cleanup import unneeded_landed
from headrace.commit.log import CheckpointLog
from headrace.commit.log_cleanup import KeptCheckpoints, LogCleanup, LogCut
from headrace.commit.protocol import open_job
from headrace.commit.vacuum_intents import INTENTS, VacuumIntent, commit_intent, complete, open_intents
from headrace.config import JobConfig
from headrace.sources.landed import LANDED
from headrace.tables.files import file_system, path_of
from headrace.tables.schemas import CHECKPOINTS, STATE_TABLES
from headrace.tables.store import LOG, storage_errors
from headrace.tables.stores import state_view

_HOUR = 3_600_000


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Delete files older than the retention that no kept checkpoint names; return their paths.

    Kept are the checkpoints that were the last one at some time within `retention.hours`, all savepoints, and the forks of all
    branches. Entries of the
    tables' logs that no kept checkpoint needs are files, too, and so are rows of `checkpoints` that a compaction has
    replaced. The list of files is committed before the first of them is deleted (see `vacuum_intents`). Files that an
    earlier vacuum has committed and not deleted are deleted as well. With `dry_run` nothing is written. Raises
    `FencedError` when another run holds the job or takes it before the commit; then nothing is deleted.
    """
    if dry_run:
        log = CheckpointLog(config.job_folder, config.storage_options)
        log.resolve(config)
        return _uris(config, _unneeded(config, log.checkpoints, (), _forks(config)).files)
    forks = _forks(config)
    with open_job(config, run_id) as job:
        intents = open_intents(config, job.checkpoints)
        files, logs, cuts = _unneeded(config, job.checkpoints, intents, forks)
        faults.reached("vacuum.listed")
        if files or intents:
            logs.keep(cuts)
        if files:
            commit_intent(job, files)
            intents = open_intents(config, job.checkpoints)
    faults.reached("vacuum.committed")
    listed = {file for intent in intents for file in intent.files}
    spared = _needed_by_branches(config, listed, forks)
    for intent in intents:
        complete(config, intent, spared)
    return _uris(config, listed - spared)


class _Unneeded(NamedTuple):
    """Files that may be deleted, relative to the job's folder, and what has to be done to the logs before that."""

    files: set[str]
    logs: LogCleanup
    cuts: Sequence[LogCut]


def _forks(config: JobConfig) -> set[int]:
    """Return the checkpoints that the job's branches build on."""
    return {branch.fork_id for branch in Branches(config).open}


def _needed_by_branches(config: JobConfig, listed: Collection[str], known: Collection[int]) -> set[str]:
    """Return the files of the fork of each branch, and the tables' logs as well if there is one that was made since the files were `listed`.

    The logs are independent of what is before a fork that is `known`: see `LogCleanup.keep`.
    """
    branches = Branches(config).open
    needed: set[str] = set()
    for branch in branches:
        for name, version in branch.versions.items():
            view = state_view(config.job_folder, name, version, config.storage_options)
            needed |= {f"{name}/{file}" for file in view.files()}
    if any(branch.fork_id not in known for branch in branches):
        needed |= {file for file in listed if f"/{LOG}/" in file}
    return needed


def _unneeded(
    config: JobConfig, checkpoints: Sequence[Checkpoint], intents: Sequence[VacuumIntent], forks: set[int]
) -> _Unneeded:
    """Return the files that no kept checkpoint needs and no intent names."""
    oldest = clock.now() - config.retention.hours * _HOUR
    kept = KeptCheckpoints.of(checkpoints, oldest, forks)
    logs = LogCleanup(config, kept, oldest)
    cuts = [*logs.cuts()]
    unneeded = {file for cut in cuts for file in cut.files}
    unneeded |= _old_files(config, CHECKPOINTS, oldest) - logs.checkpoint_files()
    for name in STATE_TABLES:
        unneeded |= _old_files(config, name, oldest) - _needed_files(config, name, kept)
    # Attempts that died left these between their stages; outputs were published; an intent's commit failed.
    for folder in ("transit", "outputs", INTENTS):
        unneeded |= _old_files(config, folder, oldest, recursive=True)
    unneeded |= unneeded_landed(_old_files(config, LANDED, oldest, recursive=True), kept, checkpoints[-1])
    unneeded -= {file.path for files in checkpoints[-1].outputs.values() for file in files}
    return _Unneeded(unneeded.difference(*({intent.path, *intent.files} for intent in intents)), logs, cuts)


def _needed_files(config: JobConfig, name: str, kept: KeptCheckpoints) -> set[str]:
    """Return the files of a state table at all kept checkpoints."""
    views = [state_view(config.job_folder, name, version, config.storage_options) for version in kept.versions(name)]
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
