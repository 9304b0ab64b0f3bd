"""`headrace quarantine`: list what was set aside, and have the next run try it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from headrace.cli._arguments import AsJson, At, Job, Limit, load, new_run_id
from headrace.cli._state import open_job, print_rows

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint

_COUNTS: Final = ("requeued", "requeued_rows", "requeued_files", "requeued_elements")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("quarantine")(quarantine)


def quarantine(
    job: Job = None,
    *,
    at: At = None,
    limit: Limit = 50,
    requeue: Annotated[bool, typer.Option("--requeue", help="Have the next run try again what can be.")] = False,
    operator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--operator", "--source", help="Only what this operator, or source, has set aside."),
    ] = None,
    file: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--file", help="With --requeue: only rows of this file of a source. May be repeated."),
    ] = None,
    why: Annotated[Optional[str], typer.Option("--why", help="With --requeue: kept with the checkpoint.")] = None,  # noqa: UP045
    run_id: Annotated[Optional[str], typer.Option("--run-id", help="Made up if left out.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """List input that was set aside, newest first, with the reason; or bring it back.

    --requeue takes out of the quarantine, as a checkpoint, what the next run can try again. Rows and files that a source has
    refused: the next run reads them from their files again and takes them in first. Mend what refused them before; a row
    that is still bad comes back. Elements that async operators gave up on: the next run calls for each again, with all
    attempts. Other rows stay: deliver them again. Restoring the checkpoint before undoes it.

    Example:  headrace quarantine flights

    Example:  headrace quarantine flights --requeue --source flight_events --why "delay may be null now"

    Example:  headrace quarantine flights --requeue --operator weather --why "the service is back"

    Exit codes: 0, also when nothing is to be moved; 2 for an unknown job, operator, source or checkpoint; 3 while a run holds
    the job; 7 when a file of a refused row is gone or has changed; 8 when the job's files are gone; 10 when job and sink disagree.
    """
    if requeue:
        _requeue(job, operator, file or [], why, run_id or new_run_id(), as_json=as_json)
        return
    from headrace.readers.quarantine import list_quarantine

    opened = open_job(job, at)
    print_rows(opened, list_quarantine(opened, limit, operator), "quarantined", as_json=as_json)


def _requeue(
    job: str | None, operator: str | None, files: list[str], why: str | None, run_id: str, *, as_json: bool
) -> None:
    from headrace.cli._output import print_json
    from headrace.config import load_pipeline
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.commit.requeue import requeue as requeue_job

    config = load(job)
    load_pipeline(config)
    made = requeue_job(config, run_id, operator=operator, files=files, why=why)
    if not as_json:
        _show_requeued(config.job, made)
        return
    counts = {name: made.metrics[name] if made else 0 for name in _COUNTS}
    print_json({"job": config.job, **counts, "checkpoint": made.checkpoint_id if made else None})


def _show_requeued(job: str, made: Checkpoint | None) -> None:
    from headrace.cli._output import show
    from headrace.sources.requeued import rows_text

    if made is None:
        show(f"{job}: nothing of what was asked for is in the quarantine and can be requeued: nothing done")
        return
    elements = made.metrics["requeued_elements"]
    lines = []
    if again := rows_text(made.metrics["requeued_rows"], made.metrics["requeued_files"]):
        lines.append(
            f"{again} left the quarantine, as of checkpoint {made.checkpoint_id}; the next run takes them in first"
        )
    if elements:
        lines.append(
            f"{elements:,} elements wait again, as of checkpoint {made.checkpoint_id}; the next run calls for them"
        )
    show(*(f"{job}: {line}" for line in lines))
