"""Arguments that commands share, and what opens a job for them.

Options of commands that change a job for good: a dry run unless `--apply` is given, and a reason.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace import logs
from headrace.report import Table

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint
    from headrace.log.lineage import Lineage
    from headrace.readers.job_at import JobAtCheckpoint


RunId = Annotated[Optional[str], typer.Option("--run-id", metavar="ID", help="Id of this call; a new one if left out.")]  # noqa: UP045


_log = logging.getLogger(__name__)


def in_utf8(text: str) -> str:
    """Return a text that UTF-8 can hold: an argument that is none is quoted in errors."""
    return text.encode(errors="backslashreplace").decode()


def open_job(
    name: str | None,
    at: str | None,
    as_of: str | None = None,
    *,
    branch: str | None = None,
    with_expired: bool = False,
) -> JobAtCheckpoint:
    """Open a job's state at a checkpoint, or as of an event time."""
    from headrace.readers.job_at import JobAtCheckpoint

    job = JobAtCheckpoint(load(name, branch=branch), at, as_of=as_of, with_expired=with_expired)
    warn(job.ttl.not_declared)
    if as_of is not None:
        warn(as_of_text(job.log.lineage, job.checkpoint))
    return job


def as_of_text(lineage: Lineage, checkpoint: Checkpoint) -> str:
    """Return which checkpoint of the live lineage --as-of has found, and which one comes after it in event time."""
    from headrace.sources.interval import timestamp_text

    text = f"this is checkpoint {checkpoint.checkpoint_id}, whose watermark is {timestamp_text(checkpoint.watermark)}"
    later = lineage.next_by_watermark(checkpoint)
    if later is None:
        return f"{text}: the latest one"
    return f"{text}; the next one, {later.checkpoint_id}, has {timestamp_text(later.watermark)}"


def warn(what: str | None) -> None:
    """Log a note, if there is one."""
    if what is not None:
        logs.write(_log, what, level=logging.WARNING, kind="note")


# Typer evaluates these types at run time, inside Annotated, so they need Optional instead of `| None`.
Job = Annotated[Optional[str], typer.Argument(metavar="JOB", help="Job; the only one if left out.")]  # noqa: UP045
JobOrText = Annotated[str, typer.Argument(metavar="JOB", help="Leave it out if there is only one.", show_default=False)]
"""First argument of `[JOB] TEXT`; see `job_and_text`."""
NamedJob = Annotated[str, typer.Argument(metavar="JOB", help="Job; required here.", show_default=False)]
Key = Annotated[Optional[str], typer.Argument(metavar="KEY", help="Plain text, or JSON.", show_default=False)]  # noqa: UP045
"""Second argument of `[JOB] KEY`; see `job_and_text`."""
Name = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="NAME", help="Lower case, digits, underscores.", show_default=False),
]
"""Second argument of `[JOB] NAME`; see `job_and_text`."""
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
Limit = Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Rows at most.")]
All = Annotated[bool, typer.Option("--all", help="Also timers that Headrace sets to clean up.")]
WithExpired = Annotated[bool, typer.Option("--with-expired", help="Also entries that TTL has expired.")]
OperatorOption = Annotated[Optional[str], typer.Option("--operator", metavar="NAME", help="Only this operator.")]  # noqa: UP045
StateOption = Annotated[Optional[str], typer.Option("--state", metavar="NAME", help="Only the state with this name.")]  # noqa: UP045
Cluster = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--cluster", metavar="NAME", help="Profile in conf/clusters/; the job's own if left out."),
]


Branch = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--branch", metavar="NAME", help="Work on this branch of the job."),
]


IN_JSON, REPORT_FILE = "headrace.json", "headrace.report"
"""Names of the values of --json and --report in the context of a command; see `application`."""


def shared_options(
    *,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else.")] = False,
    report: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            "--report",
            metavar="FILE",
            help="Also write an error, or the result of a run, as JSON to FILE.",
            is_eager=True,
        ),
    ] = None,
) -> None:
    """Declare the options of all commands."""


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
        msg = f"'{first}' is a job, and the second argument is missing: write it behind the job's name ('{first} ...'). --help says what it is"
        raise ConfigError(msg)
    return the_job(None), first


def load(name: str | None, cluster: str | None = None, *, branch: str | None = None, checked: bool = True) -> JobConfig:
    """Return the configuration of a job, by default of the only one; with `branch`, that of the branch. See `load_job`."""
    from headrace.config import load_job

    config = load_job(the_job(name), cluster=cluster, checked=checked)
    logs.move(job=config.job, branch=branch)
    if branch is None:
        return config
    from headrace.commit.branch_code import on_branch

    return on_branch(config, branch)


def parsed_milliseconds(text: str) -> int:
    """Return an ISO 8601 timestamp as milliseconds since the epoch. A timestamp without an offset is in UTC.

    Raises `ConfigError` for anything else.
    """
    from headrace.config import parse_timestamp
    from headrace.errors import ConfigError

    try:
        return parse_timestamp(text)
    except ValueError as error:
        msg = f"'{text}' is not a timestamp; write it as 2013-01-31 or 2013-01-31T05:00:00+00:00"
        raise ConfigError(msg) from error


def check_word(option: str, word: str | None, allowed: Iterable[str]) -> None:
    """Raise `ConfigError` if the value of an option is none of the allowed words; None is always allowed."""
    from headrace.errors import ConfigError

    allowed = tuple(allowed)
    if word is not None and word not in allowed:
        msg = f"{option} '{word}' is not allowed (allowed: {', '.join(allowed)}). Nothing was done."
        raise ConfigError(msg)


def new_run_id() -> str:
    """Return an id for a run that a person starts by hand."""
    from headrace import clock

    return f"manual-{clock.unique_id()[:12]}"


Apply = Annotated[bool, typer.Option("--apply", help="Do it. Without it: a dry run, which changes nothing.")]
ApplyWhy = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--why", metavar="TEXT", help="With --apply: the reason, recorded with the change."),
]
NOT_CHANGED = "Nothing was changed. --apply does it."


def reason(why: str | None) -> str:
    """Return the reason for a change. Raises `ConfigError` when none is given."""
    from headrace.errors import ConfigError

    if not why:
        msg = 'this needs a reason, which is recorded with the change: add --why "...". Nothing was changed.'
        raise ConfigError(msg)
    return why


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


def confirm(question: str) -> None:
    """Ask somebody at a terminal. Raises `ConfigError` unless the answer is yes: a script must see that nothing was changed."""
    from headrace.errors import ConfigError

    try:
        is_confirmed = typer.confirm(question, err=True)
    except typer.Abort:  # the input has ended, or Ctrl-C
        is_confirmed = False
    if not is_confirmed:
        msg = "not confirmed: nothing was changed"
        raise ConfigError(msg)


def confirm_at_terminal(question: str, *, yes: bool) -> None:
    """Ask somebody at a terminal, unless `yes`; scripts and schedulers are not asked. Raises `ConfigError` where the answer is no."""
    if not yes and sys.stdin.isatty() and sys.stdout.isatty():
        confirm(question)


def rows_by_table(rows: Mapping[str, int], what: str) -> Table:
    """Return the numbers of rows by table, for people; `what` names the rows."""
    return Table.shown(("table", what), rows.items())
