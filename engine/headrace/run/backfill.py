"""Backfill: compute past intervals again on a branch, compare it with the live tables, and promote it as the job's file says.

Request for a backfill: continue the open one with its name, or begin a new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.branch_code import refuse_effects
from headrace.commit.input_changes import listed_input
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig, Promote, with_settings
from headrace.edits.fork import drop_branch, fork, log_of
from headrace.edits.promote import Promotion, promoting, settle_promotion
from headrace.errors import FencedError, HeadraceError, add_to
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.plan.stages import Plan
from headrace.readers.difference import TableDifference, differences
from headrace.readers.job_at import JobAtCheckpoint
from headrace.run.backfill_branches import backfill_note, open_branch
from headrace.run.backfill_limits import refuse_beyond_limits
from headrace.run.backfill_plan import BackfillPlan, plan_backfill, refuse_changed_input
from headrace.run.options import RunOptions, RunReport
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval

RunBranch = Callable[[JobConfig, RunOptions], RunReport]
"""Function that runs a branch once, as `headrace.spark.run` does."""


class BackfillOutcome(StrEnum):
    """Outcome of a call of a backfill."""

    UNFINISHED = "unfinished"
    """A limit ended it. The same command continues it."""
    WAITING = "waiting"
    """More elements wait for services than on the live lineage. The same command continues it."""
    NEEDS_APPROVAL = "needs_approval"
    """The branch is complete and differs from the live tables. It waits for somebody to promote it."""
    PROMOTED = "promoted"
    """The live tables have the result, because the job's file says so or because nothing differs."""
    COMPARED = "compared"
    """The branch is complete, and the job's file says not to promote it."""


_OUTCOMES = {
    Promote.APPROVAL: BackfillOutcome.NEEDS_APPROVAL,
    Promote.AUTOMATIC: BackfillOutcome.PROMOTED,
    Promote.REFUSE: BackfillOutcome.COMPARED,
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """Comparison of a branch with the live job: the last checkpoints of both, and the tables that differ."""

    live: JobAtCheckpoint
    branch: JobAtCheckpoint
    tables: tuple[TableDifference, ...]


@dataclass(frozen=True, slots=True)
class BackfillResult:
    """Result of a backfill: the last run of its branch, and the outcome."""

    outcome: BackfillOutcome
    report: RunReport
    comparison: Comparison | None = None
    """Comparison with the live job; None until the branch is complete."""
    promotion: int | None = None
    """Live checkpoint of the promotion; None before it."""

    @property
    def changes_nothing(self) -> bool:
        """Return whether the branch was compared, and no table differs."""
        return self.comparison is not None and not self.comparison.tables


@dataclass(frozen=True, slots=True)
class Backfill:
    """Execution of a plan. `options` are those of the branch's runs, with the interval of the plan."""

    config: JobConfig
    code: Plan
    plan: BackfillPlan
    options: RunOptions
    run_branch: RunBranch
    limit: int = 20
    """Number of rows of each table in the comparison."""
    names_days: bool = False
    """The comparison names the intervals of the sinks' rows that differ."""

    def run(self) -> BackfillResult:
        """Fork the branch if it is missing, run it up to the live head, compare it, and promote it if the job's file says so.

        A branch that changes nothing is promoted without approval: the job then knows that the present input is in its tables.

        Writes only to the branch until the promotion: after a crash at any point, the same command continues. Raises the errors of
        `fork` and of the branch's runs, and `SourceError` when input has changed that the branch took in; the live tables are then
        unchanged.
        """
        plan = self.plan
        if not self.options.allow_effects:
            refuse_effects(self._on_branch, self.code)
        if plan.replaced is not None:
            drop_branch(
                self.config, plan.name, self.options.run_id, backfill_note(plan.requested), requested=plan.requested
            )
        if plan.branch is None or not log_of(self._on_branch).checkpoints:
            fork(
                self.config,
                plan.name,
                plan.fork_id,
                self.options.run_id,
                backfill_note(plan.requested),
                settings=plan.settings,
                requested=plan.requested,
            )
        crash_points.reached("backfill.forked")
        try:
            computed = self._computed()
            return self._promoted(computed) if computed.outcome is BackfillOutcome.PROMOTED else computed
        except HeadraceError as error:
            error.has_begun = True
            raise

    @property
    def _on_branch(self) -> JobConfig:
        return with_settings(self.config, self.plan.settings).on_branch(self.plan.name)

    def _catch_up(self) -> RunReport:
        requested = self.plan.requested
        options = replace(self.options, mode="backfill", interval_start=requested.start, interval_end=requested.end)
        try:
            report = self.run_branch(self._on_branch, options)
        except HeadraceError as error:
            job, name = self.config.job, self.plan.name
            add_to(
                error,
                f"Branch '{name}' stays open, and the live tables are as before: the same command goes on with it, and 'headrace branch "
                f"drop {job} {name}' removes it.",
            )
            raise
        crash_points.reached("backfill.caught_up")
        return report

    def _computed(self) -> BackfillResult:
        """Run the branch up to the live head and compare it. The outcome `PROMOTED` means that the branch may be promoted now."""
        report = self._catch_up()
        if report.stopped_because != "interval":
            return BackfillResult(BackfillOutcome.UNFINISHED, report)
        live, branch = (JobAtCheckpoint(config) for config in (self.config, self._on_branch))
        self._check_input(branch.log)
        comparison = Comparison(live, branch, tuple(self._differences(live, branch)))
        return BackfillResult(self._outcome(comparison), report, comparison)

    def _differences(self, live: JobAtCheckpoint, branch: JobAtCheckpoint) -> Iterator[TableDifference]:
        return differences(live, branch, limit=self.limit, names_intervals=self.names_days)

    def _check_input(self, log: CheckpointLog) -> None:
        """Raise `SourceError` when input has changed that the branch took in. The simulation has its own."""
        lineage = log.lineage.checkpoints
        listed = listed_input(Intake(self.code, self.config), lineage)
        refuse_changed_input(self.config, self.plan.name, lineage, listed)

    def _outcome(self, comparison: Comparison) -> BackfillOutcome:
        """Return what the job's file says about a complete branch. A branch that changes nothing needs no approval."""
        if comparison.branch.checkpoint.work.pending > comparison.live.checkpoint.work.pending:
            return BackfillOutcome.WAITING
        outcome = _OUTCOMES[self.config.replay.promote]
        if outcome is BackfillOutcome.NEEDS_APPROVAL and not comparison.tables:
            return BackfillOutcome.PROMOTED
        return outcome

    def _promoted(self, computed: BackfillResult) -> BackfillResult:
        """Promote the branch.

        If the job has taken in more input since, the branch catches up while this call holds the job. It is then compared again: it
        may differ now. So may a branch or a job with another checkpoint than the compared one, such as a restore.
        """
        with self._promoting() as promotion:
            if promotion.is_behind or not self._is_as_compared(computed, promotion):
                computed = self._computed()
                if computed.outcome is not BackfillOutcome.PROMOTED:
                    return computed
            checkpoint = promotion.promote()
        return BackfillResult(computed.outcome, computed.report, computed.comparison, checkpoint.checkpoint_id)

    @contextmanager
    def _promoting(self) -> Iterator[Promotion]:
        """Hold the job to promote the branch. Raises `FencedError` that names the way on while a run holds the job."""
        name = self.plan.name
        with ExitStack() as stack:
            try:
                promotion = stack.enter_context(promoting(self.config, name, self.options.run_id))
            except FencedError as error:
                by_hand = f"'headrace branch promote {self.config.job} {name}'"
                add_to(
                    error,
                    f"Branch '{name}' is complete, and is to be promoted: the same command does that then, and so does {by_hand}.",
                )
                raise
            yield promotion

    def _is_as_compared(self, computed: BackfillResult, promotion: Promotion) -> bool:
        """Return whether nobody has committed to the job or to the branch since they were compared."""
        if self.config.replay.promote is Promote.AUTOMATIC or computed.comparison is None:
            return True
        compared = computed.comparison
        return (promotion.job.last, log_of(self._on_branch).last) == (
            compared.live.checkpoint,
            compared.branch.checkpoint,
        )


@dataclass(frozen=True, slots=True)
class BackfillRequest:
    """Request for a backfill of an interval on the branch `name`."""

    config: JobConfig
    requested: Interval
    name: str
    renews: bool = False
    """Replace an open backfill with this name that cannot continue; see `plan_backfill`."""
    only_open: bool = False
    """Never begin a branch: do nothing if none with this name is open."""
    names_days: bool = False
    """See `Backfill.names_days`."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of the branch's own, by dotted key, as `replay.sources.orders`."""

    @property
    def promoted(self) -> int | None:
        """Live checkpoint of the last promotion of a branch with this name; None without one."""
        log = log_of(self.config)
        own = (c for c in reversed(log.checkpoints) if c.kind is Kind.PROMOTION and c.name == self.name)
        return next((checkpoint.checkpoint_id for checkpoint in own), None)

    def plan(self) -> BackfillPlan:
        """Return the plan. Changes nothing. Raises the errors of `plan_backfill`."""
        return self._plan(checked_plan(self.config))

    def run(
        self, options: RunOptions, run_branch: RunBranch, limit: int = 20
    ) -> tuple[BackfillPlan, BackfillResult] | None:
        """Run the backfill as far as it gets; return plan and result. None: no branch was open, and none was begun.

        First finishes a promotion that was interrupted after its commit. Raises the errors of `plan` and `Backfill.run`, and
        `LimitError` for a plan that goes beyond the limits of the job's file, unless the options allow it.
        """
        settle_promotion(self.config, self.name, options.run_id)
        if self.only_open and open_branch(self.config, self.name) is None:
            return None
        code = checked_plan(self.config)
        plan = self._plan(code)
        if not options.beyond_limits:
            refuse_beyond_limits(self.config, plan)
        return plan, Backfill(self.config, code, plan, options, run_branch, limit, self.names_days).run()

    def _plan(self, code: Plan) -> BackfillPlan:
        return plan_backfill(self.config, code, self.requested, self.name, renews=self.renews, settings=self.settings)
