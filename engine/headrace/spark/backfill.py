"""A backfill: past intervals are computed again on a branch, compared with the live tables, and promoted as the job's file says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from headrace import faults
from headrace.commit.backfill_branches import backfill_note
from headrace.commit.branch_refusals import refuse_effects
from headrace.commit.fork import drop_branch, fork, log_of
from headrace.commit.promotion import promoting
from headrace.config import JobConfig, Promote
from headrace.plan.stages import Plan
from headrace.readers.difference import TableDifference, differences
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.sources.intake import Intake
from headrace.spark.backfill_plan import BackfillPlan, refuse_changed_input
from headrace.spark.options import RunOptions, RunReport

RunBranch = Callable[[JobConfig, RunOptions], RunReport]
"""Runs a branch once, as `headrace.spark.run` does."""


class BackfillOutcome(StrEnum):
    """How a backfill has ended."""

    UNFINISHED = "unfinished"
    """It ran into a limit. The same command goes on."""
    WAITING = "waiting"
    """More elements wait for services than on the live line. The same command goes on."""
    NEEDS_APPROVAL = "needs_approval"
    """The branch is through, and waits for somebody to promote it."""
    PROMOTED = "promoted"
    """The live tables have the result."""
    COMPARED = "compared"
    """The branch is through, and the job's file says that it is not promoted."""


_OUTCOMES = {
    Promote.APPROVAL: BackfillOutcome.NEEDS_APPROVAL,
    Promote.AUTOMATIC: BackfillOutcome.PROMOTED,
    Promote.REFUSE: BackfillOutcome.COMPARED,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a branch differs from the live job: both at their last checkpoints, and the tables that differ."""

    live: JobAtCheckpoint
    branch: JobAtCheckpoint
    tables: tuple[TableDifference, ...]


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """What a backfill has done: the last run of its branch, and what came of it."""

    outcome: BackfillOutcome
    report: RunReport
    comparison: Comparison | None = None
    """None while the branch is not through."""
    promotion: int | None = None
    """The live checkpoint that has the result, once it is promoted."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """Carries out a plan. `options` are those of the branch's runs; their interval is the plan's."""

    config: JobConfig
    code: Plan
    plan: BackfillPlan
    options: RunOptions
    run_branch: RunBranch
    limit: int = 20
    """Rows of each table that the comparison has."""

    def run(self) -> BackfillResult:
        """Fork the branch if it is not there, run it up to the live head, compare, and do what the job's file says.

        It leaves no trace but the branch: after a crash anywhere the same command goes on. Raises what `fork` and runs of the branch
        raise, and `SourceError` when input has changed that the branch took in; the live tables are then as before.
        """
        plan = self.plan
        if not self.options.allow_effects:
            refuse_effects(self._on_branch, self.code)
        if plan.replaced is not None:
            drop_branch(self.config, plan.name, self.options.run_id, backfill_note(plan.asked))
        if plan.branch is None or not log_of(self._on_branch).checkpoints:
            fork(self.config, plan.name, plan.fork_id, self.options.run_id, backfill_note(plan.asked))
        faults.reached("backfill.forked")
        report = self._catch_up()
        if report.stopped_because != "interval":
            return BackfillResult(BackfillOutcome.UNFINISHED, report)
        self._check_input()
        comparison = self._compared()
        if comparison.branch.checkpoint.pending > comparison.live.checkpoint.pending:
            return BackfillResult(BackfillOutcome.WAITING, report, comparison)
        if self.config.replay.promote is Promote.AUTOMATIC:
            return self._promoted(report, comparison)
        return BackfillResult(_OUTCOMES[self.config.replay.promote], report, comparison)

    @property
    def _on_branch(self) -> JobConfig:
        return self.config.on_branch(self.plan.name)

    def _catch_up(self) -> RunReport:
        asked = self.plan.asked
        wishes = replace(self.options, mode="backfill", interval_start=asked.start, interval_end=asked.end)
        report = self.run_branch(self._on_branch, wishes)
        faults.reached("backfill.caught_up")
        return report

    def _check_input(self) -> None:
        line = log_of(self._on_branch).lineage.line
        refuse_changed_input(self.config, self.plan.name, line, Intake(self.code, self.config).listed())

    def _compared(self) -> Comparison:
        live, branch = (JobAtCheckpoint(config, None) for config in (self.config, self._on_branch))
        return Comparison(live, branch, tuple(differences(live, branch, limit=self.limit)))

    def _promoted(self, report: RunReport, comparison: Comparison) -> BackfillResult:
        """Promote the branch. The job may have gone on since: the branch catches up while it holds the job."""
        with promoting(self.config, self.plan.name, self.options.run_id) as promotion:
            if promotion.is_behind:
                report = self._catch_up()
                if report.stopped_because != "interval":
                    return BackfillResult(BackfillOutcome.UNFINISHED, report, comparison)
                self._check_input()
            made = promotion.promote()
        return BackfillResult(BackfillOutcome.PROMOTED, report, comparison, made.checkpoint_id)
