"""`headrace backfill`: compute past intervals again on a branch, and compare the result with the live tables."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, Optional

import typer

from headrace.cli.arguments import Cluster, Job, Limit, check_word, load, new_run_id, parsed_milliseconds
from headrace.cli.backfill_plan import plan_report
from headrace.cli.backfill_result import DONE, ended, followed, nothing_pending
from headrace.cli.branch import corrected_settings
from headrace.cli.run import (
    AllowEffects,
    Budget,
    RunId,
    Runner,
    budget_seconds,
    running,
)
from headrace.report import Block, Report, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.run.options import RunOptions
    from headrace.sources.interval import Interval


From = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--from", metavar="DAY", help="A day or a timestamp (UTC), inclusive."),
]
To = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--to", metavar="DAY", help="Likewise, exclusive: the day after the last one."),
]
Pending = Annotated[
    bool, typer.Option("--pending", help="In place of --from and --to: all days whose input has changed.")
]
Downstream = Annotated[
    bool, typer.Option("--downstream", help="Then the pending days of all jobs that read the result.")
]
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--name", metavar="NAME", help="Name of the branch, by default as backfill_20130110_20130111."),
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
Corrected = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--source",
        metavar="NAME=[FORMAT:]PLACE",
        help="Read this path or topic in place of a source, in the requested intervals; may be repeated.",
    ),
]
Renew = Annotated[
    bool, typer.Option("--renew", help="Replace an open branch that cannot continue by one for both intervals.")
]
BeyondLimits = Annotated[
    bool,
    typer.Option("--beyond-limits", help="Begin also beyond 'replay.max_calls' and 'replay.max_minutes'."),
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
    start: From = None,
    end: To = None,
    pending: Pending = False,
    downstream: Downstream = False,
    name: Name = None,
    dry_run: DryRun = False,
    source: Corrected = None,
    promote: Policy = None,
    renew: Renew = False,
    only_open: OnlyOpen = False,
    days: Days = False,
    allow_effects: AllowEffects = False,
    beyond_limits: BeyondLimits = False,
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

    With --pending, the interval is that of all days whose input has changed since the job took it in: corrected files, late rows, and what
    a promotion of another job has corrected in a table that this one reads. Without such days nothing is done. An open backfill goes on, or
    is replaced by one for both, as with --renew.

    With --downstream, jobs of this home that read a sink of this job follow, one after the other, each with its own pending days, once
    the one before is promoted; and so on to the end of the chain. --promote counts for all of them.

    --source names corrected input: in the requested intervals the branch reads it in place of a source, and then goes on with the source
    itself. So does the job behind a promotion. FORMAT is needed where it is another than that of the source, as orders=json:/lake/fixed or
    orders=kafka:orders_fixed; 'orders={path: /lake/fixed, interval: ...}' is a section as in replay.sources of a job's file.

    You may kill it at any point: the same command continues. Services whose responses are kept are not called again, others are;
    --dry-run shows both numbers. A backfill that expects more calls than 'replay.max_calls' in the job's file, or more minutes than
    'replay.max_minutes', begins only with --beyond-limits.

    Schedulers name the branch, and join requests. --renew replaces an open branch that begins too late, or whose input has changed
    since, by one for both intervals. --only-open never begins a branch, for requests whose branch may be promoted or dropped by then.
    --report FILE writes the output of --json, or {"error", "message", "exit_code"}, to FILE.

    Example:  headrace backfill flights --from 2013-01-10 --to 2013-01-11 --dry-run

    Example:  headrace backfill flights --from 2013-01-10 --to 2013-01-11 --source events=/lake/corrected

    Exit codes: 0 done, or out of budget; 2 configuration, another open backfill, or a job that can have no branches; 3 another
    command holds the branch or the job; 4 a service is down; 5 user code raised; 6 stored state does not fit; 7 bad input, or
    input that changed again; 8 storage, or the fork's files are gone; 9 the interval was not taken in yet; 10 job
    and sink disagree; 12 rows conflict over a primary key; 13 Spark died, or did not start: run again; 15 beyond its limits.
    """
    from headrace.run.backfill import BackfillRequest
    from headrace.run.backfill_branches import default_name, name_of_open_backfill
    from headrace.run.options import RunOptions

    config = _with_policy(load(job, cluster), promote)
    requested = _asked(config, start, end, pending=pending)
    seconds = budget_seconds(budget)
    options = RunOptions(
        run_id=run_id or new_run_id(),
        cluster=cluster,
        budget=_NO_LIMIT if seconds is None else seconds,
        allow_effects=allow_effects,
        beyond_limits=beyond_limits,
    )
    if requested is None:
        content, blocks = nothing_pending(config, options)
    else:
        known = name_of_open_backfill(config) if pending else None
        settings = corrected_settings(config, source)
        request = BackfillRequest(
            config,
            requested,
            name or known or default_name(requested),
            renew or pending,
            only_open,
            days,
            settings,
        )
        if dry_run:
            return plan_report(request.config, request.plan())
        with running(config, runner) as run_branch:
            content, blocks = ended(request, options, run_branch, limit)
    if downstream and not dry_run:
        chain = _Chain(options, runner, promote, limit)
        content["downstream"], after = chain.run(config, content["outcome"])
        blocks += after
    return Report(*facts(**content), *blocks)


class _Chain(NamedTuple):
    """Backfills of the jobs downstream, by the options of the first one."""

    options: RunOptions
    runner: str | None
    promote: str | None
    limit: int

    def run(self, config: JobConfig, outcome: str) -> tuple[list[dict[str, Any]], list[Block | str]]:
        """Compute the pending days of the jobs downstream again, as long as each job before has its result; return what came of it."""
        from headrace.config import load_job
        from headrace.run.pending_corrections import jobs_downstream

        done = {config.job: outcome in DONE}
        results: list[dict[str, Any]] = []
        blocks: list[Block | str] = []
        for name in jobs_downstream(config):
            if waiting := [job for job, is_done in done.items() if not is_done]:
                blocks.append(f"job '{name}' was not looked at: job '{waiting[0]}', which comes before it, is not done")
                continue
            other = _with_policy(load_job(name, config.home, self.options.cluster), self.promote)
            with running(other, self.runner) as run_branch:
                own, after = followed(other, self.options, run_branch, self.limit)
            done[name] = own["outcome"] in DONE
            results.append(own)
            blocks += [f"\njob '{name}'", *after]
        return results, blocks


def _asked(config: JobConfig, start: str | None, end: str | None, *, pending: bool) -> Interval | None:
    """Return the interval that was asked for; None if --pending finds none. Raises `ConfigError` for no interval, and for two."""
    from headrace.commit.run_check import checked_plan
    from headrace.errors import ConfigError
    from headrace.run.pending_corrections import changed_interval

    if pending and (start or end):
        msg = "--pending finds the days by itself: leave --from and --to out. Nothing was done."
        raise ConfigError(msg)
    if pending:
        return changed_interval(config, checked_plan(config))
    if not (start and end):
        msg = f"say which days to compute again: --from DAY --to DAY, or --pending for all days of '{config.job}' whose input has changed. Nothing was done."
        raise ConfigError(msg)
    return _interval(start, end)


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
