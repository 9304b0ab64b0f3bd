"""`headrace rescale`: change the number of key groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._apply import NOT_CHANGED, Apply, ApplyWhy, reason, show_rows
from headrace.cli._arguments import AsJson, Job, load, new_run_id
from headrace.cli._change import RunId
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.config import JobConfig

MaxParallelism = Annotated[
    int,
    typer.Option("--max-parallelism", metavar="N", min=1, help="New number of key groups of the state."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rescale")(rescale)


def rescale(
    job: Job = None,
    *,
    max_parallelism: MaxParallelism,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Give the state another number of key groups (max_parallelism). A dry run, unless --apply is given.

    It rewrites all rows of the state tables, as one checkpoint; the content of the state and later results stay the same. The job's
    file must have the new number: until state and file agree, runs and all commands that change the job are refused. So change the
    file right before or right after.

    Example:  headrace rescale flights --max-parallelism 512

    Example:  headrace rescale flights --max-parallelism 512 --apply --why "more than 128 tasks"

    Exit codes: 0; 2 for an unknown job, a number that the state has already or that is below 'parallelism', or no reason; 3 while a
    run holds the job; 8 storage; 10 job and sink disagree.
    """
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.cli._output import print_json, show
    from headrace.commit.rescale import plan_rescaling
    from headrace.commit.rescale import rescale as rescale_job

    config = load(job, checked=False)
    if apply:
        checkpoint = rescale_job(config, max_parallelism, reason(why), run_id or new_run_id())
        if as_json:
            print_json(
                {
                    "job": config.job,
                    "applied": True,
                    "metrics": checkpoint.metrics,
                    "checkpoint": checkpoint.checkpoint_id,
                }
            )
            return
        rows = checkpoint.metrics["rows_rewritten"]
        show(
            f"{config.job}: {counted(rows, 'row has', 'rows have')} {counted(max_parallelism, 'key group')} now: checkpoint {checkpoint.checkpoint_id}.",
            _of_the_file(config, max_parallelism),
        )
        return
    plan = plan_rescaling(config, max_parallelism)
    if as_json:
        print_json(
            {
                "job": config.job,
                "applied": False,
                "before": plan.before,
                "after": plan.after,
                "rows": plan.rows,
                "checkpoint": None,
            }
        )
        return
    show_rows(plan.rows, "rows to rewrite")
    show(
        f"{config.job}: from {counted(plan.before, 'key group')} to {plan.after}. {NOT_CHANGED}",
        _of_the_file(config, plan.after),
    )


def _of_the_file(config: JobConfig, number: int) -> str:
    """Return a sentence on the change that the job's file needs."""
    if config.max_parallelism == number:
        return f"{config.file} has max_parallelism: {number} already."
    return (
        f"Then write max_parallelism: {number} into {config.file} (it has {config.max_parallelism}): runs are refused "
        "until both agree."
    )
