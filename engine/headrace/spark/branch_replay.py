"""A run of a backfill's branch: what the live line has taken in behind the fork, in the same cuts, with today's code and input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from headrace.commit.backfill_branches import left_behind
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.fork import log_of
from headrace.commit.state_migration import settle_schemas
from headrace.errors import ConfigError
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval
from headrace.spark.batch_sequence import BatchSequence
from headrace.spark.options import StoppedBecause
from headrace.spark.remaining_work import RemainingWork
from headrace.spark.replay import Replay, branch_replay
from headrace.spark.replay_run import ReplayRun


@dataclass(frozen=True, slots=True)
class BranchReplay:
    """Takes in on a branch the interval that the run's options name, and all that the job has taken in behind it."""

    batches: BatchSequence
    intake: Intake
    remaining: RemainingWork
    replays: ReplayRun

    def run(self) -> StoppedBecause:
        """Go on from where the branch stands up to where the job stands, and return what ended it.

        The job may go on meanwhile: it is looked at again until it has nothing new.
        """
        self.intake.check_intervals({})
        settle_schemas(self.batches.job, self.batches.plan)
        while (replay := self._left()) is not None:
            made = len(self.batches.committed)
            if stopped := self.replays.take_in(replay.steps):
                self.batches.events.backfill_stopped(replay, stopped)
                return stopped
            if len(self.batches.committed) == made:
                break  # files that are gone leave nothing to take in
        return self.remaining.end_interval()

    def _left(self) -> Replay | None:
        options, config = self.batches.options, self.batches.config
        asked = Interval.of(options.interval_start, options.interval_end)
        line = self.batches.job.lineage.line
        fork_id = _fork_id(config.job, line)
        live = log_of(replace(config, branch=None)).lineage.line
        if all(checkpoint.checkpoint_id != fork_id for checkpoint in live):
            raise left_behind(config, config.branch or "", fork_id)
        return branch_replay(asked, options.run_id, live, line, fork_id)


def _fork_id(job: str, line: Sequence[Checkpoint]) -> int:
    """Return the live checkpoint that a branch begins at. Raises `ConfigError` on a line that is no branch's."""
    for checkpoint in line:
        if checkpoint.kind is Kind.FORK and checkpoint.restored_from is not None:
            return checkpoint.restored_from
    msg = f"a run of mode backfill needs a branch of job '{job}': 'headrace backfill' makes one. Nothing was run."
    raise ConfigError(msg)
