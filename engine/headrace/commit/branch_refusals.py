"""Refusals of commands on a branch, or on a job that has branches."""

from __future__ import annotations

from headrace.commit.branches import Branches
from headrace.commit.checkpoint import Checkpoint
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.stages import Plan, waits_of


def refuse_on_branch(config: JobConfig, what: str) -> None:
    """Raise `ConfigError` if `config` is that of a branch. `what` completes "cannot …": "erase a key"."""
    if config.branch is not None:
        msg = (
            f"branch '{config.branch}' of job '{config.job}' cannot {what}: its tables build on those of the job. Nothing was changed. "
            f"Do it with the job itself (without --branch), or drop the branch."
        )
        raise ConfigError(msg)


def fork_anew(config: JobConfig) -> str:
    """Return how to replace a branch that no longer fits its job."""
    job, name = config.job, config.branch
    return f"Drop it, and begin it again: headrace branch drop {job} {name}, then headrace branch create {job} {name}."


def refuse_with_branches(config: JobConfig, what: str, done: str | None = None) -> None:
    """Raise `ConfigError` if the job has branches. `what` begins the message: "no key can be erased"; `done` is what is committed already."""
    state = "Nothing was changed." if done is None else f"{done}; run the command again afterwards."
    if names := [branch.name for branch in Branches(config).open]:
        msg = (
            f"{what} while job '{config.job}' has branches ({', '.join(names)}): they keep rows of their own, and those of their forks. "
            f"{state} Drop them first: headrace branch drop {config.job} {names[0]}"
        )
        raise ConfigError(msg)


def refuse_effects(config: JobConfig, plan: Plan) -> None:
    """Raise `ConfigError` if `config` is that of a branch, and an operator calls a service with effects outside.

    A service whose answers are kept is not called on the branch: see `headrace.commit.live_answers`.
    """
    if config.branch is None:
        return
    for wait in waits_of(plan):
        service = None if wait.service is None else config.services[wait.service]
        if service is not None and service.effects and not service.takes_answers:
            msg = (
                f"operator '{wait.name}' calls service '{wait.service}', which has effects outside (services.{wait.service}.effects), "
                f"and branch '{config.branch}' would repeat them. Nothing was run. If they do no harm, run it with --allow-effects."
            )
            raise ConfigError(msg)


def refuse_without_state(config: JobConfig, checkpoint: Checkpoint) -> None:
    """Raise `ConfigError` for a checkpoint without state in this line's tables: before a branch's fork, or brought by a promotion."""
    if checkpoint.has_state:
        return
    if config.branch is None:
        msg = (
            f"checkpoint {checkpoint.checkpoint_id} was made on a branch, and the promotion of that branch did not keep its state. "
            f"Ask for the checkpoint of the promotion, or a later one; 'headrace checkpoints {config.job}' lists all."
        )
    else:
        msg = (
            f"checkpoint {checkpoint.checkpoint_id} is before the fork of branch '{config.branch}', and its state is in the tables of "
            f"job '{config.job}' itself: ask without --branch"
        )
    raise ConfigError(msg)
