"""Arguments that many commands share, and their conversion."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Optional

import typer

if TYPE_CHECKING:
    from headrace.config import JobConfig

# Typer evaluates these types at run time, inside Annotated, so they need Optional instead of `| None`.
Job = Annotated[Optional[str], typer.Argument(metavar="JOB", help="Job; the only one if left out.")]  # noqa: UP045
JobOrText = Annotated[str, typer.Argument(metavar="JOB", help="Leave it out if there is only one.", show_default=False)]
"""First argument of `[JOB] TEXT`; see `job_and_text`."""
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")]
At = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--at",
        metavar="CHECKPOINT",
        help="Checkpoint id, savepoint name or time of a commit (UTC); the last checkpoint if left out.",
    ),
]
AsOf = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--as-of",
        metavar="TIME",
        help="Event time (UTC): the last checkpoint whose watermark is at or before it.",
    ),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Rows at most.")]
All = Annotated[bool, typer.Option("--all", help="Also timers that Headrace sets to clean up.")]
WithExpired = Annotated[bool, typer.Option("--with-expired", help="Also entries that TTL has expired.")]
OperatorOption = Annotated[Optional[str], typer.Option("--operator", help="Only this operator.")]  # noqa: UP045
StateOption = Annotated[Optional[str], typer.Option("--state", help="Only the state with this name.")]  # noqa: UP045
Cluster = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--cluster", help="Profile in conf/clusters/; the job's own if left out."),
]


BRANCH: ContextVar[str | None] = ContextVar("branch", default=None)
"""Value of the command's --branch; see `_app`."""


def _keep_branch(name: Optional[str]) -> None:  # noqa: UP045
    BRANCH.set(name)


Branch = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--branch",
        metavar="NAME",
        help="Work on this branch of the job.",
        expose_value=False,
        callback=_keep_branch,
    ),
]


def the_job(name: str | None) -> str:
    """Return `name`, or the only job.

    Raises `ConfigError` that lists the jobs when there are several, or none.
    """
    from headrace.config import known_jobs
    from headrace.errors import ConfigError

    if name is not None:
        return name
    jobs = known_jobs()
    if len(jobs) == 1:
        return jobs[0]
    msg = f"there are several jobs; name one of them: {', '.join(jobs)}"
    raise ConfigError(msg)


def job_and_text(first: str, second: str | None) -> tuple[str, str]:
    """Return job and text of `[JOB] TEXT`. A single word is the text, for the only job.

    Raises `ConfigError` for a single word that is a job's name: its text is missing.
    """
    if second is not None:
        return first, second
    from headrace.config import known_jobs
    from headrace.errors import ConfigError

    if first in known_jobs():
        msg = f"'{first}' is a job, and what to look for is missing: write it behind the job's name ('{first} KEY')"
        raise ConfigError(msg)
    return the_job(None), first


def load(name: str | None, cluster: str | None = None, *, checked: bool = True) -> JobConfig:
    """Return the configuration of a job, by default of the only one; with --branch, that of the branch. See `load_job`."""
    from headrace.config import load_job

    config = load_job(the_job(name), cluster=cluster, checked=checked)
    branch = BRANCH.get()
    if branch is None:
        return config
    from headrace.commit.branch_settings import on_branch

    return on_branch(config, branch)


def parsed_milliseconds(text: str) -> int:
    """Return an ISO 8601 moment as milliseconds since the epoch. A moment without an offset is in UTC.

    Raises `ConfigError` for anything else.
    """
    from headrace.config import parse_moment
    from headrace.errors import ConfigError

    try:
        return parse_moment(text)
    except ValueError as error:
        msg = f"'{text}' is not a moment; write it as 2013-01-31 or 2013-01-31T05:00:00+00:00"
        raise ConfigError(msg) from error


def new_run_id() -> str:
    """Return an id for a run that a person starts by hand."""
    from headrace import clock

    return f"manual-{clock.unique_id()[:12]}"
