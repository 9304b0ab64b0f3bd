"""`headrace report`: a page about a job, in one file, or about all jobs of a home. `headrace.cli.blocks` has its parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from headrace.cli.arguments import AsOf, At, Branch, Job, as_of_text, load, parsed_milliseconds, warn
from headrace.cli.blocks import html
from headrace.cli.job_facts import facts_of
from headrace.cli.page import Markup, page, section, table
from headrace.names import counted
from headrace.report import Report, Time, facts


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
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--out", metavar="FILE", help="File to write; JOB.html, or jobs.html, in this folder if left out."
        ),
    ] = None,
) -> Report:
    """Write a page about a job to an HTML file: operators, checkpoints, rows, seconds, lag, calls, state, quarantine.

    The file needs no network, and has a table for each chart. An older file of that name is replaced. Without JOB, where there are
    several, the page is about all of them, the worst first: jobs.html.

    Example:  headrace report flights --out flights.html

    Example:  headrace report

    Exit codes: 0; 2 for an unknown job, a job that never ran, or a file that cannot be written; 8 when a job's tables cannot be read.
    """
    from headrace.config import known_jobs
    from headrace.errors import ConfigError

    names = known_jobs() if job is None and branch is None else []
    if len(names) > 1:
        if at is not None or as_of is not None or since is not None:
            msg = "--at, --as-of and --since choose checkpoints of one job: name it"
            raise ConfigError(msg)
        return _written(out or Path("jobs.html"), page("Jobs", _jobs(names)))
    about = facts_of(load(job, branch=branch), at, as_of, None if since is None else parsed_milliseconds(since))
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


def _jobs(names: Sequence[str]) -> Markup:
    """Return a table of all jobs, the worst first: those that cannot be read, that never ran, then those furthest behind."""
    rows = sorted((_job_row(name) for name in names), key=lambda row: (row[1] is None, -(row[4] or 0), row[0]))
    headings = ("job", "problem", "checkpoint", "committed (UTC)", "hours behind", "set aside", "waiting for services")
    return section("All jobs, the worst first", table("The last checkpoint of each job", headings, rows))


def _job_row(name: str) -> tuple[Any, ...]:
    from headrace import clock
    from headrace.errors import HeadraceError
    from headrace.log.checkpoint import Kind
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    try:
        log = CheckpointLog(JobFolder.of(load(name)))
        last, batch = log.last, log.lineage.last_of(Kind.BATCH)
    except HeadraceError as error:
        return (name, str(error), None, None, None, None, None)
    if last is None:
        return (name, "it never ran", None, None, None, None, None)
    behind = None if last.watermark is None else round((clock.now() - last.watermark) / 3_600_000, 1)
    aside = None if batch is None else batch.metrics.get("quarantined")
    return (name, None, str(last.checkpoint_id), Time(last.committed_at), behind, aside, last.work.pending)
