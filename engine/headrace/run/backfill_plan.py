"""Plan of a backfill: the fork of its branch, the input to take in, and the expected cost. Planning changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from headrace.async_io.metrics import ServiceMetrics
from headrace.commit.branch_code import code_differences, differences_to_file, listed
from headrace.commit.input_changes import InputChange, input_changes, listed_input
from headrace.config import JobConfig, with_settings
from headrace.edits.fork import log_of
from headrace.errors import ConfigError, IntervalError, SourceError
from headrace.log.branches import Branch
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import acknowledged_since_fork, interval_of, intervals_of, place_of, position_of
from headrace.log.lineage import Lineage
from headrace.names import counted
from headrace.plan.stages import Plan, waits_of
from headrace.run.backfill_branches import (
    begins_behind,
    default_name,
    interrupted_renewal,
    joined_branch,
    open_branch,
    union,
)
from headrace.run.backfill_corrections import (
    check_corrections,
    refuse_beyond_position,
    refuse_more_than_corrected,
)
from headrace.run.pending_corrections import jobs_downstream
from headrace.run.replay import Part, branch_replay
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import TopicPosition
from headrace.sources.source import ListedFile
from headrace.tables.folder import JobFolder
from headrace.tables.requests import count_by_checkpoint
from headrace.tables.schemas import RESPONSES
from headrace.tables.view import live_chunks

NO_SETTINGS: Final[Mapping[str, str]] = {}

_DAY: Final = 86_400_000
"""Distance (ms) by which an interval may begin before the first input: a day of the scheduler may begin before its first file."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Expected cost of a backfill, from the metrics of the live job's same micro-batches."""

    files: int
    """Number of files that exist now."""
    rows: int
    seconds: float
    calls: Mapping[str, int]
    """Number of calls by async operator, without those whose responses are taken."""
    responses: Mapping[str, int]
    """Number of kept responses by async operator that are taken in place of calls."""
    sinks: tuple[str, ...]
    downstream: tuple[str, ...] = ()
    """Jobs of the same home that read the sinks, or sinks of such jobs."""


@dataclass(frozen=True, slots=True)
class BackfillPlan:
    """Plan of a backfill. The interval `requested` ends at the job's position at the latest."""

    name: str
    requested: Interval
    fork_id: int
    begins_at: int | None
    """Timestamp from which on input is taken in again (ms); None: from the beginning."""
    branch: Branch | None
    """Branch to continue; None to make a new one."""
    changes: tuple[InputChange, ...]
    """Changes of the job's input since it was taken in, the earliest first."""
    reason: InputChange | None
    """Change of input that moved the fork before the interval; None without one."""
    steps: tuple[Part, ...]
    """Steps that the branch has to take in, one micro-batch each."""
    estimate: Estimate
    replaced: Branch | None = None
    """Branch to drop first; None if there is none."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the branch's own: the input that it reads in the requested intervals in place of sources."""


def plan_backfill(
    config: JobConfig,
    plan: Plan,
    wanted: Interval,
    name: str | None = None,
    *,
    renews: bool = False,
    settings: Mapping[str, str] = NO_SETTINGS,
) -> BackfillPlan:
    """Return the plan of a backfill, or of the remaining part of an open one. `settings` are those of a new branch.

    With `renews`, the plan replaces an open backfill with this name if it cannot take in the interval, ran with other code or settings
    than the job's file has today, or has taken in input that changed since. The new one takes in the intervals of both.

    Raises `ConfigError` for a job that never ran, has sources without intervals, or has another open backfill, and for an open one
    that was computed with other code or settings; `IntervalError` for an interval that the job has not taken in yet; `SourceError`
    when a folder is gone, or input of an open backfill has changed.
    """
    log = log_of(config)
    if log.last is None:
        msg = f"job '{config.job}' has not taken in anything yet: run it first ('headrace run {config.job}')"
        raise ConfigError(msg)
    intake = Intake(plan, config)
    intake.check_intervals({})
    lineage = log.lineage.checkpoints
    name = name or default_name(wanted)
    listed = listed_input(intake, lineage)
    replaced = None
    if renews:
        dropped = interrupted_renewal(config, name)
        asked, wanted = wanted, union(wanted, None if dropped is None else dropped.requested)
        replaced = _stale_branch(config, name, wanted, lineage, intake, settings=settings)
        wanted = wanted if replaced is None else union(wanted, replaced.requested)
        settings = _renewed_settings(config, name, settings, replaced or dropped, asked=asked, together=wanted)
    requested = _taken_in(config, wanted, lineage)
    branch = joined_branch(config, name, requested, lineage, replaced=replaced)
    changes = input_changes(lineage, listed, JobFolder.of(config))
    reason = None
    if branch is None:
        _refuse_without_input(config, requested, listed, lineage)
        fork_id, reason = _fork_of(requested, lineage, changes)
        branch_lineage: Sequence[Checkpoint] = Lineage(lineage, fork_id).checkpoints
    else:
        fork_id = branch.fork_id
        branch_lineage = _lineage_of(config, branch, lineage)
        settings = _settings_of(config, branch, settings)
        _refuse_other_code(config, branch, branch_lineage)
        refuse_changed_input(config, name, branch_lineage, listed_input(intake, branch_lineage))
    corrected = with_settings(config, settings).replay.sources
    replay = branch_replay(requested, lineage, branch_lineage, fork_id, is_corrected=bool(corrected))
    if corrected and branch is None:
        refuse_beyond_position(config, wanted, lineage)
        parts = () if replay is None else replay.parts
        check_corrections(with_settings(config, settings), plan, requested, lineage, intake=intake, parts=parts)
    elif corrected and branch is not None:
        refuse_more_than_corrected(config, branch, requested)
    reached = position_of(branch_lineage)
    return BackfillPlan(
        name=name,
        requested=requested,
        fork_id=fork_id,
        begins_at=position_of(Lineage(lineage, fork_id).checkpoints),
        branch=branch,
        changes=tuple(changes),
        reason=reason,
        steps=() if replay is None else replay.parts,
        estimate=_estimate(
            _behind(lineage, fork_id, reached),
            _seconds_by_checkpoint(lineage),
            _files_between(listed_input(intake, branch_lineage), reached, position_of(lineage)),
            config,
            _responses_by_operator(config, plan, lineage[-1]),
        ),
        replaced=replaced,
        settings=settings,
    )


def _renewed_settings(
    config: JobConfig,
    name: str,
    wanted: Mapping[str, str],
    replaced: Branch | None,
    *,
    asked: Interval,
    together: Interval,
) -> Mapping[str, str]:
    """Return the settings of a branch that takes the place of another one. `together` is the interval of both, `asked` that of the new one.

    Raises `ConfigError` for corrected input that was named for a part of it: it would take the place of the rest as well.
    """
    settings = wanted or (NO_SETTINGS if replaced is None else replaced.settings)
    named_for = asked if wanted or replaced is None else replaced.requested
    if settings and named_for != together:
        msg = (
            f"branch '{name}' of job '{config.job}' would be computed anew for {together}, and corrected input was named for {named_for} alone. Nothing was "
            f"changed. Promote or drop the branch first ('headrace branch drop {config.job} {name}'), or name input for all of it."
        )
        raise ConfigError(msg)
    return settings


def _settings_of(config: JobConfig, branch: Branch, wanted: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of an open branch. Raises `ConfigError` if others are wanted: it may have read its input already."""
    if wanted and dict(wanted) != branch.settings:
        msg = (
            f"branch '{branch.name}' of job '{config.job}' reads other input than --source names now. Nothing was changed. Leave --source out to go on "
            "with it, or compute it anew: the same command with --renew."
        )
        raise ConfigError(msg)
    return branch.settings


def _lineage_of(config: JobConfig, branch: Branch, lineage: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Return the lineage of a branch; if its fork was interrupted, the job's lineage up to the fork."""
    return log_of(config.on_branch(branch.name)).lineage.checkpoints or Lineage(lineage, branch.fork_id).checkpoints


def _stale_branch(
    config: JobConfig,
    name: str,
    requested: Interval,
    lineage: Sequence[Checkpoint],
    intake: Intake,
    *,
    settings: Mapping[str, str],
) -> Branch | None:
    """Return the open backfill with a name if it cannot continue with `requested`; None if it can, or there is none."""
    branch = open_branch(config, name)
    if branch is None:
        return None
    branch_lineage = _lineage_of(config, branch, lineage)
    is_stale = (
        begins_behind(branch, requested, lineage)
        or bool(settings)  # corrected input may have changed, and nothing records what it was
        or differences_to_file(config, branch, branch_lineage)
        or code_differences(config, branch, branch_lineage)
        or _changes_on_branch(config, branch_lineage, listed_input(intake, branch_lineage))
    )
    return branch if is_stale else None


def _refuse_other_code(config: JobConfig, branch: Branch, lineage: Sequence[Checkpoint]) -> None:
    """Raise `ConfigError` if a branch has results of other code or settings than the job has now. `lineage` is the branch's."""
    if not any(checkpoint.kind is Kind.BATCH and checkpoint.checkpoint_id > branch.fork_id for checkpoint in lineage):
        return
    if differences := [*differences_to_file(config, branch, lineage), *code_differences(config, branch, lineage)]:
        msg = (
            f"the code or the settings of job '{config.job}' have changed since branch '{branch.name}' ran: {listed(differences)}. The "
            "live tables were not changed. Bring back what the branch ran with, or compute it anew: run the backfill again with "
            f"--name {branch.name} --renew."
        )
        raise ConfigError(msg)


def refuse_changed_input(
    config: JobConfig, name: str, lineage: Sequence[Checkpoint], listed: Mapping[str, Sequence[ListedFile]]
) -> None:
    """Raise `SourceError` if input that a branch has taken in has changed since. `lineage` is the branch's."""
    changes = _changes_on_branch(config, lineage, listed)
    if changes:
        more = f" ({counted(len(changes), 'such file')})" if len(changes) > 1 else ""
        msg = (
            f"the input of branch '{name}' changed again: {changes[0]}{more}. The live tables were not changed, and the branch cannot "
            f"go back. Drop it, then run the backfill again to take in the present files: 'headrace branch drop {config.job} {name}'."
        )
        raise SourceError(msg)


def _changes_on_branch(
    config: JobConfig, lineage: Sequence[Checkpoint], listed: Mapping[str, Sequence[ListedFile]]
) -> list[InputChange]:
    """Return how input differs from what a branch has taken in. What somebody has acknowledged on its job since counts as it was then."""
    job = log_of(config).lineage.checkpoints
    acknowledged = {source: acknowledged_since_fork(job, lineage, source) for source in listed}
    return input_changes(lineage, listed, JobFolder.of(config), acknowledged)


def _taken_in(config: JobConfig, wanted: Interval, lineage: Sequence[Checkpoint]) -> Interval:
    """Return the part of an interval that the job has taken in. Raises `IntervalError` if the part is empty."""
    position = position_of(lineage)
    if position is None or wanted.start >= position:
        reached = (
            "none of its checkpoints has an interval"
            if position is None
            else f"it stands at {timestamp_text(position)}"
        )
        msg = (
            f"interval {wanted} was not taken in by job '{config.job}' yet: {reached}. Nothing was changed, and there is nothing to do "
            f"again: 'headrace run {config.job}' takes in what comes next."
        )
        raise IntervalError(msg)
    return Interval(wanted.start, min(wanted.end, position))


def _refuse_without_input(
    config: JobConfig, requested: Interval, listed: Mapping[str, Sequence[ListedFile]], lineage: Sequence[Checkpoint]
) -> None:
    """Raise `IntervalError` if no input lies in an interval, or at its beginning: a mistyped year would compute everything again."""
    intervals = [file.interval for files in listed.values() for file in files if file.interval is not None]
    known = [*intervals, *(interval for interval, _ in intervals_of(lineage))]
    first = min(known, key=lambda own: own.start, default=requested)
    if intervals and not any(own.start < requested.end and requested.start < own.end for own in known):
        msg = f"no file of job '{config.job}' lies in {requested}; the first is of {first}. Nothing was done."
        raise IntervalError(msg)
    if first.start - requested.start > max(first.end - first.start, _DAY) and requested.end > first.start:
        start, end = timestamp_text(first.start), timestamp_text(requested.end)
        msg = (
            f"interval {requested} begins before all input of job '{config.job}': its first interval is {first}. Nothing was done. Begin there: "
            f"'headrace backfill {config.job} --from {start} --to {end}'."
        )
        raise IntervalError(msg)


def _fork_of(
    requested: Interval, lineage: Sequence[Checkpoint], changes: Sequence[InputChange]
) -> tuple[int, InputChange | None]:
    """Return the checkpoint to fork, and the change that moved it before the interval.

    committed    |--- 1 ---|--- 2 ---|--- 3 ---|--- 4 ---|
    asked                                 |--|               place: 2
    changed                    x                             fork: 1
    """
    ids = [checkpoint.checkpoint_id for checkpoint in lineage]
    place = place_of(requested, lineage).restore_to
    at = 0 if place is None else ids.index(place)
    while _has_begun(lineage[at], requested):
        at -= 1
    first = changes[0] if changes else None
    if first is None or ids.index(first.checkpoint_id) > at:
        return _with_state(lineage[: at + 1]), None
    return _with_state(lineage[: max(1, ids.index(first.checkpoint_id))]), first


def _has_begun(checkpoint: Checkpoint, requested: Interval) -> bool:
    """Return whether a caught-up run had read a partition of a topic beyond the start of an interval: others may have been behind it."""
    topics = (facts.position_as(TopicPosition) for facts in checkpoint.sources.values())
    return any(topic is not None and (topic.latest or 0) >= requested.start for topic in topics)


def _with_state(lineage: Sequence[Checkpoint]) -> int:
    """Return the last checkpoint of a lineage whose state is in the tables: checkpoints that a promotion brought have none."""
    return next(checkpoint.checkpoint_id for checkpoint in reversed(lineage) if checkpoint.has_state)


def _behind(lineage: Sequence[Checkpoint], fork_id: int, reached: int | None) -> list[Checkpoint]:
    """Return the checkpoints after the fork whose input a branch at position `reached` lacks in part or whole."""
    behind = [checkpoint for checkpoint in lineage if checkpoint.checkpoint_id > fork_id]
    return [
        checkpoint
        for checkpoint in behind
        if reached is None or (interval := interval_of(checkpoint)) is None or interval.end > reached
    ]


def _files_between(listed: Mapping[str, Sequence[ListedFile]], start: int | None, end: int | None) -> int:
    intervals = (file.interval for files in listed.values() for file in files)
    return sum(
        interval is not None and (start is None or interval.start >= start) and (end is None or interval.start < end)
        for interval in intervals
    )


def _responses_by_operator(config: JobConfig, plan: Plan, last: Checkpoint) -> dict[str, Counter[int]]:
    """Return the kept responses that a branch would take, by operator: their numbers by checkpoint."""
    if RESPONSES not in last.versions:
        return {}
    view_of, groups = JobFolder.of(config).views(last.versions), last.max_parallelism
    columns = ["checkpoint_id", "expires_at"]
    return {
        wait.name: count_by_checkpoint(live_chunks(view_of, RESPONSES, wait.name, groups, columns))
        for wait in waits_of(plan)
        if wait.service is not None and config.services[wait.service].takes_responses
    }


def _expected_calls(metrics: ServiceMetrics, responses: int) -> int:
    """Return the number of calls that a micro-batch needs if this number of its responses is still kept."""
    calls, kept = metrics.calls + metrics.responses_taken, metrics.responses_kept
    return calls if not kept else round(calls * max(0, kept - responses) / kept)


def _seconds_by_checkpoint(lineage: Sequence[Checkpoint]) -> dict[int, float]:
    """Return how long each micro-batch took, with its commit and the publication of its sinks."""
    return {
        checkpoint.checkpoint_id: max(_seconds_since(before, checkpoint), checkpoint.seconds.get("run", 0.0))
        for before, checkpoint in zip([None, *lineage], lineage, strict=False)
    }


def _seconds_since(before: Checkpoint | None, checkpoint: Checkpoint) -> float:
    """Return the seconds from the commit before, in the same run, or from the first micro-batch's begin; 0 if only the branch's clock knows it."""
    if before is not None and before.attempt_id == checkpoint.attempt_id:
        return (checkpoint.committed_at - before.committed_at) / 1000
    if checkpoint.processing_time is None or checkpoint.ended_at is not None:
        return 0.0
    return (checkpoint.committed_at - checkpoint.processing_time) / 1000


def _estimate(
    checkpoints: Iterable[Checkpoint],
    seconds_of: Mapping[int, float],
    files: int,
    config: JobConfig,
    kept: Mapping[str, Mapping[int, int]],
) -> Estimate:
    rows, seconds, calls, responses = 0, 0.0, Counter[str](), Counter[str]()
    sinks: set[str] = set()
    for checkpoint in checkpoints:
        sinks |= {name for name, outputs in checkpoint.outputs.items() if outputs}
        if checkpoint.kind is Kind.PROMOTION:
            sinks |= {*config.sinks}  # a promotion has only net changes
            continue  # and the metrics of the micro-batches that it has brought
        rows += checkpoint.metrics.get("rows_in", 0)
        seconds += seconds_of[checkpoint.checkpoint_id]
        for name, of_service in checkpoint.services.items():
            taken = kept.get(name, {}).get(checkpoint.checkpoint_id, 0)
            calls[name] += _expected_calls(of_service, taken)
            responses[name] += taken
    downstream = tuple(jobs_downstream(config))
    return Estimate(files, rows, round(seconds, 2), dict(+calls), dict(+responses), tuple(sorted(sinks)), downstream)
