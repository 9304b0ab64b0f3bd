"""A request for a backfill: it joins the open one of its name, or begins one."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.commit.backfill_branches import open_branch
from headrace.commit.promotion import settle_promotion
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig
from headrace.sources.interval import Interval
from headrace.spark.backfill import Backfill, BackfillResult, RunBranch
from headrace.spark.backfill_plan import BackfillPlan, plan_backfill
from headrace.spark.options import RunOptions


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Asks for a backfill of an interval on the branch `name`."""

    config: JobConfig
    asked: Interval
    name: str
    renews: bool = False
    """Replace an open backfill of that name that cannot go on; see `plan_backfill`."""
    only_open: bool = False
    """Never begin a branch: do nothing when none of that name is open."""

    def plan(self) -> BackfillPlan:
        """Return what is to be done. Nothing is changed. Raises what `plan_backfill` raises."""
        return plan_backfill(self.config, checked_plan(self.config), self.asked, self.name, renews=self.renews)

    def run(
        self, options: RunOptions, run_branch: RunBranch, limit: int = 20
    ) -> tuple[BackfillPlan, BackfillResult] | None:
        """Carry it out as far as it gets; return the plan and what came of it. None: no branch is open, and none was begun.

        A promotion that broke off behind its commit is finished first. Raises what `plan` and `Backfill.run` raise.
        """
        settle_promotion(self.config, self.name, options.run_id)
        if self.only_open and open_branch(self.config, self.name) is None:
            return None
        plan = self.plan()
        return plan, Backfill(self.config, checked_plan(self.config), plan, options, run_branch, limit).run()
