"""End of a backfill: what programs read of it, and what people read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.backfill_plan import plain_lines
from headrace.cli.diff import difference_blocks, plain_differences
from headrace.names import counted
from headrace.report import Block, Note, Time

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.run.backfill import BackfillRequest, BackfillResult, RunBranch
    from headrace.run.backfill_plan import BackfillPlan
    from headrace.run.options import RunOptions

Ended = tuple[dict[str, Any], list[Block | str]]
"""Facts for programs, and blocks for people."""

DONE: Final = ("promoted", "nothing_pending")
"""Outcomes after which a job's sinks have the result."""


def ended(request: BackfillRequest, options: RunOptions, run_branch: RunBranch, limit: int) -> Ended:
    """Run a backfill, and return its end."""
    result = request.run(options, run_branch, limit)
    content = _plain_nothing(request, options) if result is None else _plain_result(request.config, *result)
    return content, [*_result_blocks(request, result)]


def followed(config: JobConfig, options: RunOptions, run_branch: RunBranch, limit: int = 20) -> Ended:
    """Compute the pending days of a job again, on the branch of an open backfill if there is one, and return the end of that."""
    from msgspec.structs import replace

    from headrace.commit.run_check import checked_plan
    from headrace.run.backfill import BackfillRequest
    from headrace.run.backfill_branches import default_name, name_of_open_backfill
    from headrace.run.pending_corrections import changed_interval

    pending = changed_interval(config, checked_plan(config))
    if pending is None:
        return nothing_pending(config, options)
    own = replace(
        options, mode="auto", interval_start=None, interval_end=None, recompute=None, fill=False, max_batches=None
    )
    name = name_of_open_backfill(config) or default_name(pending)
    return ended(BackfillRequest(config, pending, name, renews=True), own, run_branch, limit)


def nothing_pending(config: JobConfig, options: RunOptions) -> Ended:
    """Return the end of a backfill that has no day to compute again."""
    content = {"job": config.job, "name": None, "run_id": options.run_id, "outcome": "nothing_pending"}
    return content, [f"the input of job '{config.job}' is as the job took it in: nothing was done"]


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
        "plan": plain_lines(config, plan),
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
            f"{counted(result.report.waiting, 'element waits', 'elements wait')} for services on branch '{name}', so the result lacks them (headrace waiting {job} --calls "
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
