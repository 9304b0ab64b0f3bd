"""Commands `headrace branch ...`: they try other code or input without changing the job.

The file has the options --pipeline, --source and --set for a branch's own code, input and settings; the commands; and
the storage costs of branches in the output of `status`, `maintain` and `branch list`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli.arguments import (
    At,
    Job,
    JobOrText,
    Limit,
    Name,
    OperatorOption,
    Yes,
    confirm_at_terminal,
    job_and_text,
    load,
    new_run_id,
)
from headrace.cli.diff import of_differences
from headrace.names import counted
from headrace.report import Report, Table, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.edits.fork import BranchUsage
    from headrace.log.branches import Branch


# Typer reads these at run time, and does not support `str | None` in an alias.
OtherPipeline = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--pipeline", metavar="MODULE:NAME", help="With a branch: its pipeline instead of the job's."),
]
OtherSource = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option("--source", metavar="NAME=PATH", help="With a branch: the path of a source; may be repeated."),
]
Setting = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="With a branch: a value that overrides the job's file, as run.budget=5m; may be repeated.",
    ),
]


def named_settings(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> dict[str, str]:
    """Return the values of the options as YAML, by dotted key. Raises `ConfigError` for malformed values and unknown sources."""
    from headrace.errors import ConfigError

    named = {} if pipeline is None else {"pipeline": pipeline}
    for text in sources or []:
        name, separator, path = text.partition("=")
        if not separator or name not in config.sources or not path:
            msg = f"--source '{text}' is not SOURCE=PATH (sources: {', '.join(config.sources)}). Nothing was done."
            raise ConfigError(msg)
        named[f"sources.{name}.path"] = _as_yaml(path)
    for text in settings or []:
        key, separator, value = text.partition("=")
        if not separator or not key:
            msg = f"--set '{text}' is not KEY=VALUE, as in run.budget=5m. Nothing was done."
            raise ConfigError(msg)
        named[key] = value
    return named


def corrected_settings(config: JobConfig, sources: list[str] | None) -> dict[str, str]:
    """Return corrected input of a backfill as settings of its branch, as YAML by dotted key.

    Each text is SOURCE=PLACE, for input of the format of the source, SOURCE=FORMAT:PLACE, or SOURCE={...}, a section as in `replay.sources`.
    Raises `ConfigError` for others, for unknown sources, and where nobody can tell what a place is.
    """
    from headrace.errors import ConfigError

    settings: dict[str, str] = {}
    for text in sources or []:
        name, separator, place = text.partition("=")
        if not separator or name not in config.sources or not place:
            msg = f"--source '{text}' is not SOURCE=PLACE, SOURCE=FORMAT:PLACE or SOURCE={{...}} (sources: {', '.join(config.sources)}). Nothing was done."
            raise ConfigError(msg)
        settings[f"replay.sources.{name}"] = place if place.startswith("{") else _corrected_place(config, name, place)
    return settings


def _corrected_place(config: JobConfig, source: str, place: str) -> str:
    """Return the section of a place, as YAML."""
    import msgspec

    from headrace.config import SOURCE_FORMATS
    from headrace.errors import ConfigError

    word, _, rest = place.partition(":")
    is_named = word in SOURCE_FORMATS and not rest.startswith("//")
    name, place = (word, rest) if is_named else (config.sources[source].format, place)
    kind = SOURCE_FORMATS[name]
    if kind.has_partitions and "/" in place:
        msg = (
            f"--source '{source}={place}': source '{source}' is a {kind.noun}, and this is none. Say what it is, as {source}=json:{place}, or {source}="
            f"kafka:TOPIC (formats: {', '.join(SOURCE_FORMATS)}). Nothing was done."
        )
        raise ConfigError(msg)
    where = {"topic": place} if kind.has_partitions else {"path": place if "://" in place else _absolute(place)}
    return msgspec.json.encode({"format": name, **where}).decode()


def with_options(
    config: JobConfig, pipeline: str | None, sources: list[str] | None, settings: list[str] | None
) -> JobConfig:
    """Return a branch's configuration with the values of the options added to the branch's own.

    Raises `ConfigError` if the configuration is that of the job itself, and for values that a branch cannot have.
    """
    from headrace.config import with_settings
    from headrace.errors import ConfigError

    named = named_settings(config, pipeline, sources, settings)
    if named and config.branch is None:
        msg = (
            "--pipeline, --source and --set need --branch: the job itself uses the code and input of its file. Nothing was run. "
            f"'headrace branch create {config.job} NAME' makes a branch."
        )
        raise ConfigError(msg)
    return with_settings(config, {**config.settings, **named})


def _as_yaml(path: str) -> str:
    """Return a path as quoted YAML: it may contain characters with a meaning in YAML."""
    import msgspec

    return msgspec.json.encode(path if "://" in path else _absolute(path)).decode()


def _absolute(path: str) -> str:
    from pathlib import Path

    return str(Path(path).absolute())


Why = Annotated[Optional[str], typer.Option("--why", metavar="TEXT", help="The reason, kept with the branch.")]  # noqa: UP045

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
    second: Name = None,
    *,
    at: At = None,
    why: Why = None,
    pipeline: OtherPipeline = None,
    source: OtherSource = None,
    setting: Setting = None,
) -> Report:
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
    from headrace.edits.fork import fork

    job, name = job_and_text(first, second)
    config = load(job)
    settings = named_settings(config, pipeline, source, setting)
    branch = fork(config, name, at, new_run_id(), why, settings=settings)
    return Report(
        *facts(**_plain(branch)),
        f"branch '{name}' begins at checkpoint {branch.fork_id} of job '{config.job}'; nothing was copied\n"
        f"headrace run {config.job} --branch {name}          takes in later input\n"
        f"headrace branch diff {config.job} {name}           compares it with the job\n"
        f"headrace branch drop {config.job} {name}           removes it",
    )


def list_branches(job: Job = None) -> Report:
    """List a job's branches with their forks, positions, ages and sizes.

    "Held back" are the bytes of the job that vacuum keeps only because of the branch.

    Example:  headrace branch list flights

    Exit codes: 0; 2 for an unknown job; 8 when a table cannot be read.
    """
    from headrace.log.branches import Branches

    config = load(job)
    usages = {usage["name"]: usage for usage in usages_of(config)}
    rows = [
        {**usages[branch.name], **_row(config, branch)} for branch in Branches(config).open if branch.name in usages
    ]
    columns = {"name": "branch", "fork_id": "forked at", "last": "last", "age": "age"}
    columns |= {"bytes": "bytes", "held_back_bytes": "held back", "note": "note"}
    return Report(
        *facts(job=config.job),
        Table("branches", columns, rows),
        None if rows else f"job '{config.job}' has no branches",
        *(f"{row['name']}: {key}={text}" for row in rows for key, text in row["settings"].items()),
        *(row["problem"] for row in rows if row["problem"] is not None),
    )


def diff(
    first: JobOrText,
    second: Name = None,
    *,
    operator: OperatorOption = None,
    limit: Limit = 20,
) -> Report:
    """Show how state and sinks of a branch differ from those of the job: numbers of rows, then the first rows of each table (-n).

    Compares only keys that either has written since the fork. Leaves out entries that TTL has expired. "Added" rows are in the
    branch and not in the job.

    Example:  headrace branch diff flights late_fix

    Exit codes: 0, also when nothing differs; 2 for an unknown job, branch or operator; 8 when files are gone.
    """
    from headrace.commit.branch_code import on_branch
    from headrace.readers.difference import differences
    from headrace.readers.job_at import WITH_REQUESTS, WITH_STATE, JobAtCheckpoint, check_operator

    job, name = job_and_text(first, second)
    config = load(job)
    live, branch = (JobAtCheckpoint(line_config, None) for line_config in (config, on_branch(config, name)))
    check_operator(live, operator, (*WITH_STATE, *WITH_REQUESTS))
    return of_differences(live, branch, list(differences(live, branch, operator, limit)))


def promote(
    first: JobOrText,
    second: Name = None,
    *,
    why: Why = None,
    yes: Yes = False,
    allow_other_code: AllowOtherCode = False,
) -> Report:
    """Make state and sinks of a branch those of the job, in one commit; then remove the branch.

    It leaves behind the job's own checkpoints since the fork, as a restore does: 'headrace restore JOB --to ID' brings them back.
    Readers of a sink see the table as before, or as on the branch, and nothing in between.

    It refuses while the branch lacks input of the job, when the job's code or settings are not what the branch ran with, when
    somebody changed the job's state by hand since the fork, and when somebody else has written to a sink since. At a terminal it asks
    first, unless you give --yes.

    Example:  headrace branch promote flights late_fix --why "10 January was corrected"

    Exit codes: 0; 2 for an unknown job or branch, one that must not be promoted, or not confirmed; 3 while a run holds the job or the branch; 8 when
    files are gone or the storage refuses; 10 when somebody else has written to a sink.
    """
    from headrace.edits.promote import promoting

    job, name = job_and_text(first, second)
    config = load(job)
    confirm_at_terminal(f"Make state and sinks of branch '{name}' those of job '{config.job}'?", yes=yes)
    with promoting(config, name, new_run_id()) as promotion:
        before = promotion.job.last.checkpoint_id
        uncompared = promotion.uncompared_code
        checkpoint = promotion.promote(why, allow_other_code=allow_other_code)
    number, metrics = checkpoint.checkpoint_id, checkpoint.metrics
    return Report(
        *facts(branch=name, checkpoint_id=number, former_id=before, **metrics),
        None if uncompared is None or allow_other_code else uncompared,
        f"checkpoint {number} promotes branch '{name}': job '{config.job}' continues with the branch's result of "
        f"{counted(metrics['checkpoints'], 'micro-batch', 'micro-batches')} ({counted(metrics['rows_brought'], 'row')} in)\n"
        f"headrace diff {config.job} --from {before} --to {number}          shows the changes\n"
        f'headrace restore {config.job} --to {before} --why "..."          undoes it',
    )


def drop(first: JobOrText, second: Name = None, *, why: Why = None) -> Report:
    """Remove a branch with all its tables. The job, its tables and its sinks stay as they are.

    A branch that was dropped already is no error: the command finishes a removal that was interrupted.

    Example:  headrace branch drop flights late_fix

    Exit codes: 0; 2 for an unknown job or branch; 3 while a run holds the branch; 8 storage.
    """
    from headrace.edits.fork import drop_branch

    job, name = job_and_text(first, second)
    config = load(job)
    branch = drop_branch(config, name, new_run_id(), why)
    return Report(*facts(**_plain(branch)), f"branch '{name}' of job '{config.job}' is gone, with its tables")


def _row(config: JobConfig, branch: Branch) -> dict[str, Any]:
    from headrace.edits.fork import log_of

    last = log_of(config.on_branch(branch.name)).last
    return {**_plain(branch), "last": None if last is None else last.checkpoint_id}


def _plain(branch: Branch) -> dict[str, Any]:
    return {
        "name": branch.name,
        "fork_id": branch.fork_id,
        "status": branch.status.value,
        "created_at": Time(branch.created_at),
        "note": branch.note,
        "settings": branch.settings,
    }


_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))


def usages_of(config: JobConfig) -> list[dict[str, Any]]:
    """Return the costs of each branch of a job as plain values."""
    from headrace.edits.fork import branch_usages

    return [_plain_usage(usage) for usage in branch_usages(config)]


def sentences_about(job: str, usages: Iterable[dict[str, Any]]) -> list[str]:
    """Return a sentence for each branch."""
    return [
        f"{job}: branch '{usage['name']}' is {usage['age']} old and has {counted(usage['bytes'], 'byte')}; vacuum spares "
        f"{counted(usage['held_back_bytes'], 'byte')} of the job for it"
        + ("" if usage["problem"] is None else f"; {usage['problem']}")
        for usage in usages
    ]


def _plain_usage(usage: BranchUsage) -> dict[str, Any]:
    return {
        "name": usage.branch.name,
        "created_at": Time(usage.branch.created_at),
        "age": _age(usage.age),
        "age_seconds": usage.age // 1000,
        "bytes": usage.own.size,
        "held_back_files": usage.held_back.files,
        "held_back_bytes": usage.held_back.size,
        "problem": usage.problem,
    }


def _age(milliseconds: int) -> str:
    """Return a span in the largest unit that gives at least two, as `36 hours` or `3 days`."""
    unit, length = next((entry for entry in _UNITS if milliseconds >= 2 * entry[1]), _UNITS[-1])
    count = max(0, milliseconds // length)
    return counted(count, unit)
