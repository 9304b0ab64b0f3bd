"""Storage that each branch of a job costs: its own files, and files of the job that vacuum spares for it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from headrace import clock
from headrace.commit.branch_state import lost_fork, problem_of
from headrace.commit.branches import Branch, Branches
from headrace.commit.log import CheckpointLog
from headrace.commit.unneeded_files import UnneededFiles
from headrace.commit.vacuum_intents import open_intents
from headrace.config import JobConfig
from headrace.tables.files import Usage, files_usage, folder_usage
from headrace.tables.store import storage_errors


@dataclass(frozen=True, slots=True)
class BranchUsage:
    """Storage that a branch costs at present."""

    branch: Branch
    age: int
    """Time since the branch was made (ms)."""
    own: Usage
    """Files in the folder of the branch."""
    held_back: Usage
    """Files of the job that a vacuum would delete if there were no branch, and that the fork of this one needs. Branches that have the
    same fork hold back the same files."""
    problem: str | None = None
    """Sentence on a branch that is half made, or whose fork cannot be read; None for others."""


def branch_usages(config: JobConfig) -> Sequence[BranchUsage]:
    """Return the cost of each open branch of a job, oldest first; empty if `config` is itself a branch's."""
    branches = Branches(config).open
    if not branches:
        return ()
    checkpoints = CheckpointLog(config.job_folder, config.storage_options).checkpoints
    unneeded = UnneededFiles(config, checkpoints, open_intents(config, checkpoints))
    without = unneeded.besides(()).files
    lost = {branch.name for branch in branches if lost_fork(config, branch) is not None}
    forks = {branch.fork_id for branch in branches if branch.name not in lost}
    held = {fork: without - unneeded.besides({fork}).files for fork in forks}
    return [_usage(config, branch, held.get(branch.fork_id, set())) for branch in branches]


def _usage(config: JobConfig, branch: Branch, held_back: Collection[str]) -> BranchUsage:
    storage = config.storage_options
    with storage_errors(f"to list files of branch '{branch.name}'"):
        own = folder_usage(config.on_branch(branch.name).job_folder, storage)
        return BranchUsage(
            branch=branch,
            age=clock.now() - branch.created_at,
            own=sum(own.values(), Usage()),
            held_back=files_usage(config.job_folder, held_back, storage),
            problem=problem_of(config, branch),
        )
