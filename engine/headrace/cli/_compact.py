"""`headrace compact`: rewrite the state tables, or small files of the sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli._arguments import AsJson, Job, load, new_run_id
from headrace.cli._change import RunId, show_checkpoint

if TYPE_CHECKING:
    from headrace.config import JobConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("compact")(compact)


def compact(  # noqa: PLR0917 - the command's options
    job: Job = None,
    every: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Only if at least this many runs have committed since the last compaction."),
    ] = None,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="Rewrite small files of the sinks into larger ones, instead of the state.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="With --sinks: show what would be rewritten.")] = False,
    file_size: Annotated[
        int,
        typer.Option(min=1, help="With --sinks: the target size of files; smaller ones are rewritten (MiB)."),
    ] = 128,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite the state tables to one row per live entry. The live state does not change.

    With --sinks, rewrite small files of the job's sinks (Delta's OPTIMIZE) instead. No row of a sink changes.

    Example:  headrace compact flights --every 7

    Example:  headrace compact flights --sinks --dry-run

    Exit codes: 0, also when it was not due; 2 unknown job; 3 while a run holds the job; 8 storage;
    10 job and sink disagree.
    """
    from headrace.commit.compaction import compact as compact_job

    config = load(job)
    if sinks:
        _compact_sinks(config, run_id or new_run_id(), file_size * 2**20, dry_run=dry_run, as_json=as_json)
        return
    if dry_run:
        msg = "--dry-run needs --sinks: nothing was done"
        raise typer.BadParameter(msg)
    checkpoint = compact_job(config, run_id or new_run_id(), every)
    text = f"compacted as checkpoint {checkpoint.checkpoint_id}" if checkpoint else "not due yet: nothing done"
    show_checkpoint(config.job, checkpoint, text, as_json=as_json)


def _compact_sinks(config: JobConfig, run_id: str, target_size: int, *, dry_run: bool, as_json: bool) -> None:
    from headrace.cli._output import print_json, show, table
    from headrace.commit.compaction import compact_sinks
    from headrace.sinks.small_files import find_small_files, left_alone

    small_files = find_small_files(config, target_size)
    versions = {} if dry_run else compact_sinks(config, run_id, target_size)
    if as_json:
        rows = [
            {
                "sink": files_of_sink.sink, "files": files_of_sink.files, "bytes": files_of_sink.size, "small_files": files_of_sink.small_files,
                "small_bytes": files_of_sink.small_size, "version": versions.get(files_of_sink.sink),
            }
            for files_of_sink in small_files
        ]  # fmt: skip
        print_json({"job": config.job, "sinks": rows, "left_alone": left_alone(config)})
        return
    columns = ("sink", "files", "bytes", "small files", "their bytes", *(() if dry_run else ("compacted as version",)))
    show(
        table(
            columns,
            [
                (
                    files_of_sink.sink,
                    files_of_sink.files,
                    files_of_sink.size,
                    files_of_sink.small_files,
                    files_of_sink.small_size,
                )
                + (() if dry_run else (versions.get(files_of_sink.sink, "-"),))
                for files_of_sink in small_files
            ],
        )
    )
    for sentence in left_alone(config):
        show(sentence)
    if dry_run:
        show(
            "Nothing was changed. Without --dry-run, small files are rewritten; 'headrace vacuum' never removes files of sinks."
        )
