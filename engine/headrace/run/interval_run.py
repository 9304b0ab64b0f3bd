"""Run of mode interval: take in one interval. An interval that is done stays as it is; a backfill computes it again, on a branch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.commit.input_changes import changes_within, input_changes, is_computed_again, is_taken_in, refusal
from headrace.edits.migrate import settle_schemas
from headrace.log.intervals import place_of
from headrace.run.batch_sequence import BatchSequence
from headrace.run.options import StoppedBecause
from headrace.run.remaining_work import RemainingWork
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.slices import SliceRequest


@dataclass(frozen=True, slots=True)
class IntervalRun:
    """Run that takes in the interval of the run's options."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork

    def run(self) -> StoppedBecause:
        """Take in the interval, unless it is done. Raises `IntervalError` for an interval that was taken in and is not done."""
        batches = self.batches
        wanted = Interval.of(batches.options.interval_start, batches.options.interval_end)
        self.intake.check_intervals({})
        is_done = place_of(wanted, batches.job.checkpoints).restore_to is not None
        if is_done:
            self._refuse_unless_done(wanted)
        settle_schemas(batches.job, batches.plan)
        while not batches.limit() and (batches.make_requeued(self.intake) or batches.repeat_requeue()):
            pass
        if is_done:
            batches.events.interval_is_done(wanted)
        elif batches.stopping.is_set():
            return "terminated"
        else:
            self.intake.check_cut(wanted, batches.taken_in())
            self._take_in(wanted)
        stopped = self.remaining.end_interval()
        return "done" if is_done and stopped == "interval" else stopped

    def _refuse_unless_done(self, wanted: Interval) -> None:
        """Raise `IntervalError` for an interval behind the job's position whose input has changed, or that somebody asked for again."""
        line, asked_at = self.batches.job.lineage.line, self.batches.options.recompute
        has_all = is_taken_in(wanted, line)
        changes = []
        if has_all:
            all_changes = input_changes(line, self.intake.listed(), self.batches.config.storage_options)
            changes = changes_within(wanted, line, all_changes)
        if not has_all or changes or (asked_at is not None and not is_computed_again(wanted, line, asked_at)):
            raise refusal(self.batches.config.job, wanted, line, changes)

    def _take_in(self, interval: Interval) -> None:
        batches = self.batches
        batches.follow_without_input()
        live = batches.followed.of_interval(interval)
        taken = self.intake.next(batches.standing(live), SliceRequest(interval, follows=batches.followed.later(live)))
        assert taken is not None  # noqa: S101 - an interval always gives a slice, if an empty one
        batches.make(taken, taken.interval, follows=live)
