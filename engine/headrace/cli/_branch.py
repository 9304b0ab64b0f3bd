"""`headrace branch ...`: branches of a job, to try other code or input without changing the job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli._arguments import (
    AsJson,
    Job,
    JobOrText,
    Limit,
    OperatorOption,
    job_and_text,
    load,
    new_run_id,
)
from headrace.cli._branch_settings import OtherPipeline, OtherSource, Setting, named_settings
from headrace.cli._diff import show_differences
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.branches import Branch
    from headrace.config import JobConfig

Second = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="NAME", help="Lower case, digits, underscores.", show_default=False),
]
At = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--at",
        metavar="CHECKPOINT",
        help="Checkpoint id, savepoint name or time (UTC); the last checkpoint if left out.",
    ),
]
Why = Annotated[Optional[str], typer.Option("--why", help="The reason, kept with the branch.")]  # noqa: UP045

AllowOtherCode = Annotated[
    bool,
    typer.Option("--allow-other-code", help="Also if source files or packages differ from those the branch ran with."),
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    branch = typer.Typer(
        help="Try other code or input on a branch of a job: live tables and sinks stay as they are. Needs no JVM.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    branch.command("create")(create)
    branch.command("list")(list_branches)
    branch.command("diff")(diff)
    branch.command("promote")(promote)
    branch.command("drop")(drop)
    app.add_typer(branch, name="branch")


def create(
    first: JobOrText,
    second: Second = None,
    *,
    at: At = None,
    why: Why = None,
    pipeline: OtherPipeline = None,
    source: OtherSource = None,
    setting: Setting = None,
    as_json: AsJson = False,
) -> None:
    """Fork a branch from a checkpoint of a job. No data is copied, and a run may hold the job meanwhile.

    'headrace run JOB --branch NAME' continues from there, in tables of the branch. Its sinks are tables of the branch, too: no
    reader of the live sinks sees its rows, and no message is sent. Commands that read take --branch: state, sql, checkpoints, ...
    --pipeline, --source and --set give the branch its own code, input and settings, which it keeps. Its runs call services as
    the job's runs do. While the branch exists, vacuum spares the files of its fork.

    Example:  headrace branch create flights late_fix --at 12

    Example:  headrace branch create flights cautious --set watermark.bucket=500

    Exit codes: 0; 2 for a bad or taken name, an unknown checkpoint, one that no branch can begin at, or settings that no branch
    can have; 8 when files of the checkpoint are gone.
    """
    from headrace.cli._output import print_json, show
    from headrace.commit.fork import fork

    job, name = job_and_text(first, second)
    config = load(job)
    settings = named_settings(config, pipeline, source, setting)
    branch = fork(config, name, at, new_run_id(), why, settings=settings)
    if as_json:
        print_json(_plain(branch))
        return
    show(
        f"branch '{name}' begins at checkpoint {branch.fork_id} of job '{config.job}'; nothing was copied\n"
        f"headrace run {config.job} --branch {name}          takes in later input\n"
        f"headrace branch diff {config.job} {name}           compares it with the job\n"
        f"headrace branch drop {config.job} {name}           removes it"
    )


def list_branches(job: Job = None, as_json: AsJson = False) -> None:
    """List a job's branches with their forks, positions, ages and sizes.

    "Held back" are the bytes of the job that vacuum keeps only because of the branch.

    Example:  headrace branch list flights

    Exit codes: 0; 2 for an unknown job; 8 when a table cannot be read.
    """
    from headrace.cli._branch_usage import usages_of
    from headrace.cli._output import print_json, show, shown, table
    from headrace.commit.branches import Branches

    config = load(job)
    usages = {usage["name"]: usage for usage in usages_of(config)}
    rows = [
        {**usages[branch.name], **_row(config, branch)} for branch in Branches(config).open if branch.name in usages
    ]
    if as_json:
        print_json({"job": config.job, "branches": rows})
    elif not rows:
        show(f"job '{config.job}' has no branches")
    else:
        columns = ("branch", "forked at", "last", "age", "bytes", "held back", "note")
        names = ("name", "fork_id", "last", "age", "bytes", "held_back_bytes", "note")
        show(table(columns, [tuple(shown(row[name]) for name in names) for row in rows]))
        show(*(f"{row['name']}: {key}={text}" for row in rows for key, text in row["settings"].items()))
        show(*(row["problem"] for row in rows if row["problem"] is not None))


def diff(
    first: JobOrText,
    second: Second = None,
    *,
    operator: OperatorOption = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show how state and sinks of a branch differ from those of the job: numbers of rows, then the first rows of each table (-n).

    Compares only keys that either has written since the fork. Leaves out entries that TTL has expired. "Added" rows are in the
    branch and not in the job.

    Example:  headrace branch diff flights late_fix

    Exit codes: 0, also when nothing differs; 2 for an unknown job, branch or operator; 8 when files are gone.
    """
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.commit.branch_settings import on_branch
    from headrace.readers.difference import differences
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint
    from headrace.readers.known_operators import WITH_REQUESTS, WITH_STATE, check_operator

    job, name = job_and_text(first, second)
    config = load(job)
    live, branch = (JobAtCheckpoint(line_config, None) for line_config in (config, on_branch(config, name)))
    check_operator(live, operator, (*WITH_STATE, *WITH_REQUESTS))
    show_differences(live, branch, list(differences(live, branch, operator, limit)), as_json=as_json)


def promote(
    first: JobOrText,
    second: Second = None,
    *,
    why: Why = None,
    allow_other_code: AllowOtherCode = False,
    as_json: AsJson = False,
) -> None:
    """Make state and sinks of a branch those of the job, in one commit; then remove the branch.

    It leaves behind the job's own checkpoints since the fork, as a restore does: 'headrace restore JOB --to ID' brings them back.
    Readers of a sink see the table as before, or as on the branch, and nothing in between.

    It refuses while the branch lacks input of the job, when the job's code or settings are not what the branch ran with, when
    somebody changed the job's state by hand since the fork, and when somebody else has written to a sink since.

    Example:  headrace branch promote flights late_fix --why "10 January was corrected"

    Exit codes: 0; 2 for an unknown job or branch, or one that must not be promoted; 3 while a run holds the job or the branch; 8 when
    files are gone or the storage refuses; 10 when somebody else has written to a sink.
    """
    from headrace.cli._output import print_json, show
    from headrace.commit.promotion import promoting

    job, name = job_and_text(first, second)
    config = load(job)
    with promoting(config, name, new_run_id()) as promotion:
        before = promotion.job.last.checkpoint_id
        uncompared = promotion.uncompared_code
        checkpoint = promotion.promote(why, allow_other_code=allow_other_code)
    metrics = checkpoint.metrics
    if as_json:
        print_json({"branch": name, "checkpoint_id": checkpoint.checkpoint_id, "former_id": before, **metrics})
        return
    if uncompared is not None and not allow_other_code:
        show(uncompared)
    show(
        f"checkpoint {checkpoint.checkpoint_id} promotes branch '{name}': job '{config.job}' continues with the branch's result of "
        f"{counted(metrics['checkpoints'], 'micro-batch', 'micro-batches')} ({counted(metrics['rows_brought'], 'row')} in)\n"
        f"headrace diff {config.job} --from {before} --to {checkpoint.checkpoint_id}          shows the changes\n"
        f"headrace restore {config.job} --to {before}          undoes it"
    )


def drop(first: JobOrText, second: Second = None, *, why: Why = None, as_json: AsJson = False) -> None:
    """Remove a branch with all its tables. The job, its tables and its sinks stay as they are.

    A branch that was dropped already is no error: the command finishes a removal that was interrupted.

    Example:  headrace branch drop flights late_fix

    Exit codes: 0; 2 for an unknown job or branch; 3 while a run holds the branch; 8 storage.
    """
    from headrace.cli._output import print_json, show
    from headrace.commit.fork import drop_branch

    job, name = job_and_text(first, second)
    config = load(job)
    branch = drop_branch(config, name, new_run_id(), why)
    if as_json:
        print_json(_plain(branch))
        return
    show(f"branch '{name}' of job '{config.job}' is gone, with its tables")


def _row(config: JobConfig, branch: Branch) -> dict[str, Any]:
    from headrace.commit.fork import log_of

    last = log_of(config.on_branch(branch.name)).last
    return {**_plain(branch), "last": None if last is None else last.checkpoint_id}


def _plain(branch: Branch) -> dict[str, Any]:
    from headrace.cli._output import at_time

    return {
        "name": branch.name,
        "fork_id": branch.fork_id,
        "status": branch.status.value,
        "created_at": at_time(branch.created_at),
        "note": branch.note,
        "settings": branch.settings,
    }
