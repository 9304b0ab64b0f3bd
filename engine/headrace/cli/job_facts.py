"""Facts of a job's checkpoints for its page: which count, and what left the others behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint
    from headrace.log.lineage import Lineage
    from headrace.log.log import CheckpointLog
    from headrace.readers.job_at import JobAtCheckpoint


@dataclass(frozen=True)
class JobFacts:
    """Checkpoints of a job up to one.

    `all` has them, `live` those that led to the last one, and `undone`, by id, the restore or promotion that left others behind.
    """

    config: JobConfig
    log: CheckpointLog
    checkpoint: Checkpoint
    all: Sequence[Checkpoint]
    live: Sequence[Checkpoint]
    lineage: Lineage
    undone: Mapping[int, Checkpoint]

    @cached_property
    def job(self) -> JobAtCheckpoint:
        """Return the job at the checkpoint. Raises the errors of `JobAtCheckpoint`."""
        from headrace.readers.job_at import JobAtCheckpoint

        return JobAtCheckpoint(self.config, self.checkpoint.checkpoint_id, log=self.log)

    @cached_property
    def states(self) -> tuple[list[dict[str, Any]], float]:
        """Return the live entries by operator and state, and how long it took to read them (s). Raises `StorageError` when their files are gone."""
        from headrace import clock
        from headrace.readers.state import list_states

        began = clock.monotonic()
        states = list_states(self.job).dicts()
        return states, clock.monotonic() - began

    @property
    def batches(self) -> list[Checkpoint]:
        """Return the micro-batches that count."""
        return [checkpoint for checkpoint in self.live if checkpoint.kind.value == "batch"]


def facts_of(
    config: JobConfig, at: str | None, as_of: str | None, since: int | None, run: str | None = None
) -> JobFacts:
    """Return what a page about a job, or a branch, needs to know. Raises `ConfigError` for a checkpoint that is not there."""
    from headrace.errors import ConfigError
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    if at is not None and as_of is not None:
        msg = "give --at (the time of a commit) or --as-of (a time by the watermark), not both"
        raise ConfigError(msg)
    if run is not None and (at is not None or as_of is not None):
        msg = "--run names a checkpoint by itself: give it without --at and --as-of"
        raise ConfigError(msg)
    log = CheckpointLog(JobFolder.of(config))
    last = log.resolve(config, at) if as_of is None else log.resolve_as_of(config, as_of)
    if run is not None:
        last = _last_of_run(log, run, config.job)

    def wanted(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        return [checkpoint for checkpoint in checkpoints if since is None or checkpoint.committed_at >= since]

    known = [checkpoint for checkpoint in log.checkpoints if checkpoint.checkpoint_id <= last.checkpoint_id]
    lineage = log.lineage.to(last)
    undone = undone_by(known, lineage)
    shown = wanted(known)
    return JobFacts(
        config,
        log,
        last,
        shown,
        wanted(lineage.checkpoints),
        lineage,
        {
            checkpoint.checkpoint_id: undone[checkpoint.checkpoint_id]
            for checkpoint in shown
            if checkpoint.checkpoint_id in undone
        },
    )


def _last_of_run(log: CheckpointLog, run: str, job: str) -> Checkpoint:
    from headrace.errors import ConfigError

    last = next((checkpoint for checkpoint in reversed(log.checkpoints) if checkpoint.run_id == run), None)
    if last is None:
        msg = f"run '{run}' has committed no checkpoint of job '{job}'; see 'headrace checkpoints {job}'"
        raise ConfigError(msg)
    return last


def undone_by(checkpoints: Sequence[Checkpoint], lineage: Lineage) -> dict[int, Checkpoint]:
    """Return by id, for each of the first checkpoints of a job that is not in a lineage, the restore or promotion that left it behind."""
    undone: dict[int, Checkpoint] = {}
    head: Checkpoint | None = None
    for checkpoint in checkpoints:
        if checkpoint.kind.value in {"restore", "promotion"} and checkpoint.restored_from is not None:
            undone |= dict.fromkeys(_left(lineage, head, lineage.get(checkpoint.restored_from)), checkpoint)
        if checkpoint.has_state:
            head = checkpoint
    for checkpoint in lineage.checkpoints:
        undone.pop(checkpoint.checkpoint_id, None)
    return undone


def _left(lineage: Lineage, head: Checkpoint | None, target: Checkpoint | None) -> Iterator[int]:
    """Yield the checkpoints that led to `head` and not to `target`: a checkpoint continues from one with a lower id."""
    while head is not None and (target is None or head.checkpoint_id != target.checkpoint_id):
        if target is None or head.checkpoint_id > target.checkpoint_id:
            yield head.checkpoint_id
            head = lineage.before(head)
        else:
            target = lineage.before(target)
