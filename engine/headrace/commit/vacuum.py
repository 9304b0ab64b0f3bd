"""Vacuum: delete files that no checkpoint within the retention and no savepoint needs."""

from __future__ import annotations

from collections.abc import Collection

from headrace import faults
from headrace.commit.branch_state import readable_branches
from headrace.commit.landed_cleanup import is_needed_by_branch
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import open_job
from headrace.commit.unneeded_files import UnneededFiles
from headrace.commit.vacuum_intents import commit_intent, complete, open_intents
from headrace.config import JobConfig
from headrace.sources.landed import LANDED
from headrace.tables.store import LOG
from headrace.tables.stores import state_view


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Delete files older than the retention that no kept checkpoint names; return their paths.

    Keeps checkpoints that were the last one at some time within `retention.hours`, all savepoints, and the forks of
    all branches. Also deletes entries of tables' logs that no kept checkpoint needs, files of `checkpoints` that a
    compaction has replaced, and files that an earlier vacuum has committed and not deleted. The list of files is
    committed before the first file is deleted (see `vacuum_intents`). With `dry_run`, does not write. Raises
    `FencedError` when another run holds the job or takes it before the commit, and `StorageError` when the fork of a branch
    cannot be read any more; then nothing is deleted.
    """
    if dry_run:
        log = CheckpointLog(config.job_folder, config.storage_options)
        log.resolve(config)
        return _uris(config, UnneededFiles(config, log.checkpoints, ()).besides(_forks(config)).files)
    forks = _forks(config)
    with open_job(config, run_id) as job:
        intents = open_intents(config, job.checkpoints)
        files, logs, cuts = UnneededFiles(config, job.checkpoints, intents).besides(forks)
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


def _forks(config: JobConfig) -> set[int]:
    """Return the checkpoints that the job's branches build on. Raises `StorageError` if one cannot be read any more."""
    return {branch.fork_id for branch in readable_branches(config)}


def _needed_by_branches(config: JobConfig, listed: Collection[str], known: Collection[int]) -> set[str]:
    """Return the files that the forks of branches need, and all log entries if a branch was made since the files were `listed`.

    For forks that are `known`, the logs do not depend on earlier entries: see `LogCleanup.keep`.
    """
    branches = readable_branches(config)
    needed: set[str] = set()
    for branch in branches:
        for name, version in branch.versions.items():
            view = state_view(config.job_folder, name, version, config.storage_options)
            needed |= {f"{name}/{file}" for file in view.files()}
    if any(branch.fork_id not in known for branch in branches):
        needed |= {file for file in listed if f"/{LOG}/" in file}
        log, forks = CheckpointLog(config.job_folder, config.storage_options), {branch.fork_id for branch in branches}
        forked = [checkpoint for checkpoint in log.checkpoints if checkpoint.checkpoint_id in forks]
        landed = (file for file in listed if file.startswith(f"{LANDED}/"))
        needed |= {file for file in landed if any(is_needed_by_branch(file, fork) for fork in forked)}
    return needed


def _uris(config: JobConfig, files: set[str]) -> list[str]:
    return [f"{config.job_folder}/{file}" for file in sorted(files)]
