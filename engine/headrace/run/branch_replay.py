"""Run of a backfill's branch: replay the live line's micro-batches after the fork, with today's code and input."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.edits.migrate import settle_schemas
from headrace.edits.requeue import requeue_again
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.run.backfill_branches import left_behind
from headrace.run.batch_sequence import BatchSequence
from headrace.run.options import StoppedBecause
from headrace.run.remaining_work import RemainingWork
from headrace.run.replay import Replay, Step, branch_replay
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.slices import Slice, SliceRequest


@dataclass(frozen=True, slots=True)
class BranchReplay:
    """Replay, on a branch, of the interval in the run's options and all later input of the job."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork

    def run(self) -> StoppedBecause:
        """Replay from the branch's position up to the job's; return what ended the replay.

        The job may take in more meanwhile: read its log again until it has nothing new.
        """
        self.intake.check_intervals({})
        settle_schemas(self.batches.job, self.batches.plan)
        while (replay := self._left()) is not None:
            committed_before = len(self.batches.committed)
            if stopped := self._take_in(replay.steps):
                self.batches.events.backfill_stopped(replay, stopped)
                return stopped
            if len(self.batches.committed) == committed_before:
                break  # the files are gone, so no input is left
        return self.remaining.end_interval()

    def _take_in(self, steps: Iterable[Step]) -> StoppedBecause | None:
        """Take in steps, one micro-batch each; return what stopped it early."""
        batches, job = self.batches, self.batches.job
        for step in steps:
            self._take_requeued()
            batches.follow_without_input()
            live = self._followed(step)
            taken = None if step.requeue is not None else self._slice_of(step, live)
            if step.requeue is None and taken is None:
                continue
            if stopped := batches.limit():
                return stopped
            if step.requeue is not None:
                batches.committed.append(requeue_again(job, batches.plan, step.requeue))
            elif taken is not None:
                batches.make(taken, taken.interval, follows=live)
        self._take_requeued()
        return None

    def _slice_of(self, step: Step, live: Checkpoint | None) -> Slice | None:
        """Return the slice of a step, with the time of the `live` micro-batch; None if its files are gone."""
        follows = self.batches.followed.later(live)
        return self.intake.next(self.batches.standing(live), SliceRequest(step.interval, step.sources, follows=follows))

    def _followed(self, step: Step) -> Checkpoint | None:
        """Return the micro-batch of the job that gives a step its time; None after the job's last checkpoint."""
        followed = self.batches.followed
        return followed.next() if step.interval is None else followed.of_interval(step.interval)

    def _take_requeued(self) -> None:
        """Take in requeued rows within the limits of the run. The next run takes in the rest."""
        while not self.batches.limit() and self.batches.make_requeued(self.intake):
            pass

    def _left(self) -> Replay | None:
        options, config = self.batches.options, self.batches.config
        asked = Interval.of(options.interval_start, options.interval_end)
        line = self.batches.job.lineage.line
        fork_id = _fork_id(config.job, line)
        log = self.batches.followed.live
        assert log is not None  # noqa: S101 - the line is a branch's
        log.refresh()
        live = log.lineage.line
        if all(checkpoint.checkpoint_id != fork_id for checkpoint in live):
            raise left_behind(config, config.branch or "", fork_id)
        return branch_replay(asked, live, line, fork_id)


def _fork_id(job: str, line: Sequence[Checkpoint]) -> int:
    """Return the live checkpoint that a branch begins at. Raises `ConfigError` if the line is not a branch's."""
    for checkpoint in line:
        if checkpoint.kind is Kind.FORK and checkpoint.restored_from is not None:
            return checkpoint.restored_from
    msg = f"a run of mode backfill needs a branch of job '{job}': 'headrace backfill' makes one. Nothing was run."
    raise ConfigError(msg)
