"""`headrace run-report`: the report of a run whose driver cannot pass it on, for the task in Airflow that has started it."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.arguments import Cluster, Job, load
from headrace.cli.run import IntervalEnd, IntervalStart, Verify, interval_options, plain_report
from headrace.cli.run_steps import RunSteps
from headrace.report import Report, facts

RunId = Annotated[str, typer.Option(metavar="ID", help="Id of the run.")]


def register(app: typer.Typer) -> None:
    """Add the command, which no person needs."""
    app.command("run-report", hidden=True)(run_report)


def run_report(
    job: Job = None,
    *,
    run_id: RunId,
    cluster: Cluster = None,
    interval_start: IntervalStart = None,
    interval_end: IntervalEnd = None,
    verify: Verify = False,
) -> Report:
    """Show the report of a run as its checkpoints tell it, with what the end of a run looks at: alerts, and whether a compaction is due.

    It is for the task in Airflow of a driver elsewhere; 'headrace --help' does not list it. `is_whole` says whether they have all rows of
    the interval. With --verify, a whole interval is verified as the run would do it, and `failed` says what is wrong.

    Example:  headrace run-report flights --run-id nightly --json

    Exit codes: 0; 2 configuration; 8 when the log cannot be read.
    """
    from headrace.edits.compact import is_compaction_due
    from headrace.run.stored_report import stored_report
    from headrace.sources.interval import Interval

    config = load(job, cluster)
    start, end = interval_options(interval_start, interval_end).values()
    wanted = None if start is None or end is None else Interval(start, end)
    report, is_whole = stored_report(config, run_id, wanted)
    steps = RunSteps(config)
    failed = steps.verify() if verify and is_whole else None
    due = is_compaction_due(config) if steps.compaction_due is None else steps.compaction_due
    steps.tell(is_scheduled=failed is None)
    content = plain_report(report) | {"steps": steps.taken, "alerts": steps.alerts, "is_whole": is_whole}
    content |= {"compaction_due": due, "failed": None if failed is None else str(failed)}
    return Report(*facts(**content))
