"""Run of mode interval: take in one interval. An interval that is done stays as it is; only a replay takes it in again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.input_changes import InputChange, input_changes
from headrace.commit.interval_order import goes_back, place_of
from headrace.commit.state_migration import settle_schemas
from headrace.commit.taken_intervals import Request, changes_within, is_computed_again, is_taken_in, refusal
from headrace.errors import ReplayUnfinishedError
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.slice_request import SliceRequest
from headrace.spark.batch_sequence import BatchSequence
from headrace.spark.options import StoppedBecause
from headrace.spark.remaining_work import RemainingWork
from headrace.spark.replay import Replay, open_replay
from headrace.spark.replay_run import ReplayRun


@dataclass(frozen=True, slots=True)
class IntervalRun:
    """Run that takes in the interval of the run's options."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork
    replays: ReplayRun

    def run(self) -> StoppedBecause:
        """Finish an open replay, then take in the interval, unless it is done; as a replay if it was taken in before.

        Raises `IntervalError` for an interval that was taken in and is not done, without `replay`.
        """
        batches, options = self.batches, self.batches.options
        wanted = Interval.of(options.interval_start, options.interval_end)
        self.intake.check_intervals({})
        replay = open_replay(batches.job.checkpoints)
        begun_by = None if replay is None else self._restore_of(wanted, replay)
        request = self._request(begun_by)
        if replay is not None and (stopped := self._resume_before(wanted, replay, is_own=begun_by is not None)):
            return stopped
        checkpoints = batches.job.checkpoints
        place = place_of(wanted, checkpoints)
        is_done = place.restore_to is not None and self._is_done(wanted, request)
        if place.restore_to is not None and not is_done:
            stopped = self.replays.begin(wanted, place.restore_to)
            return stopped or self.remaining.end_interval()
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

    def _request(self, begun_by: Checkpoint | None) -> Request | None:
        """Return the request to compute the interval again; None without one. The restore that began its open replay came after it."""
        options = self.batches.options
        if options.recompute is None and not options.replay:
            return None
        return Request((begun_by or self.batches.job.last).checkpoint_id, options.recompute)

    def _is_done(self, wanted: Interval, request: Request | None) -> bool:
        """Return whether an interval behind the job's position is done. Raises `IntervalError` if it is not, without `replay`."""
        line = self.batches.job.lineage.line
        has_all = is_taken_in(wanted, line)
        changes = changes_within(wanted, line, self._changes(line)) if has_all else []
        if has_all and not changes and (request is None or is_computed_again(wanted, line, request)):
            return True
        if self.batches.options.replay:
            return False
        job, has_finished_replay = self.batches.config.job, bool(self.batches.committed)
        raise refusal(job, wanted, line, changes, finished_replay=has_finished_replay)

    def _changes(self, line: Sequence[Checkpoint]) -> list[InputChange]:
        return input_changes(line, self.intake.listed(), self.batches.config.storage_options)

    def _resume_before(self, wanted: Interval, replay: Replay, *, is_own: bool) -> StoppedBecause | None:
        """Continue an open replay, unless a new one goes back to before its position; return what stopped it."""
        options, checkpoints = self.batches.options, self.batches.job.checkpoints
        if options.replay and goes_back(wanted, checkpoints) and not is_own:
            return None
        stopped = self.replays.resume(replay)
        if stopped in {None, "terminated"} or replay.asked == wanted:
            return stopped
        msg = (
            f"interval {wanted} was not taken in: this run first went on with the replay of interval {replay.asked}, and "
            f"had to end before that was through ({stopped}). What it committed stays. Run the interval again: it goes on."
        )
        raise ReplayUnfinishedError(msg)

    def _restore_of(self, wanted: Interval, replay: Replay) -> Checkpoint | None:
        """Return the restore that began an open replay, if this run wants the same: its request came before, and the input has not changed."""
        begun_by, recompute = replay.begun_by, self.batches.options.recompute
        if replay.asked != wanted or begun_by is None or begun_by.committed_at < (recompute or 0):
            return None
        changes = self._changes(self.batches.job.lineage.line)
        return begun_by if all(change.checkpoint_id <= begun_by.checkpoint_id for change in changes) else None

    def _take_in(self, interval: Interval) -> None:
        batches = self.batches
        batches.follow_without_input()
        live = batches.followed.of_interval(interval)
        taken = self.intake.next(batches.standing(live), SliceRequest(interval, follows=batches.followed.later(live)))
        assert taken is not None  # noqa: S101 - an interval always gives a slice, if an empty one
        batches.make(taken, taken.interval, follows=live)
