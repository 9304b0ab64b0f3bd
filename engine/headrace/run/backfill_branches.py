"""Branches of backfills: the interval of each, and the choice of the branch that a new request continues."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from headrace.config import JobConfig, checked_name
from headrace.errors import ConfigError
from headrace.log.branches import Branch, Branches
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import position_of
from headrace.log.lineage import Lineage
from headrace.sources.interval import Interval, timestamp_text

_DAY: Final = 86_400_000


def backfill_note(requested: Interval) -> str:
    """Return the note of a backfill's branch."""
    return f"backfill of {requested}"


def default_name(requested: Interval) -> str:
    """Return the default name of a backfill's branch: `backfill_20130110_20130111`, with times unless both are midnights."""
    pattern = "%Y%m%d" if requested.start % _DAY == requested.end % _DAY == 0 else "%Y%m%dt%H%M%S"
    return "_".join(
        [
            "backfill",
            *(datetime.fromtimestamp(at / 1000, UTC).strftime(pattern) for at in (requested.start, requested.end)),
        ]
    )


def union(requested: Interval, other: Interval | None) -> Interval:
    """Return the interval from the earlier start to the later end."""
    return requested if other is None else Interval(min(requested.start, other.start), max(requested.end, other.end))


def name_of_open_backfill(config: JobConfig) -> str | None:
    """Return the name of the branch of a job's open backfill; None without one. A job has one at most."""
    return next((branch.name for branch in Branches(config).open if branch.requested is not None), None)


def open_branch(config: JobConfig, name: str) -> Branch | None:
    """Return the open branch with this name if a backfill made it; else None."""
    branches = (branch for branch in Branches(config).open if branch.name == name)
    return next((branch for branch in branches if branch.requested is not None), None)


def interrupted_renewal(config: JobConfig, name: str) -> Interval | None:
    """Return the interval of a branch that was dropped for a new fork which was never created. Else None."""
    dropped = Branches(config).dropped(name)
    return None if dropped is None else dropped.requested


def begins_behind(branch: Branch, requested: Interval, lineage: Sequence[Checkpoint]) -> bool:
    """Return whether a backfill's branch cannot take in an interval: it begins after the start, or its fork is off the job's `lineage`."""
    theirs = branch.requested
    begins_at = None if theirs is None else _begins_at(branch, theirs, lineage)
    return begins_at is None or requested.start < begins_at


def joined_branch(
    config: JobConfig, name: str, requested: Interval, lineage: Sequence[Checkpoint], *, replaced: Branch | None = None
) -> Branch | None:
    """Return the open branch that a backfill continues; None if it makes or replaces one. `lineage` is the job's.

    A backfill replays everything up to the live head, so two of them always overlap. Raises `ConfigError` when another backfill
    is open, and when the branch with that name was not made by a backfill, begins after the start of `requested`, or begins at a
    checkpoint that a restore has left behind.
    """
    checked_name(name, "branch name")
    branches = Branches(config).open
    joined = next((branch for branch in branches if branch.name == name), None)
    for other in branches:
        if other is not joined and (theirs := other.requested) is not None:
            begins_at = _begins_at(other, theirs, lineage)
            join = (
                f"go on with it: 'headrace backfill {config.job} --from {timestamp_text(requested.start)} --to {timestamp_text(requested.end)} "
                f"--name {other.name}'; or "
            )
            msg = (
                f"a backfill of {theirs} is open on branch '{other.name}', and both would run everything up to the last checkpoint. Nothing was "
                f"changed. Promote it first; {join if begins_at is not None and begins_at <= requested.start else 'or '}drop it: 'headrace "
                f"branch drop {config.job} {other.name}'."
            )
            raise ConfigError(msg)
    if joined is None or joined == replaced:
        return None
    theirs = joined.requested
    drop = f"'headrace branch drop {config.job} {name}' removes it"
    if theirs is None:
        msg = f"branch '{name}' of job '{config.job}' exists already, and no backfill made it. Nothing was changed. Give another --name; {drop}."
        raise ConfigError(msg)
    begins_at = _begins_at(joined, theirs, lineage)
    if begins_at is None:
        raise left_behind(config, name, joined.fork_id)
    if requested.start < begins_at:
        msg = (
            f"branch '{name}' begins at {timestamp_text(begins_at)}, after the start of interval {requested}. Nothing was changed. {drop}; then run the "
            "backfill again."
        )
        raise ConfigError(msg)
    return joined


def left_behind(config: JobConfig, name: str, fork_id: int) -> ConfigError:
    """Return the error for a branch whose fork is no longer on the job's lineage."""
    return ConfigError(
        f"branch '{name}' begins at checkpoint {fork_id}, which a later restore or promotion of job '{config.job}' has left behind. "
        f"The live tables were not changed. 'headrace branch drop {config.job} {name}' removes it; then run the backfill again."
    )


def _begins_at(branch: Branch, requested: Interval, lineage: Sequence[Checkpoint]) -> int | None:
    """Return the timestamp from which a backfill's branch takes in input again (ms); None if its fork is off the job's `lineage`."""
    if branch.fork_id not in {checkpoint.checkpoint_id for checkpoint in lineage}:
        return None
    stands_at = position_of(Lineage(lineage, branch.fork_id).checkpoints)
    return requested.start if stands_at is None else stands_at
