"""`headrace backfill`: compute past intervals again on a branch, and compare the result with the live tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from headrace.cli.arguments import Cluster, Job, Limit, check_word, load, new_run_id, parsed_milliseconds
from headrace.cli.diff import difference_blocks, plain_differences
from headrace.cli.run import (
    AllowEffects,
    Budget,
    RunId,
    Runner,
    budget_seconds,
    run_function,
    shown_events,
)
from headrace.names import counted
from headrace.report import Block, Fact, Note, Report, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.run.backfill import BackfillRequest, BackfillResult
    from headrace.run.backfill_plan import BackfillPlan
    from headrace.run.options import RunOptions
    from headrace.sources.interval import Interval


From = Annotated[str, typer.Option("--from", metavar="DAY", help="A day or a timestamp (UTC), inclusive.")]
To = Annotated[str, typer.Option("--to", metavar="DAY", help="Likewise, exclusive: the day after the last one.")]
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--name", help="Name of the branch, by default as backfill_20130110_20130111."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and do nothing.")]
Policy = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--promote",
        metavar="automatic|approval|refuse",
        help="Overrides 'replay.promote' in the job's file.",
    ),
]
Renew = Annotated[
    bool, typer.Option("--renew", help="Replace an open branch that cannot continue by one for both intervals.")
]
Days = Annotated[bool, typer.Option("--days", help="Also find the days whose rows of each sink differ.")]
OnlyOpen = Annotated[bool, typer.Option("--only-open", help="Continue an open branch; do nothing if there is none.")]

_NO_LIMIT: Final = timedelta(days=3650).total_seconds()
"""Default budget of a backfill (s)."""


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
    promote: Policy = None,
    renew: Renew = False,
    only_open: OnlyOpen = False,
    days: Days = False,
    allow_effects: AllowEffects = False,
    budget: Budget = None,
    limit: Limit = 20,
    cluster: Cluster = None,
    runner: Runner = None,
    run_id: RunId = None,
) -> Report:
    """Compute past intervals again, with today's code and input, and compare the result with the live tables.

    It works on a branch: live tables stay as they are, and the job may run meanwhile. The branch begins before the interval, or before
    the first input file that has changed since the job took it in. It takes in the interval and all later input of the job. Then the
    command shows how state and sinks differ (-n rows of each table), and the next step: by 'replay.promote' in the job's file, the
    result becomes live at once, by 'headrace branch promote', or not at all. If nothing differs, no approval is needed.

    You may kill it at any point: the same command continues. Services whose responses are kept are not called again, others are;
    --dry-run shows both numbers.

    Schedulers name the branch, and join requests. --renew replaces an open branch that begins too late, or whose input has changed
    since, by one for both intervals. --only-open never begins a branch, for requests whose branch may be promoted or dropped by then.
    --report FILE writes the output of --json, or {"error", "message", "exit_code"}, to FILE.

    Example:  headrace backfill flights --from 2013-01-10 --to 2013-01-11 --dry-run

    Exit codes: 0 done, or out of budget; 2 configuration, another open backfill, or a job that can have no branches; 3 another
    command holds the branch or the job; 4 a service is down; 5 user code raised; 6 stored state does not fit; 7 bad input, or
    input that changed again; 8 storage, or the fork's files are gone; 9 the interval was not taken in yet; 10 job
    and sink disagree; 12 rows conflict over a primary key; 13 Spark died, or did not start: run again.
    """
    from headrace.run.backfill import BackfillRequest
    from headrace.run.backfill_branches import default_name
    from headrace.run.options import RunOptions

    config, requested = _with_policy(load(job, cluster), promote), _interval(start, end)
    request = BackfillRequest(config, requested, name or default_name(requested), renew, only_open, days)
    if dry_run:
        return _of_plan(request.config, request.plan())
    seconds = budget_seconds(budget)
    options = RunOptions(
        run_id=run_id or new_run_id(),
        cluster=cluster,
        budget=_NO_LIMIT if seconds is None else seconds,
        allow_effects=allow_effects,
    )
    with shown_events() as on_event:
        run_job = run_function(config, runner)
        ended = request.run(options, lambda branch, requested: run_job(branch, requested, on_event), limit)
    content = _plain_nothing(request, options) if ended is None else _plain_result(request.config, *ended)
    return Report(*facts(**content), *_result_blocks(request, ended))


def _with_policy(config: JobConfig, promote: str | None) -> JobConfig:
    """Return the configuration with `replay.promote` from --promote. Raises `ConfigError` for an unknown value."""
    from msgspec.structs import replace

    from headrace.config import Promote

    if promote is None:
        return config
    check_word("--promote", promote, Promote)
    return replace(config, replay=replace(config.replay, promote=Promote(promote)))


def _interval(start: str, end: str) -> Interval:
    from headrace.sources.interval import Interval

    return Interval.of(parsed_milliseconds(start), parsed_milliseconds(end))


def _of_plan(config: JobConfig, plan: BackfillPlan) -> Report:
    rest = len(plan.changes) - _MOST_CHANGES
    return Report(
        *facts(**_plain_plan(config, plan)),
        f"plan of a backfill of {plan.requested} by job '{config.job}'; nothing was changed",
        *(Fact(None, text, label) for label, text in _shown_plan(config, plan)),
        "Input that has changed since the job took it in:" if plan.changes else None,
        *(f"  {change}" for change in plan.changes[:_MOST_CHANGES]),
        f"  and {rest:,} more (--json has all)" if rest > 0 else None,
    )


_MOST_CHANGES: Final = 10


def _shown_plan(config: JobConfig, plan: BackfillPlan) -> Iterator[tuple[str, str]]:
    """Yield what people read of a plan, with labels."""
    from headrace.sources.interval import timestamp_text

    estimate = plan.estimate
    way = " (goes on)" if plan.branch is not None else " (anew)" if plan.replaced is not None else ""
    yield "branch", f"{plan.name}{way}"
    yield "forks at", f"checkpoint {plan.fork_id}, which stands at {timestamp_text(plan.begins_at)}"
    yield "because", _reason(plan)
    yield "micro-batches", _listed_steps(plan)
    yield "files", f"{estimate.files:,}"
    yield "rows", f"{estimate.rows:,} at the first time"
    yield "minutes", f"{estimate.seconds / 60:.1f} at the first time"
    for name, count in estimate.calls.items():
        yield "calls", f"{count:,} by '{name}' at the first time: made again"
    for name, count in estimate.responses.items():
        yield "responses", f"{count:,} of '{name}' are kept: taken, with calls for changed requests only"
    yield "sinks", ", ".join(estimate.sinks) or "none"
    yield "then", _policy(config, plan.name)


def _reason(plan: BackfillPlan) -> str:
    if plan.branch is not None:
        return "the branch is open"
    return "the interval begins there" if plan.reason is None else str(plan.reason)


def _listed_steps(plan: BackfillPlan) -> str:
    if not plan.steps:
        return "none: the branch has taken in all input of the job"
    first, last = plan.steps[0], plan.steps[-1]
    return f"1: {first}" if len(plan.steps) == 1 else f"{len(plan.steps):,}: {first}, ..., {last}"


def _policy(config: JobConfig, branch: str) -> str:
    from headrace.config import Promote

    return {
        Promote.AUTOMATIC: "promotes the result (replay.promote: automatic)",
        Promote.APPROVAL: f"waits for 'headrace branch promote {config.job} {branch}' if anything differs (replay.promote: approval)",
        Promote.REFUSE: "ends after the comparison (replay.promote: refuse)",
    }[config.replay.promote]


def _plain_plan(config: JobConfig, plan: BackfillPlan) -> dict[str, Any]:
    import msgspec

    estimate = plan.estimate
    return {
        "job": config.job,
        "name": plan.name,
        "from": Time(plan.requested.start),
        "to": Time(plan.requested.end),
        "fork_id": plan.fork_id,
        "begins_at": Time(plan.begins_at),
        "goes_on": plan.branch is not None,
        "renews": plan.replaced is not None,
        "reason": None if plan.reason is None else msgspec.to_builtins(plan.reason),
        "changes": [msgspec.to_builtins(change) for change in plan.changes],
        "steps": [str(step) for step in plan.steps],
        "files": estimate.files,
        "rows": estimate.rows,
        "seconds": estimate.seconds,
        "calls": dict(estimate.calls),
        "responses": dict(estimate.responses),
        "sinks": list(estimate.sinks),
        "promote": config.replay.promote.value,
    }


def _plain_nothing(request: BackfillRequest, options: RunOptions) -> dict[str, Any]:
    named = {"job": request.config.job, "name": request.name, "run_id": options.run_id}
    return {**named, "outcome": "nothing_open", "promotion": request.promoted}


def _plain_result(config: JobConfig, plan: BackfillPlan, result: BackfillResult) -> dict[str, Any]:
    report, compared = result.report, result.comparison
    return {
        "job": config.job,
        "name": plan.name,
        "run_id": report.run_id,
        "from": Time(plan.requested.start),
        "to": Time(plan.requested.end),
        "outcome": result.outcome.value,
        "fork_id": plan.fork_id,
        "checkpoint": report.checkpoint,
        "checkpoints": report.checkpoints,
        "rows_in": report.rows_in,
        "responses_taken": report.responses_taken,
        "waiting": report.waiting,
        "stopped_because": report.stopped_because,
        "promotion": result.promotion,
        "differences": compared
        and plain_differences(compared.live.checkpoint, compared.branch.checkpoint, compared.tables),
    }


def _result_blocks(
    request: BackfillRequest, ended: tuple[BackfillPlan, BackfillResult] | None
) -> Iterator[Block | str]:
    """Yield what people read of the result."""
    job = request.config.job
    if ended is None:
        yield f"no backfill is open on branch '{request.name}' of job '{job}': nothing was done"
        return
    plan, result = ended
    compared = result.comparison
    if compared is not None:
        yield from difference_blocks(compared.live, compared.branch, compared.tables)
    text, commands = _next_steps(job, plan, result)
    yield text
    yield from (Note(effect, "next", command) for command, effect in commands)


def _next_steps(job: str, plan: BackfillPlan, result: BackfillResult) -> tuple[str, list[tuple[str, str]]]:
    """Return a sentence on the end of a backfill, and the next commands."""
    from headrace.run.backfill import BackfillOutcome

    name, outcome = plan.name, result.outcome
    begin, end = (
        str(Time(timestamp)).removesuffix("T00:00:00Z") for timestamp in (plan.requested.start, plan.requested.end)
    )
    again = (f"headrace backfill {job} --from {begin} --to {end} --name {name}", "goes on")
    promote = (f"headrace branch promote {job} {name}", "makes the result live")
    look = (f"headrace branch diff {job} {name}", "compares it with the job")
    drop = (f"headrace branch drop {job} {name}", "removes it")
    if outcome is BackfillOutcome.UNFINISHED:
        text = f"branch '{name}' is not complete yet ({result.report.stopped_because}). The live tables are as before."
        return text, [again, drop]
    if outcome is BackfillOutcome.WAITING:
        text = (
            f"{counted(result.report.waiting, 'element waits', 'elements wait')} for services on branch '{name}', so the result lacks them (headrace retries {job} "
            f"--branch {name}). The live tables are as before. Run the command again when the services response."
        )
        return text, [again, promote, drop]
    if outcome is BackfillOutcome.PROMOTED:
        text = f"branch '{name}' is promoted: checkpoint {result.promotion} of job '{job}' has the result"
        return f"{text}. Nothing differs, so it needs no approval." if result.changes_nothing else text, []
    if outcome is BackfillOutcome.COMPARED:
        text = f"branch '{name}' is not promoted, as replay.promote says. The live tables are as before."
        return text, [look, drop]
    text = f"branch '{name}' waits for approval. The live tables are as before."
    return text, [promote, look, drop]
