"""`headrace quarantine`: list input that was set aside, and requeue it for the next run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Optional

import typer

from headrace.cli._arguments import AsJson, AsOf, At, Job, Limit, load, new_run_id
from headrace.cli._state import open_job, print_rows, total_of
from headrace.names import counted

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
    as_of: AsOf = None,
    limit: Limit = 50,
    requeue: Annotated[bool, typer.Option("--requeue", help="Let the next run try again, where possible.")] = False,
    operator: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--operator", "--source", help="Only input that this operator or source has set aside."),
    ] = None,
    file: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--file", help="With --requeue: only rows of this file of a source. May be repeated."),
    ] = None,
    why: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--why", help="With --requeue: the reason, kept with the checkpoint."),
    ] = None,
    run_id: Annotated[Optional[str], typer.Option("--run-id", help="Id of this call; a new one if left out.")] = None,  # noqa: UP045
    as_json: AsJson = False,
) -> None:
    """List input that was set aside, newest first, with the reason; or requeue it.

    --requeue takes input out of the quarantine, as a checkpoint, so that the next run tries again. Refused rows and files of
    sources: the next run reads them from their files again and takes them in first. Fix the cause before; a row that is
    still bad comes back. Failed elements of async operators: the next run calls for each again, with all attempts. Other
    rows stay: deliver them again. To undo it, restore the checkpoint before it.

    Example:  headrace quarantine flights

    Example:  headrace quarantine flights --requeue --source flight_events --why "delay may be null now"

    Example:  headrace quarantine flights --requeue --operator weather --why "the service is back"

    Exit codes: 0, also when nothing can be requeued; 2 for an unknown job, operator, source or checkpoint; 3 while a run holds
    the job; 7 when a file of a refused row is gone or has changed; 8 when the job's files are gone; 10 when job and sink disagree.
    """
    if requeue:
        _requeue(job, operator, file or [], why, run_id or new_run_id(), as_json=as_json)
        return
    from headrace.readers.quarantine import count_quarantine, list_quarantine

    opened = open_job(job, at, as_of)
    rows = list_quarantine(opened, limit, operator)
    total = total_of(rows, limit, lambda: count_quarantine(opened, operator))
    print_rows(opened, rows, "quarantined", as_json=as_json, total=total)


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
    checkpoint = requeue_job(config, run_id, operator=operator, files=files, why=why)
    if not as_json:
        _show_requeued(config.job, checkpoint)
        return
    counts = {name: checkpoint.metrics[name] if checkpoint else 0 for name in _COUNTS}
    print_json({"job": config.job, **counts, "checkpoint": checkpoint.checkpoint_id if checkpoint else None})


def _show_requeued(job: str, checkpoint: Checkpoint | None) -> None:
    from headrace.cli._output import show
    from headrace.sources.requeued import rows_text

    if checkpoint is None:
        show(f"{job}: the quarantine has nothing of this kind that can be requeued: nothing was changed")
        return
    elements = checkpoint.metrics["requeued_elements"]
    lines = []
    if again := rows_text(checkpoint.metrics["requeued_rows"], checkpoint.metrics["requeued_files"]):
        lines.append(
            f"{again} left the quarantine, as of checkpoint {checkpoint.checkpoint_id}; the next run takes them in first"
        )
    if elements:
        lines.append(
            f"{counted(elements, 'element waits', 'elements wait')} again, as of checkpoint {checkpoint.checkpoint_id}; the next run makes the calls"
        )
    show(*(f"{job}: {line}" for line in lines))
