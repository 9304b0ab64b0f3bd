"""A replay in a run: go back to a checkpoint, and take in from there an interval and all that came later."""

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
    """Begins replays, and goes on with those that broke off."""

    batches: BatchSequence
    intake: Intake

    def begin(self, wanted: Interval, target: int) -> StoppedBecause | None:
        """Go back to checkpoint `target` and take in from there `wanted` and all that came later; return what stopped it."""
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
        batches.committed.append(restore_in(job, target, replay_note(wanted)))
        replay = open_replay(job.checkpoints)
        return None if replay is None else self._go_through(replay)

    def resume(self, replay: Replay) -> StoppedBecause | None:
        """Go on with a replay that broke off; return what stopped it before it was through."""
        if not self.intake.has_intervals:
            return None
        self.batches.events.replay_resumed(replay)
        return self._go_through(replay)

    def _slice_of(self, step: Step, live: Checkpoint | None) -> Slice | None:
        """Return the slice that a step takes in; None when there is nothing left of it. On a branch it has the time of a `live` one."""
        return self.intake.next(self.batches.standing(live), SliceRequest(step.interval, step.offsets))

    def _followed(self, step: Step) -> Checkpoint | None:
        """Return the micro-batch of the job whose time a step of its branch has; None for the job itself, and ahead of it."""
        followed = self.batches.followed
        return followed.next() if step.interval is None else followed.of_interval(step.interval)

    def _take_requeued(self) -> None:
        """Take in rows that have left the quarantine, within the limits of the run: those that wait at the end do so for the next one."""
        while not self.batches.limit() and self.batches.make_requeued(self.intake):
            pass

    def _go_through(self, replay: Replay) -> StoppedBecause | None:
        """Take in what a replay has left, up to where the job stood; return what stopped it before."""
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
        """Take in steps, one micro-batch each; return what stopped it before."""
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
