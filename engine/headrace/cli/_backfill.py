"""`headrace backfill`: past intervals computed again, beside the job, and compared with what is live."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from headrace.cli._arguments import AsJson, Cluster, Job, Limit, load, new_run_id, parsed_milliseconds
from headrace.cli._diff import plain_differences, show_differences
from headrace.cli._run_arguments import AllowEffects, Budget, RunId, budget_seconds
from headrace.cli._run_events import shown_events

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.spark.backfill import BackfillResult
    from headrace.spark.backfill_plan import BackfillPlan

From = Annotated[str, typer.Option("--from", metavar="DAY", help="A day or a moment (UTC), inclusive.")]
To = Annotated[str, typer.Option("--to", metavar="DAY", help="Likewise, exclusive: the day behind the last one.")]
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--name", help="The branch; backfill_20130110_20130111 if left out."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]

_NO_LIMIT: Final = timedelta(days=3650).total_seconds()
"""The budget of a backfill that is given none (s)."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("backfill")(backfill)


def backfill(
    job: Job = None,
    *,
    start: From,
    end: To,
    name: Name = None,
    dry_run: DryRun = False,
    allow_effects: AllowEffects = False,
    budget: Budget = None,
    limit: Limit = 20,
    cluster: Cluster = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Compute past intervals again, with today's code and input, and compare the result with what is live.

    It works on a branch: live tables stay as they are, and the job goes on. The branch begins before the interval, or before the
    first file that is not what the job took in. It takes in the interval and all that the job took in behind it. Then it shows how
    state and sinks differ (-n rows of each table), and what comes next: 'replay.promote' in the job's file says whether the result
    becomes live by itself, by 'headrace branch promote', or not at all.

    It may be killed at any point: the same command goes on. Services are called again; --dry-run says how many calls there were.

    Example:  headrace backfill flights --from 2013-01-10 --to 2013-01-11 --dry-run

    Exit codes: 0 done, or out of budget; 2 configuration, another backfill is open, or a job without branches; 3 another
    command holds the branch or the job; 4 a service is down; 5 user code raised; 6 stored state does not fit; 7 bad input, or
    input that changed again; 8 storage, or the fork's files are gone; 9 the interval was not taken in yet; 10 job
    and sink disagree; 12 rows conflict over a primary key; 13 Spark died, or did not start: run again.
    """
    from headrace.cli._arrow import without_pandas

    without_pandas()
    from headrace.commit.run_check import checked_plan
    from headrace.sources.interval import Interval
    from headrace.spark import RunOptions
    from headrace.spark.backfill import Backfill
    from headrace.spark.backfill_plan import plan_backfill

    config = load(job, cluster)
    code = checked_plan(config)
    plan = plan_backfill(config, code, Interval.of(parsed_milliseconds(start), parsed_milliseconds(end)), name)
    if dry_run:
        _show_plan(config, plan, as_json=as_json)
        return
    seconds = budget_seconds(budget)
    options = RunOptions(
        run_id=run_id or new_run_id(),
        cluster=cluster,
        budget=_NO_LIMIT if seconds is None else seconds,
        allow_effects=allow_effects,
    )
    with shown_events() as on_event:
        from headrace.spark import run as run_job

        result = Backfill(
            config, code, plan, options, lambda branch, asked: run_job(branch, asked, on_event), limit
        ).run()
    _show_result(config, plan, result, as_json=as_json)


def _show_plan(config: JobConfig, plan: BackfillPlan, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show, table
    from headrace.sources.interval import moment_text

    if as_json:
        print_json(_plain_plan(config, plan))
        return
    estimate = plan.estimate
    begin = f"checkpoint {plan.fork_id}, which stands at {moment_text(plan.begins_at)}"
    rows = [
        ("branch", f"{plan.name}{'' if plan.branch is None else ' (goes on)'}"),
        ("forks at", begin),
        ("because", "the interval begins there" if plan.reason is None else str(plan.reason)),
        ("micro-batches", _listed_steps(plan)),
        ("files", f"{estimate.files:,}"),
        ("rows", f"{estimate.rows:,} at the first time"),
        ("minutes", f"{estimate.seconds / 60:.1f} at the first time"),
        *(("calls", f"{count:,} by '{name}' at the first time: made again") for name, count in estimate.calls.items()),
        ("sinks", ", ".join(estimate.sinks) or "none"),
        ("then", _policy(config)),
    ]
    show(f"backfill of {plan.asked} by job '{config.job}': nothing was done yet", table(("", ""), rows))
    if plan.changes:
        show("Input that is not what the job took in:", *(f"  {change}" for change in plan.changes[:10]))
        if len(plan.changes) > 10:  # noqa: PLR2004 - as many as above
            show(f"  and {len(plan.changes) - 10:,} more (--json has all)")


def _listed_steps(plan: BackfillPlan) -> str:
    if not plan.steps:
        return "none: the branch has come to where the job stands"
    first, last = plan.steps[0], plan.steps[-1]
    return f"1: {first}" if len(plan.steps) == 1 else f"{len(plan.steps):,}: {first}, ..., {last}"


def _policy(config: JobConfig) -> str:
    from headrace.config import Promote

    return {
        Promote.AUTOMATIC: "promotes the result (replay.promote: automatic)",
        Promote.APPROVAL: "waits for 'headrace branch promote' (replay.promote: approval)",
        Promote.REFUSE: "leaves it at the comparison (replay.promote: refuse)",
    }[config.replay.promote]


def _plain_plan(config: JobConfig, plan: BackfillPlan) -> dict[str, Any]:
    import msgspec

    from headrace.cli._output import at_time

    estimate = plan.estimate
    return {
        "job": config.job,
        "name": plan.name,
        "from": at_time(plan.asked.start),
        "to": at_time(plan.asked.end),
        "fork_id": plan.fork_id,
        "begins_at": at_time(plan.begins_at),
        "goes_on": plan.branch is not None,
        "reason": None if plan.reason is None else msgspec.to_builtins(plan.reason),
        "changes": [msgspec.to_builtins(change) for change in plan.changes],
        "steps": [str(step) for step in plan.steps],
        "files": estimate.files,
        "rows": estimate.rows,
        "seconds": estimate.seconds,
        "calls": dict(estimate.calls),
        "sinks": list(estimate.sinks),
        "promote": config.replay.promote.value,
    }


def _show_result(config: JobConfig, plan: BackfillPlan, result: BackfillResult, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show, table

    found = result.comparison
    if as_json:
        print_json(
            {
                "job": config.job,
                "name": plan.name,
                "run_id": result.report.run_id,
                "outcome": result.outcome.value,
                "fork_id": plan.fork_id,
                "checkpoint": result.report.checkpoint,
                "rows_in": result.report.rows_in,
                "waiting": result.report.waiting,
                "stopped_because": result.report.stopped_because,
                "promotion": result.promotion,
                "differences": found
                and plain_differences(found.live.checkpoint, found.branch.checkpoint, found.tables),
            }
        )
        return
    if found is not None:
        show_differences(found.live, found.branch, found.tables, as_json=False)
    text, commands = _next_steps(config.job, plan, result)
    show(text, *([table(("", ""), commands)] if commands else []))


def _next_steps(job: str, plan: BackfillPlan, result: BackfillResult) -> tuple[str, list[tuple[str, str]]]:
    """Say how a backfill has ended, and which commands come next."""
    from headrace.cli._output import at_time, shown
    from headrace.spark.backfill import BackfillOutcome

    name, outcome = plan.name, result.outcome
    begin, end = (shown(at_time(moment)).removesuffix("T00:00:00Z") for moment in (plan.asked.start, plan.asked.end))
    again = (f"headrace backfill {job} --from {begin} --to {end} --name {name}", "goes on")
    promote = (f"headrace branch promote {job} {name}", "makes the result live")
    look = (f"headrace branch diff {job} {name}", "compares it with the job")
    drop = (f"headrace branch drop {job} {name}", "removes it")
    if outcome is BackfillOutcome.UNFINISHED:
        text = f"branch '{name}' is not through ({result.report.stopped_because}). The live tables are as before."
        return text, [again, drop]
    if outcome is BackfillOutcome.WAITING:
        text = (
            f"{result.report.waiting:,} elements of branch '{name}' wait for services, so the result lacks them (headrace retries {job} "
            f"--branch {name}). The live tables are as before. Go on when the services answer."
        )
        return text, [again, promote, drop]
    if outcome is BackfillOutcome.PROMOTED:
        return f"branch '{name}' is promoted: checkpoint {result.promotion} of job '{job}' has the result", []
    if outcome is BackfillOutcome.COMPARED:
        text = f"branch '{name}' is not promoted, as replay.promote says. The live tables are as before."
        return text, [look, drop]
    text = f"branch '{name}' waits for approval. The live tables are as before."
    return text, [promote, look, drop]
