"""`headrace quarantine`: what was set aside, and back to the queue with what async operators gave up on."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from headrace.cli._arguments import AsJson, At, Job, Limit, OperatorOption, load, new_run_id
from headrace.cli._state import open_job, print_rows


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quarantine")(quarantine)


def quarantine(
    job: Job = None,
    *,
    at: At = None,
    limit: Limit = 50,
    requeue: Annotated[bool, typer.Option("--requeue", help="Have the next run ask for elements again.")] = False,
    operator: OperatorOption = None,
    why: Annotated[Optional[str], typer.Option("--why", help="With --requeue: kept with the checkpoint.")] = None,  # noqa: UP045
    run_id: Annotated[Optional[str], typer.Option("--run-id", help="Made up if left out.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """List input that was set aside, newest first, with the reason; or bring it back.

    --requeue moves what async operators gave up on (only those; --operator: one of them) to async_requests: the next run
    calls for each again, with all attempts. Other rows cannot be repaired here: deliver them again.

    Example:  headrace quarantine flights
    Example:  headrace quarantine flights --requeue --operator weather --why "the service is back"

    Exit codes: 0, also when nothing is to be moved; 2 for an unknown job, operator or checkpoint; 3 while a run holds the job;
    8 when its files are gone; 10 when job and sink disagree.
    """
    if requeue:
        _requeue(job, operator, why, run_id or new_run_id(), as_json=as_json)
        return
    from headrace.readers.quarantine import list_quarantine

    opened = open_job(job, at)
    print_rows(opened, list_quarantine(opened, limit, operator), "quarantined", as_json=as_json)


def _requeue(job: str | None, operator: str | None, why: str | None, run_id: str, *, as_json: bool) -> None:
    from headrace.cli._arrow import without_pandas
    from headrace.cli._output import print_json, show
    from headrace.config import load_pipeline

    without_pandas()
    from headrace.commit.requeue import requeue as requeue_job

    config = load(job)
    load_pipeline(config)
    made = requeue_job(config, run_id, operator=operator, why=why)
    moved = made.metrics["requeued"] if made else 0
    if as_json:
        print_json({"job": config.job, "requeued": moved, "checkpoint": made.checkpoint_id if made else None})
    elif made is None:
        show(f"{config.job}: no async operator has given up on anything: nothing done")
    else:
        show(
            f"{config.job}: {moved:,} elements wait again, as of checkpoint {made.checkpoint_id}; the next run calls for them"
        )
