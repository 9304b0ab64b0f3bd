"""Run of mode caught-up: make micro-batches until the sources are drained or a limit is reached."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.edits.migrate import settle_schemas
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import interval_of
from headrace.run.batch_sequence import BatchSequence
from headrace.run.due_timers import any_timer_due
from headrace.run.options import StoppedBecause
from headrace.run.remaining_work import RemainingWork
from headrace.sources.intake import Intake
from headrace.sources.slices import SliceRequest


@dataclass(frozen=True, slots=True)
class CaughtUpRun:
    """Run that takes in all input, and does remaining work in between."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork

    def run(self) -> StoppedBecause:
        """Make micro-batches until the sources are drained or a limit is reached."""
        batches, remaining = self.batches, self.remaining
        settle_schemas(batches.job, batches.plan)
        while True:
            if reason := batches.limit():
                return reason
            if batches.job.last.holds_records and (not batches.job.last.work.pending or remaining.takes_up()):
                batches.make_without_input()
                continue
            if batches.make_requeued(self.intake) or batches.repeat_requeue():
                continue
            if (followed := batches.followed.next()) is not None:
                self._follow(followed)
                continue
            taken = self.intake.next(batches.standing(), SliceRequest(ends=batches.options.end_of_input))
            if taken is not None:
                batches.make(taken, taken.interval)
            elif remaining.takes_up():
                batches.make_without_input()
            elif not remaining.fire_timers():
                batches.events.ahead(self.intake.waiting)
                return "drained"

    def _follow(self, live: Checkpoint) -> None:
        """Make, on a branch, the micro-batch that the job has made: with the same input and time."""
        batches = self.batches
        taken = None
        if takes_input := batches.followed.takes_input():
            wanted = SliceRequest(interval_of(live), live.sources, follows=batches.followed.later(live))
            taken = self.intake.next(batches.standing(live), wanted)
        if taken is not None:
            batches.make(taken, taken.interval, follows=live)
        elif not takes_input or any_timer_due(batches.job, batches.followed.began(live)):
            batches.make_without_input(follows=live)
        else:
            batches.followed.pass_over()
