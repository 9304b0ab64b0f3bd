"""Replay within a run: restore a checkpoint, then take in an interval and all later input."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.interval_order import replay_note
from headrace.commit.requeue import requeue_again
from headrace.commit.restore import restore_in
from headrace.commit.state_migration import settle_schemas
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.slice_request import SliceRequest
from headrace.sources.source import Slice
from headrace.spark.batch_sequence import BatchSequence
from headrace.spark.options import StoppedBecause
from headrace.spark.replay import Replay, Step, open_replay, outage


@dataclass(frozen=True, slots=True)
class ReplayRun:
    """Runner of replays: begins them, and continues interrupted ones."""

    batches: BatchSequence
    intake: Intake

    def begin(self, wanted: Interval, target: int) -> StoppedBecause | None:
        """Restore checkpoint `target`, then take in `wanted` and all later input; return what stopped it."""
        batches, job = self.batches, self.batches.job
        before = batches.taken_in(target)
        self.intake.check_intervals(before)
        if stopped := batches.limit():
            batches.events.replay_not_begun(wanted, stopped)
            return stopped
        batches.events.warn(outage(wanted, job.checkpoints, target, batches.config.sinks))
        if missing := self.intake.count_missing(before, batches.taken_in()):
            batches.events.files_are_gone(missing)
        batches.events.restoring(wanted, target)
        batches.committed.append(restore_in(job, target, replay_note(wanted), replays=wanted))
        replay = open_replay(job.checkpoints)
        return None if replay is None else self._go_through(replay)

    def resume(self, replay: Replay) -> StoppedBecause | None:
        """Continue an interrupted replay; return what stopped it early."""
        if not self.intake.has_intervals:
            return None
        self.batches.events.replay_resumed(replay)
        return self._go_through(replay)

    def _slice_of(self, step: Step, live: Checkpoint | None) -> Slice | None:
        """Return the slice of a step; None if its files are gone. On a branch it has the time of the `live` micro-batch."""
        follows = self.batches.followed.later(live)
        return self.intake.next(self.batches.standing(live), SliceRequest(step.interval, step.offsets, follows=follows))

    def _followed(self, step: Step) -> Checkpoint | None:
        """Return the micro-batch of the job that gives a branch's step its time; None for a step of the job, or after its last checkpoint."""
        followed = self.batches.followed
        return followed.next() if step.interval is None else followed.of_interval(step.interval)

    def _take_requeued(self) -> None:
        """Take in requeued rows within the limits of the run. The next run takes in the rest."""
        while not self.batches.limit() and self.batches.make_requeued(self.intake):
            pass

    def _go_through(self, replay: Replay) -> StoppedBecause | None:
        """Take in the remaining steps of a replay, up to the job's former position; return what stopped it early."""
        batches, job = self.batches, self.batches.job
        settle_schemas(job, batches.plan)
        if stopped := self.take_in(replay.steps):
            left = open_replay(job.checkpoints) or replay
            batches.events.replay_stopped(replay.asked, left.missing, stopped)
            return stopped
        batches.events.replayed(replay)
        if job.last.held:
            batches.events.replay_is_held()
        return None

    def take_in(self, steps: Iterable[Step]) -> StoppedBecause | None:
        """Take in steps, one micro-batch each; return what stopped it early."""
        batches, job = self.batches, self.batches.job
        for step in steps:
            self._take_requeued()
            self.batches.follow_without_input()
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
