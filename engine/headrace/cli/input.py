"""`headrace input`: list files that no run takes in, and acknowledge them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli.arguments import Job, RunId, load, new_run_id
from headrace.names import counted
from headrace.report import Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("input")(input_files)


def input_files(
    job: Job = None,
    *,
    acknowledge: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--acknowledge", metavar="FILE", help="Count this file as it is now; 'gone', 'all'. May be repeated."
        ),
    ] = None,
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="TEXT", help="With --acknowledge: the reason, kept with the checkpoint."),
    ] = None,
    run_id: RunId = None,
) -> Report:
    """List input that no run takes in: files that changed or are gone since, came late, have a twin, or are passed over.

    Each run, 'headrace check' and 'headrace status' name the same files, until a backfill takes them in, somebody moves them away, or
    acknowledges them. --acknowledge FILE counts the file as it is now, as a checkpoint: the tables keep the rows that they have, and a file
    that came late is never read. FILE may be 'gone' (all files that are gone) or 'all'. To undo it, restore the checkpoint before it.

    A file that was only touched, or copied with the same content, is none of these.

    Example:  headrace input flights

    Example:  headrace input flights --acknowledge 2013-01-10.parquet --why "only comments were corrected"

    Exit codes: 0; 2 for an unknown job, or a file that is not listed; 3 while a run holds the job; 8 storage; 10 job and sink disagree.
    """
    from headrace.cli.restore import of_checkpoint
    from headrace.edits.acknowledge import acknowledge as acknowledge_files

    config = load(job)
    if acknowledge:
        checkpoint = acknowledge_files(config, acknowledge, why or "", run_id or new_run_id())
        text = f"{counted(checkpoint.metrics['acknowledged'], 'file is', 'files are')} acknowledged, as of checkpoint {checkpoint.checkpoint_id}"
        return of_checkpoint(config.job, checkpoint, text)
    return _list(config)


def _list(config: JobConfig) -> Report:
    from headrace.commit.input_report import input_remarks
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    remarks = input_remarks(config, CheckpointLog(JobFolder.of(config)).lineage.checkpoints)
    rows = [
        {
            "source": remark.source,
            "kind": remark.kind.value,
            "what": remark.kind.value.replace("_", " "),
            "file": remark.file,
        }
        for remark in remarks
    ]
    return Report(
        *facts(job=config.job, input=[{name: row[name] for name in ("source", "kind", "file")} for row in rows]),
        Table(None, ("source", "what", "file"), rows)
        if rows
        else f"{config.job}: all input is as the job took it in, and nothing is passed over",
    )
