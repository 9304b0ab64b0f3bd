"""State of a branch that no command may pass over: half made, or without the files that it begins with."""

from __future__ import annotations

from headrace.commit.branches import Branch, Branches
from headrace.commit.log import CheckpointLog
from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.tables.store import StoreError, TableMissingError, storage_errors
from headrace.tables.stores import table_store


def problem_of(config: JobConfig, branch: Branch) -> str | None:
    """Return a sentence on a branch that is half made, or whose fork cannot be read, with the command that mends it; None for others.

    `config` is the job's. Raises `StorageError` when the storage refuses.
    """
    lost = lost_fork(config, branch)
    if lost is not None:
        return _about_lost(config, branch, lost)
    if CheckpointLog(config.on_branch(branch.name).job_folder, config.storage_options).checkpoints:
        return None
    return (
        f"branch '{branch.name}' of job '{config.job}' is half made: the command that makes it was interrupted, or is still at work. "
        f"'headrace branch create {config.job} {branch.name}' finishes it, 'headrace branch drop {config.job} {branch.name}' removes it."
    )


def lost_fork(config: JobConfig, branch: Branch) -> str | None:
    """Return a clause on the first table that cannot be read as it was at a branch's fork; None if all can."""
    for table, version in branch.versions.items():
        with storage_errors(f"to read {table} as branch '{branch.name}' needs it"):
            try:
                table_store(f"{config.job_folder}/{table}", config.storage_options).at(version).files()
            except (StoreError, TableMissingError) as error:
                return f"version {version} of {table} cannot be read ({error})"
    return None


def readable_branches(config: JobConfig) -> list[Branch]:
    """Return the open branches of a job. Raises `StorageError` if the fork of one cannot be read: nobody knows which files it needs."""
    branches = [*Branches(config).open]
    for branch in branches:
        if (lost := lost_fork(config, branch)) is not None:
            raise StorageError(_about_lost(config, branch, lost))
    return branches


def _about_lost(config: JobConfig, branch: Branch, lost: str) -> str:
    return (
        f"branch '{branch.name}' of job '{config.job}' begins at checkpoint {branch.fork_id}, and its files there are gone: {lost}. Nothing was "
        f"deleted. 'headrace branch drop {config.job} {branch.name}' removes the branch; then run the command again."
    )
