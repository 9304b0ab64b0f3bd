"""`headrace maintain`: compact the state tables, remove files that nothing needs, rewrite small files of sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli.arguments import Branch, Job, RunId, load, new_run_id
from headrace.cli.restore import of_checkpoint
from headrace.names import counted
from headrace.report import Note, Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("maintain")(maintain)


def maintain(
    job: Job = None,
    *,
    state: Annotated[bool, typer.Option("--state", help="Only compact the state tables.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Only remove the files that nothing needs any more.")] = False,
    sinks: Annotated[
        bool, typer.Option("--sinks", help="Only rewrite small files of the sinks into larger ones.")
    ] = False,
    every: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(
            metavar="N", min=1, help="Compact only if at least this many runs have committed since the last compaction."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the files that would be removed, or with --sinks rewritten.")
    ] = False,
    file_size: Annotated[
        int,
        typer.Option(
            metavar="MIB", min=1, help="With --sinks: the target size of files; smaller ones are rewritten (MiB)."
        ),
    ] = 128,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report:
    """Compact the state tables to one row per live entry, then remove the files that no checkpoint within the retention needs.

    Neither changes the live state, or a row of a sink. Each is a checkpoint of its own. The list of files to remove is committed first,
    as the one of kind vacuum; entries of the tables' logs go as well. Older checkpoints can be neither read nor restored afterwards,
    except savepoints. Look first with --dry-run, which needs no lease. The output also shows what each branch holds back.

    --state, --files and --sinks do one part alone. --sinks rewrites small files of the job's sinks (Delta's OPTIMIZE), and no row.

    Example:  headrace maintain flights --every 7

    Example:  headrace maintain flights --files --dry-run

    Example:  headrace maintain flights --sinks --dry-run

    Exit codes: 0, also when nothing was due; 2 unknown job; 3 a run holds the job, or takes it before the commit; 8 storage; 10 job and
    sink disagree.
    """
    if state + files + sinks > 1:
        msg = "--state, --files and --sinks are three parts: name one of them. Nothing was done."
        raise typer.BadParameter(msg)
    if state and dry_run:
        msg = "--dry-run lists files to remove, or with --sinks to rewrite, and --state has none. Nothing was done."
        raise typer.BadParameter(msg)
    if files and every is not None:
        msg = "--every is for the compaction, which --files leaves out. Nothing was done."
        raise typer.BadParameter(msg)
    config = load(job, branch=branch)
    if sinks:
        return _compact_sinks(config, run_id or new_run_id(), file_size * 2**20, dry_run=dry_run)
    if files:
        return _vacuum(config, run_id or new_run_id(), dry_run=dry_run)
    if state:
        return _compact(config, run_id or new_run_id(), every)
    compacted = None if dry_run else _compact(config, run_id or new_run_id(), every)
    vacuumed = _vacuum(config, run_id or new_run_id(), dry_run=dry_run)
    blocks = () if compacted is None else (block for block in compacted.blocks if isinstance(block, Note))
    return Report(*blocks, *vacuumed.blocks)


def _compact(config: JobConfig, run_id: str, every: int | None) -> Report:
    from headrace.edits.compact import compact

    checkpoint = compact(config, run_id, every)
    text = f"compacted as checkpoint {checkpoint.checkpoint_id}" if checkpoint else "not due yet: nothing done"
    return of_checkpoint(config.job, checkpoint, text)


def _vacuum(config: JobConfig, run_id: str, *, dry_run: bool) -> Report:
    from headrace.cli.branch import sentences_about, usages_of
    from headrace.edits.vacuum import vacuum

    files = vacuum(config, run_id, dry_run=dry_run)
    branches = usages_of(config)
    return Report(
        *facts(job=config.job, dry_run=dry_run, files=files, branches=branches),
        *files,
        f"{counted(len(files), 'file')} {'would be removed' if dry_run else 'removed'}",
        *sentences_about(config.job, branches),
    )


def _compact_sinks(config: JobConfig, run_id: str, target_size: int, *, dry_run: bool) -> Report:
    from headrace.edits.compact import compact_sinks, find_small_files, left_alone

    small_files = find_small_files(config, target_size)
    versions = {} if dry_run else compact_sinks(config, run_id, target_size)
    untouched = left_alone(config)
    columns = {
        "sink": "sink",
        "files": "files",
        "bytes": "bytes",
        "small_files": "small files",
        "small_bytes": "their bytes",
    }
    rows = [
        {
            "sink": files.sink,
            "files": files.files,
            "bytes": files.size,
            "small_files": files.small_files,
            "small_bytes": files.small_size,
            "version": versions.get(files.sink),
        }
        for files in small_files
    ]
    return Report(
        *facts(job=config.job),
        Table("sinks", columns if dry_run else {**columns, "version": "compacted as version"}, rows),
        *facts(left_alone=untouched),
        *untouched,
        _DRY_RUN if dry_run else None,
    )


_DRY_RUN = "Nothing was changed. Without --dry-run, small files are rewritten; 'headrace maintain' never removes files of sinks."
