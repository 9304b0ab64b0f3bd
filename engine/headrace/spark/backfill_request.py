"""Request for a backfill: continue the open one with its name, or begin a new one."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.commit.backfill_branches import open_branch
from headrace.commit.promotion import settle_promotion
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.plan.stages import Plan
from headrace.sources.interval import Interval
from headrace.spark.backfill import Backfill, BackfillResult, RunBranch
from headrace.spark.backfill_plan import BackfillPlan, plan_backfill
from headrace.spark.options import RunOptions


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Request for a backfill of an interval on the branch `name`."""

    config: JobConfig
    asked: Interval
    name: str
    renews: bool = False
    """Replace an open backfill with this name that cannot continue; see `plan_backfill`."""
    only_open: bool = False
    """Never begin a branch: do nothing if none with this name is open."""

    def plan(self) -> BackfillPlan:
        """Return the plan. Changes nothing. Raises the errors of `plan_backfill`."""
        return self._plan(checked_plan(self.config))

    def run(
        self, options: RunOptions, run_branch: RunBranch, limit: int = 20
    ) -> tuple[BackfillPlan, BackfillResult] | None:
        """Run the backfill as far as it gets; return plan and result. None: no branch was open, and none was begun.

        First finishes a promotion that was interrupted after its commit. Raises the errors of `plan` and `Backfill.run`.
        """
        settle_promotion(self.config, self.name, options.run_id)
        if self.only_open and open_branch(self.config, self.name) is None:
            return None
        code = checked_plan(self.config)
        plan = self._plan(code)
        return plan, Backfill(self.config, code, plan, options, run_branch, limit).run()

    def _plan(self, code: Plan) -> BackfillPlan:
        return plan_backfill(self.config, code, self.asked, self.name, renews=self.renews)
