"""Run of mode interval: take in one interval. It takes in the same interval again only as a replay."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.commit.interval_order import goes_back, place_of, refusal
from headrace.commit.state_migration import settle_schemas
from headrace.errors import ReplayUnfinishedError
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.sources.slice_request import SliceRequest
from headrace.spark.batch_sequence import BatchSequence
from headrace.spark.options import StoppedBecause
from headrace.spark.remaining_work import RemainingWork
from headrace.spark.replay import open_replay
from headrace.spark.replay_run import ReplayRun


@dataclass(frozen=True, slots=True)
class IntervalRun:
    """Run that takes in the interval of the run's options."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork
    replays: ReplayRun

    def run(self) -> StoppedBecause:
        """Finish an open replay, then take in the interval; as a replay if it was taken in before."""
        batches, options = self.batches, self.batches.options
        wanted = Interval.of(options.interval_start, options.interval_end)
        self.intake.check_intervals({})
        if stopped := self._resume_before(wanted):
            return stopped
        checkpoints = batches.job.checkpoints
        place = place_of(wanted, checkpoints, batches.job, replay=options.replay)
        if place.restore_to is not None:
            if not options.replay:
                raise refusal(wanted, checkpoints, finished_replay=bool(batches.committed))
            stopped = self.replays.begin(wanted, place.restore_to)
            return stopped or self.remaining.end_interval()
        settle_schemas(batches.job, batches.plan)
        while not batches.limit() and batches.make_requeued(self.intake):
            pass
        if place.is_done:
            batches.events.interval_is_done(wanted)
        elif batches.stopping.is_set():
            return "terminated"
        else:
            self._take_in(wanted)
        return self.remaining.end_interval()

    def _resume_before(self, wanted: Interval) -> StoppedBecause | None:
        """Continue an open replay, unless a new one goes back to before its position; return what stopped it."""
        options, checkpoints = self.batches.options, self.batches.job.checkpoints
        replay = open_replay(checkpoints)
        if replay is None:
            return None
        is_retry = replay.run_id == options.run_id and replay.asked == wanted
        if options.replay and goes_back(wanted, checkpoints) and not is_retry:
            return None
        stopped = self.replays.resume(replay)
        if stopped in {None, "terminated"} or replay.asked == wanted:
            return stopped
        msg = (
            f"interval {wanted} was not taken in: this run first went on with the replay of interval {replay.asked}, and "
            f"had to end before that was through ({stopped}). What it committed stays. Run the interval again: it goes on."
        )
        raise ReplayUnfinishedError(msg)

    def _take_in(self, interval: Interval) -> None:
        batches = self.batches
        batches.follow_without_input()
        live = batches.followed.of_interval(interval)
        taken = self.intake.next(batches.standing(live), SliceRequest(interval, follows=batches.followed.later(live)))
        assert taken is not None  # noqa: S101 - an interval always gives a slice, if an empty one
        batches.make(taken, taken.interval, follows=live)
