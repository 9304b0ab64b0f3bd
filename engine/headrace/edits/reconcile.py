"""Reconciliation: bring a job and its sinks together again after one of them was lost, or came back from a backup.

Job and sinks go back to the newest checkpoint of the job's lineage that all of them can reach: the state tables by their versions, each
sink by the version in its history that belongs to the checkpoint. The next run takes in the later input again.

    job's folder is a copy    log 0 -- 1 -- 2,       sink at 4    the sink goes back to 2; the job stays there
    sink is a copy            log 0 -- 1 -- 2 -- 3,  sink at 1    the job goes back to 1, with all other sinks
    sink is gone              log 0 -- 1 -- 2 -- 3,  no table     the job goes back to before the sink's first row

A reconciliation is a restore, and is committed and published as one. Its id is above those of all sinks, since Delta
skips other transactions, and it begins a new incarnation of the job. So a run of the abandoned copy can no longer
publish (`publish`), and copies from before the reconciliation can be distinguished from the job (`sink_position`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.commit.sink_position import Mismatch, MismatchKind, SinkPosition
from headrace.config import JobConfig
from headrace.edits.restore import restore_in
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import position_of
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.log.marks import refuse_erased
from headrace.log.sink_history import SinkHistory
from headrace.sinks.sink import NEVER, Publication, Sink
from headrace.tables.folder import JobFolder


@dataclass(frozen=True, slots=True)
class SinkDifference:
    """Difference of one sink from its job. Ids are those of checkpoints."""

    sink: str
    path: str
    exists: bool
    published: int | None
    """Last checkpoint that the sink has; None if it has none."""

    wanted: int | None
    """Last checkpoint that writes to the sink; None if none does."""

    mismatch: Mismatch | None
    """Reason why the job cannot continue beside the sink; None if it can: then the next run publishes what is missing."""

    rules: tuple[str, ...] = ()
    """Rules of its table, which may refuse what is missing."""


@dataclass(frozen=True, slots=True)
class SinkRestore:
    """Versions of a sink's table: the present one (None without a table), and the one to restore."""

    now: int | None
    then: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcilePlan:
    """Plan of a reconciliation."""

    target_id: int
    """Checkpoint that job and sinks go back to."""

    above: Publication
    """Highest checkpoint id and highest incarnation of any sink."""

    checkpoint_id: int
    """Id of the reconciliation's own checkpoint."""

    undone: Sequence[int]
    """Checkpoints of the job's lineage that the reconciliation leaves behind, oldest first."""

    rows_in: int
    """Number of input rows of the checkpoints left behind."""

    covered_before: int | None
    """End of the input that interval runs have taken in without gaps (ms); None without intervals."""

    covered_after: int | None
    """The same as of the target checkpoint."""

    sinks: Mapping[str, SinkRestore]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Comparison of a job with its sinks, and the plan that brings them together."""

    last_id: int | None
    """Last checkpoint of the job; None if it has none."""

    sinks: Sequence[SinkDifference]
    plan: ReconcilePlan | None
    """Plan; None if job and sinks agree, or cannot be brought together."""

    refusal: str | None
    """Reason why they cannot be brought together, with the ways out."""

    @property
    def agrees(self) -> bool:
        """Return whether there is nothing to reconcile."""
        return all(sink.mismatch is None for sink in self.sinks)


def compare(config: JobConfig) -> Comparison:
    """Compare a job with its sinks, and plan how they can be brought together. Changes nothing, and needs no lease.

    Raises `ConfigError` when the job was never run, and `StorageError` when a table cannot be read.
    """
    log = CheckpointLog(JobFolder.of(config))
    comparison = compare_with(config, log.checkpoints)
    if not comparison.agrees:  # compare again: a run may have committed and published meanwhile
        log.refresh()
        comparison = compare_with(config, log.checkpoints)
    if comparison.agrees and log.last is None:
        msg = f"job '{config.job}' has no checkpoints in {config.job_folder}: run it first"
        raise ConfigError(msg)
    return comparison


def reconcile(config: JobConfig, run_id: str, why: str) -> Checkpoint | None:
    """Bring a job and its sinks together as `compare` plans it; return its checkpoint, None if both agree.

    Raises `SinkMismatchError` when they cannot be brought together, and `FencedError` while a run holds the job; then no table
    has changed. `StorageError`, when a sink refuses: the checkpoint is committed then, and published by the next run.
    """
    comparison = compare(config)
    if comparison.refusal is not None:
        raise SinkMismatchError(comparison.refusal)
    if comparison.plan is None:
        return None
    check = _PlanInLease()
    with open_job(config, run_id, sink_check=check) as job:
        if check.plan is None:
            return None
        return restore_in(job, check.plan.target_id, why, above=check.plan.above)


class _PlanInLease:
    """Planner that compares again once the job is claimed: another run may have changed tables until then."""

    def __init__(self) -> None:
        self.plan: ReconcilePlan | None = None

    def __call__(self, config: JobConfig, checkpoints: Sequence[Checkpoint], opened: Mapping[str, Sink]) -> bool:
        comparison = compare_with(config, checkpoints, opened)
        if comparison.refusal is not None:
            raise SinkMismatchError(comparison.refusal)
        self.plan = comparison.plan
        crash_points.reached("reconcile.planned")
        return comparison.agrees


def compare_with(
    config: JobConfig, checkpoints: Sequence[Checkpoint], opened: Mapping[str, Sink] | None = None
) -> Comparison:
    """Compare a job that has these checkpoints with its sinks; see `compare`. `opened` are the sinks that the caller has opened."""
    positions = [SinkPosition(config, sink, checkpoints, (opened or {}).get(sink)) for sink in sorted(config.sinks)]
    plan, refusal = None, None
    if any(position.mismatch is not None for position in positions):
        try:
            plan = _plan(config, checkpoints, positions)
        except SinkMismatchError as error:
            refusal = str(error)
    return Comparison(
        last_id=checkpoints[-1].checkpoint_id if checkpoints else None,
        sinks=[_difference(position) for position in positions],
        plan=plan,
        refusal=refusal,
    )


def _difference(position: SinkPosition) -> SinkDifference:
    published = None if position.published == NEVER else position.published
    return SinkDifference(
        position.sink, position.path, position.exists, published, position.wanted, position.mismatch, position.rules
    )


def _plan(config: JobConfig, checkpoints: Sequence[Checkpoint], positions: Sequence[SinkPosition]) -> ReconcilePlan:
    """Find the newest checkpoint that job and sinks can reach. Raises `SinkMismatchError` if there is none."""
    if not checkpoints:
        raise SinkMismatchError(max(positions, key=lambda position: position.published).problem())
    check = RestoreCheck(config, checkpoints, config.sinks)
    for position in positions:
        if position.owned_by_another is not None:
            raise SinkMismatchError(position.owner_problem(position.owned_by_another))
        if _is_foreign(position) and not check.histories[position.sink].is_known:
            raise SinkMismatchError(_with_foreign_sink(config, position))
    lineage = Lineage(checkpoints)
    versions = {name: history.versions(lineage) for name, history in check.histories.items()}
    target = _target(config, checkpoints, lineage, check, versions)
    undone = [checkpoint for checkpoint in lineage.checkpoints if checkpoint.checkpoint_id > target.checkpoint_id]
    above = Publication(
        max(position.published for position in positions),
        max((position.incarnation or 0 for position in positions), default=0),
    )
    return ReconcilePlan(
        target_id=target.checkpoint_id,
        above=above,
        checkpoint_id=max(checkpoints[-1].checkpoint_id, above.checkpoint_id) + 1,
        undone=[checkpoint.checkpoint_id for checkpoint in undone],
        rows_in=sum(checkpoint.metrics.get("rows_in", 0) for checkpoint in undone),
        covered_before=position_of(lineage.checkpoints),
        covered_after=position_of(lineage.to(target).checkpoints),
        sinks={
            name: SinkRestore(_version_now(check.histories[name]), of[target.checkpoint_id])
            for name, of in versions.items()
        },
    )


def _target(
    config: JobConfig,
    checkpoints: Sequence[Checkpoint],
    lineage: Lineage,
    check: RestoreCheck,
    versions: Mapping[str, Mapping[int, int]],
) -> Checkpoint:
    first_problem: str | None = None
    for checkpoint in lineage.newest_first():
        if not checkpoint.has_state or any(checkpoint.checkpoint_id not in of for of in versions.values()):
            continue
        problem = _problem(config, checkpoints, checkpoint, check)
        if problem is None:
            return checkpoint
        first_problem = (
            first_problem or f"the newest one that fits all sinks is {checkpoint.checkpoint_id}, and {problem}"
        )
    raise SinkMismatchError(_without_target(config, first_problem or _unreachable(versions, lineage)))


def _problem(
    config: JobConfig, checkpoints: Sequence[Checkpoint], target: Checkpoint, check: RestoreCheck
) -> str | None:
    """Return a clause on why job and sinks must not go back to a checkpoint; None if they may."""
    number = target.checkpoint_id
    try:
        refuse_erased(config.job, checkpoints, number, brings_back=False)
    except (ConfigError, StorageError):
        return f"it has rows of a key that was erased since ('headrace restore {config.job} --to {number}' says more)"
    return check.problem(target)


def _version_now(history: SinkHistory) -> int | None:
    return None if history.table is None else history.table.version


def _is_foreign(position: SinkPosition) -> bool:
    return position.mismatch is not None and position.mismatch.kind is MismatchKind.FOREIGN


def _unreachable(versions: Mapping[str, Mapping[int, int]], lineage: Lineage) -> str:
    """Return a clause on the sink that has no version for any checkpoint."""
    lost = [f"'{name}'" for name, of in versions.items() if not of]
    if lost:
        return f"the history of sink {lost[0]} has no version that belongs to one of them"
    head = lineage.head.checkpoint_id if lineage.head else 0
    return f"the sinks have no version in common that belongs to one of the checkpoints up to {head}"


def _with_foreign_sink(config: JobConfig, position: SinkPosition) -> str:
    assert position.mismatch is not None  # noqa: S101 - it is foreign
    return (
        f"sink '{position.sink}' at {position.path} {position.mismatch.sentence}. Its history has no publication of the job in that folder, "
        "so it cannot go back to one. No table was changed. Bring back the folder that belongs to the sink, or the sink that belongs "
        f"to the folder; or move the sink's table away, or give it another path, and it is filled anew. Then run 'headrace reconcile {config.job}' again. Or, to "
        "start anew, move the folder and all sinks away."
    )


def _without_target(config: JobConfig, problem: str) -> str:
    return (
        f"no checkpoint of job '{config.job}' fits all its tables: {problem}. No table was changed. Bring back a newer copy of what is "
        f"behind or damaged, and run 'headrace reconcile {config.job}' again; or, to start anew, move {config.job_folder} and all "
        "sinks away."
    )
