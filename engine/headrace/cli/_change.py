"""`headrace savepoint`, `restore`, `vacuum`: each a deed with a name and a reason."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli._arguments import AsJson, Job, JobOrText, job_and_text, load, new_run_id

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.config import JobConfig

Why = Annotated[str, typer.Option("--why", help="The reason, kept with the checkpoint.")]
RunId = Annotated[Optional[str], typer.Option("--run-id", help="Made up if left out.")]  # noqa: UP045
Second = Annotated[
    str | None, typer.Argument(metavar="NAME", help="Lower case, digits, underscores.", show_default=False)
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (savepoint, restore, vacuum):
        app.command(command.__name__)(command)


def savepoint(
    name: JobOrText,
    second: Second = None,
    *,
    why: Why,
    drop: Annotated[bool, typer.Option("--drop", help="Take the name away: retention no longer spares it.")] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Give the present state a name. Retention spares it, and restore and --at take the name.

    Files of the sinks are not spared: whoever vacuums those tables decides how long a restore finds them.
    --drop deletes no file: the next vacuum does, once the retention is over.

    Example:  headrace savepoint flights before_upgrade --why "engine 0.2"

    Example:  headrace savepoint flights before_upgrade --drop --why "the upgrade went well"

    Exit codes: 0; 2 for a bad name or an unknown job; 3 while a run holds the job; 10 job and sink disagree.
    """
    from headrace.commit.restore import drop_savepoint
    from headrace.commit.restore import savepoint as savepoint_job

    job, name = job_and_text(name, second)
    config = load(job)
    if drop:
        made = drop_savepoint(config, name, why, run_id or new_run_id())
        text = (
            f"savepoint '{name}' is dropped, as checkpoint {made.checkpoint_id}. 'headrace vacuum' removes its files."
        )
        show_checkpoint(config.job, made, text, as_json=as_json)
        return
    made = savepoint_job(config, name, why, run_id or new_run_id())
    text = f"savepoint '{name}' is checkpoint {made.checkpoint_id}"
    show_checkpoint(config.job, made, f"{text}. {not_protected(config.sinks)}", as_json=as_json)


def restore(
    job: Job = None,
    *,
    to: Annotated[str, typer.Option("--to", metavar="CHECKPOINT", help="Checkpoint id or savepoint name.")],
    why: Why,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bring_back_erased: Annotated[
        bool, typer.Option("--bring-back-erased", help="Even if it has rows of a key that was erased since.")
    ] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Take state and sinks back to a checkpoint. Nothing is deleted: restoring again undoes it.

    Messages that a sink has sent to a topic stay there.

    The next run reads the input again from that checkpoint on. See `headrace checkpoints` for ids.
    If files of the checkpoint were deleted, in the state tables or in a sink, nothing is changed; nor if it has rows of
    a key that was erased since, unless --bring-back-erased is given.

    Example:  headrace restore flights --to 12 --why "bad weather data" --yes

    Exit codes: 0; 2 unknown job or checkpoint, or not confirmed; 3 a run holds the job; 8 files gone;
    10 job and sink disagree, and this restore does not mend it.
    """
    from headrace.cli._output import show
    from headrace.commit.restore import restore as restore_job

    config = load(job)
    if not as_json:
        show(*stays_sent(config))
    _confirm(f"Take job '{config.job}' back to checkpoint {to}?", yes=yes)
    target = int(to) if to.isdecimal() else to
    made = restore_job(config, target, why, run_id or new_run_id(), brings_back_erased=bring_back_erased)
    text = f"restored to {made.restored_from}; this is checkpoint {made.checkpoint_id}"
    show_checkpoint(config.job, made, text, as_json=as_json)


def vacuum(
    job: Job = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Remove files that no checkpoint within the retention needs. Savepoints are spared.

    The tables' logs are cut off as well: entries that no such checkpoint needs are removed. Older checkpoints
    can be neither read nor restored afterwards. Look first with --dry-run, which needs no lease. The list of
    files is a checkpoint of its own, committed before the first is deleted. It says as well what is spared for each branch.

    Example:  headrace vacuum flights --dry-run

    Exit codes: 0; 2 unknown job; 3 a run holds the job, or takes it before the commit; 8 storage; 10 job and
    sink disagree.
    """
    from headrace.cli._branch_usage import sentences_about, usages_of
    from headrace.cli._output import print_json, show
    from headrace.commit.vacuum import vacuum as vacuum_job

    config = load(job)
    files = vacuum_job(config, run_id or new_run_id(), dry_run=dry_run)
    branches = usages_of(config)
    if as_json:
        print_json({"job": config.job, "dry_run": dry_run, "files": files, "branches": branches})
        return
    show(*files, f"{len(files):,} files {'would be removed' if dry_run else 'removed'}")
    show(*sentences_about(config.job, branches))


def not_protected(sinks: Iterable[str]) -> str:
    """Return what a savepoint does not keep."""
    names = " or ".join(f"'{name}'" for name in sorted(sinks))
    return (
        "Savepoints keep files of the state, and none of the sinks:\n"
        f"a VACUUM of {names}, or a clean-up of a sink's Delta log, may make a restore impossible."
    )


def stays_sent(config: JobConfig) -> Iterator[str]:
    """Yield a sentence for each sink whose readers keep what a restore takes back."""
    for name, sink in sorted(config.sinks.items()):
        if sink.format == "kafka":
            yield f"Messages that sink '{name}' has sent to {sink.place} stay there: nobody can take them back."


def _confirm(question: str, *, yes: bool) -> None:
    """Ask, unless told not to. Where nobody can answer, say what is missing."""
    from headrace.errors import ConfigError

    if yes:
        return
    if not sys.stdin.isatty():
        msg = "this needs a confirmation: add --yes"
        raise ConfigError(msg)
    if not typer.confirm(question, err=True):
        msg = "not confirmed: nothing was changed"
        raise ConfigError(msg)


def show_checkpoint(job: str, made: Checkpoint | None, text: str, *, as_json: bool) -> None:
    """Print what a command has done, or the checkpoint that it made as JSON."""
    from headrace.cli._output import at_time, print_json, show

    if not as_json:
        show(f"{job}: {text}")
        return
    plain = made and {
        "checkpoint_id": made.checkpoint_id,
        "kind": made.kind,
        "name": made.name,
        "restored_from": made.restored_from,
        "committed_at": at_time(made.committed_at),
        "metrics": made.metrics,
        "note": made.note,
    }
    print_json({"job": job, "checkpoint": plain})
