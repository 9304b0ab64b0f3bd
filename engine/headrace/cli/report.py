"""`headrace report`: a page about a job, in one file, or about all jobs of a home. `headrace.cli.blocks` has its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer

from headrace.cli.arguments import AsOf, At, Branch, Job, as_of_text, load, parsed_milliseconds, warn
from headrace.cli.blocks import html
from headrace.cli.job_facts import facts_of
from headrace.cli.page import page, section, table
from headrace.names import counted
from headrace.report import Report, Table, Time, facts


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    job: Job = None,
    at: At = None,
    as_of: AsOf = None,
    *,
    branch: Branch = None,
    since: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--since", metavar="TIME", help="Only checkpoints that were committed at or after it (UTC)."),
    ] = None,
    run: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--run", metavar="ID", help="The last checkpoint that this run has committed."),
    ] = None,
    all_jobs: Annotated[
        bool, typer.Option("--all", help="A page about all jobs, also where there is only one.")
    ] = False,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", metavar="FILE", help="File to write; JOB.html, or jobs.html, in this folder if left out."
        ),
    ] = None,
) -> Report:
    """Write a page about a job to an HTML file: operators, checkpoints, rows, late rows, seconds by phase, lag, calls, state, quarantine.

    The file needs no network, and has a table for each chart. An older file of that name is replaced. Without JOB, where there are
    several, the page is about all of them, the worst first: jobs.html. With --json, the answer has their rows as `jobs`.

    Example:  headrace report flights --out flights.html

    Example:  headrace report

    Exit codes: 0; 2 for an unknown job, a job that never ran, or a file that cannot be written; 8 when a job's tables cannot be read.
    """
    from headrace.config import known_jobs
    from headrace.errors import ConfigError

    names = known_jobs() if job is None and branch is None else []
    if all_jobs or len(names) > 1:
        if not names:
            msg = "--all is a page about all jobs: name no job, and no branch"
            raise ConfigError(msg)
        if any(choice is not None for choice in (at, as_of, since, run)):
            msg = "--at, --as-of, --since and --run choose checkpoints of one job: name it"
            raise ConfigError(msg)
        return _of_all(names, out or Path("jobs.html"))
    earliest = None if since is None else parsed_milliseconds(since)
    about = facts_of(load(job, branch=branch), at, as_of, earliest, run)
    if as_of is not None:
        warn(as_of_text(about.log.lineage, about.checkpoint))
    return _written(
        out or Path(f"{about.config.job}.html"),
        html(about),
        checkpoint=about.checkpoint.checkpoint_id,
        checkpoints=len(about.all),
    )


def _written(file: Path, text: str, **known: int) -> Report:
    """Write a page, and return the report on it. The file is there as a whole or as it was."""
    from headrace import clock
    from headrace.errors import ConfigError

    content = text.encode(errors="backslashreplace")
    beside = file.with_name(f".{file.name}.{clock.unique_id()[:12]}")
    try:
        beside.write_bytes(content)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        msg = f"cannot write '{file}': {error.strerror}"
        raise ConfigError(msg) from error
    return Report(*facts(file=str(file), bytes=len(content), **known), f"{file}: {counted(len(content), 'byte')}")


_HEADINGS: Final = {
    "job": "job",
    "problem": "problem",
    "checkpoint": "checkpoint",
    "committed_at": "committed (UTC)",
    "hours_behind": "hours behind",
    "set_aside": "set aside",
    "waiting": "waiting for services",
}


def _of_all(names: Sequence[str], file: Path) -> Report:
    """Write a page about all jobs, the worst first: those that cannot be read, that never ran, then those furthest behind."""
    rows = sorted(map(_job_row, names), key=_badness)
    # An id is no number: people copy it.
    cells = [
        [str(row[key]) if key == "checkpoint" and row[key] is not None else row[key] for key in _HEADINGS]
        for row in rows
    ]
    shown = table("The last checkpoint of each job", [*_HEADINGS.values()], cells)
    report = _written(file, page("Jobs", section("All jobs, the worst first", shown)))
    return Report(*report.blocks, Table("jobs", (), rows))


def _badness(row: Mapping[str, Any]) -> tuple[int, float, str]:
    """Return what sorts the worst job first."""
    rank = 2 if row["problem"] is None else 1 if row["problem"] == _NEVER_RAN else 0
    return rank, -(row["hours_behind"] or 0), row["job"]


_NEVER_RAN: Final = "it never ran"


def _job_row(name: str) -> dict[str, Any]:
    from headrace import clock
    from headrace.errors import HeadraceError
    from headrace.log.checkpoint import Kind
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    row = {"job": name, "problem": None, **dict.fromkeys([*_HEADINGS][2:])}
    try:
        log = CheckpointLog(JobFolder.of(load(name)))
        last, batch = log.last, log.lineage.last_of(Kind.BATCH)
    except HeadraceError as error:
        return {**row, "problem": str(error)}
    if last is None:
        return {**row, "problem": _NEVER_RAN}
    behind = None if last.watermark is None else round((clock.now() - last.watermark) / 3_600_000, 1)
    return {
        **row,
        "checkpoint": last.checkpoint_id,
        "committed_at": Time(last.committed_at),
        "hours_behind": behind,
        "set_aside": None if batch is None else batch.metrics.get("quarantined"),
        "waiting": last.work.pending,
    }
