"""Corrected input of a backfill: the intervals that it can take the place of, and the branch that reads it.

It takes the place of whole micro-batches, so a plan is refused where these hold more than the requested interval, or less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.config import JobConfig
from headrace.errors import ConfigError, IntervalError, SourceError
from headrace.log.branches import Branch
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import intervals_of, position_of
from headrace.plan.stages import Plan
from headrace.run.replay import Part
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.registry import corrected_input
from headrace.sources.source import TakenIn


def check_corrections(
    config: JobConfig,
    plan: Plan,
    requested: Interval,
    lineage: Sequence[Checkpoint],
    *,
    intake: Intake,
    parts: Sequence[Part],
) -> None:
    """Refuse corrected input of a new branch that would take the place of something else than the `requested` interval.

    `intake` has listed the sources; `parts` are those of the whole replay. Raises `ConfigError` for a source with a Spark transform, `SourceError` for a place without rows of the
    interval, else `IntervalError`.
    """
    _refuse_transformed(plan, config.replay.sources)
    _refuse_other_intervals(config, requested, parts)
    _refuse_read_ahead(config, intake, requested, lineage)
    _refuse_without_files(config, plan, requested)


def refuse_more_than_corrected(config: JobConfig, branch: Branch, requested: Interval) -> None:
    """Raise `ConfigError` where the branch has corrected input, and was made for less than `requested`: the rest would be read uncorrected."""
    if branch.requested is not None and not branch.requested.contains(requested):
        msg = (
            f"branch '{branch.name}' of job '{config.job}' reads corrected input in {branch.requested}, and not in all of {requested}. Nothing was "
            f"changed. Promote it first, or drop it ('headrace branch drop {config.job} {branch.name}'); then run the backfill again, with --source."
        )
        raise ConfigError(msg)


def refuse_beyond_position(config: JobConfig, wanted: Interval, lineage: Sequence[Checkpoint]) -> None:
    """Raise `IntervalError` for corrected input of more than the job has taken in: what it takes in meanwhile would be read uncorrected."""
    position = position_of(lineage)
    if position is not None and wanted.start < position < wanted.end:
        msg = (
            f"job '{config.job}' has taken in everything up to {timestamp_text(position)}, and corrected input can only take the place of what was taken "
            f"in: {wanted} ends behind it. Nothing was changed. Ask for what was taken in: {_asked(wanted.start, position)}."
        )
        raise IntervalError(msg)


def _refuse_transformed(plan: Plan, corrected: Collection[str]) -> None:
    """Raise `ConfigError` for corrected input of a source with a Spark transform."""
    for node in plan.sources:
        if node.transform is not None and node.name in corrected:
            msg = (
                f"source '{node.name}' has a Spark transform, and corrected input of such sources cannot be read. Nothing was changed. Correct what the "
                "source itself reads, and run the backfill without --source."
            )
            raise ConfigError(msg)


def _refuse_other_intervals(config: JobConfig, requested: Interval, parts: Sequence[Part]) -> None:
    """Raise `IntervalError` unless the micro-batches that a replay repeats make up the requested interval, each once."""
    names, job, reached = _names(config), config.job, requested.start
    for own in (part.interval for part in parts if part.requeue is None):
        if own is None and reached < requested.end:
            msg = (
                f"job '{job}' has taken in rows without an interval, and nobody can tell which of them the corrected input of {names} replaces. Nothing "
                "was changed. Correct what the source itself reads, and run the backfill without --source."
            )
            raise IntervalError(msg)
        if own is None or not requested.meets(own):
            continue
        if not requested.contains(own):
            start, end = min(own.start, requested.start), max(own.end, requested.end)
            msg = (
                f"a micro-batch of job '{job}' took in {own}, and the corrected input of {names} for {requested} would take the place of a part of it. Nothing "
                f"was changed. Ask for whole intervals: {_asked(start, end)}."
            )
            raise IntervalError(msg)
        if own.start < reached:
            msg = (
                f"job '{job}' took in {Interval(own.start, min(own.end, reached))} by several micro-batches, and the corrected input of {names} would be taken in "
                "by each. Nothing was changed. Correct what the source itself reads, and run the backfill without --source."
            )
            raise IntervalError(msg)
        if own.start > reached:
            raise _not_taken_in(config, requested, Interval(reached, own.start))
        reached = own.end
    if reached < requested.end:
        raise _not_taken_in(config, requested, Interval(reached, requested.end))


def _not_taken_in(config: JobConfig, requested: Interval, gap: Interval) -> IntervalError:
    """Return the error for a part of the requested interval that no micro-batch took in."""
    if gap.start > requested.start:
        way = f"Ask for what was taken in: {_asked(requested.start, gap.start)}"
    elif gap.end < requested.end:
        way = f"Ask for what was taken in: {_asked(gap.end, requested.end)}"
    else:
        way = f"'headrace checkpoints {config.job}' lists what was taken in"
    return IntervalError(
        f"no micro-batch of job '{config.job}' took in {gap}, so none would take in the corrected input of {_names(config)} for it. Nothing was changed. "
        f"{way}."
    )


def _refuse_read_ahead(config: JobConfig, intake: Intake, requested: Interval, lineage: Sequence[Checkpoint]) -> None:
    """Raise `IntervalError` where the job, before or in the requested interval, has read rows of later ones: they would count twice, or for nothing.

    A caught-up run reads some pieces ahead of others, and its interval ends where the first of them does.
    """
    ends = intervals_of(lineage)
    meets = [ends[0][0].start, *(own.end for own, by in ends if not _ahead(config, intake, by, own.end))]
    for edge in (requested.start, requested.end):
        by = next((by for own, by in reversed(ends) if own.end <= edge), None)
        if by is None or not (names := _ahead(config, intake, by, edge)):
            continue
        start = max((place for place in meets if place <= requested.start), default=None)
        end = min((place for place in meets if place >= requested.end), default=None)
        way = (
            "Run the job until it has read all of its input up to one time, or correct what the source itself reads"
            if start is None or end is None
            else f"Ask up to where all pieces end together: {_asked(start, end)}"
        )
        msg = (
            f"when job '{config.job}' had taken in everything up to {timestamp_text(edge)}, it had read more of {', '.join(names)} already, ahead of other input: "
            f"corrected input for {requested} would take the place of that, too, or be added to it. Nothing was changed. {way}."
        )
        raise IntervalError(msg)


def _refuse_without_files(config: JobConfig, plan: Plan, requested: Interval) -> None:
    """Raise `SourceError` for a folder or a table that has nothing of the requested interval: it would be left empty, perhaps by a wrong name."""
    for node in plan.sources:
        given = config.replay.sources.get(node.name)
        if given is None or (other := config.corrected(node.name)).kind.has_partitions:
            continue
        listed = corrected_input(node, config, given).listed(TakenIn())
        if not any(own is not None and requested.meets(own) for _, own in listed):
            msg = (
                f"corrected input {other.place} of source '{node.name}' has nothing for {requested}, so nothing would be left of it. Nothing was changed. Look at "
                "the place and at the names of its files or partitions; to leave the interval empty, put an empty file there."
            )
            raise SourceError(msg)


def _ahead(config: JobConfig, intake: Intake, checkpoint: Checkpoint, end: int) -> list[str]:
    """Return the corrected sources of which a checkpoint may have read rows of `end` or later."""
    reached = {
        name: intake.read_up_to(name, checkpoint.sources[name])
        for name in sorted(config.replay.sources)
        if name in checkpoint.sources
    }
    return [f"'{name}'" for name, own in reached.items() if own is None or own > end]


def _names(config: JobConfig) -> str:
    return ", ".join(f"'{name}'" for name in sorted(config.replay.sources))


def _asked(start: int, end: int) -> str:
    return f"--from {timestamp_text(start)} --to {timestamp_text(end)}"
