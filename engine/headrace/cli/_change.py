"""`headrace savepoint`, `restore`, `vacuum`: commands that change which checkpoints a job has or goes back to."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli._arguments import AsJson, Job, JobOrText, job_and_text, load, new_run_id
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.config import JobConfig

Why = Annotated[str, typer.Option("--why", help="The reason, kept with the checkpoint.")]
RunId = Annotated[Optional[str], typer.Option("--run-id", help="Id of this call; a new one if left out.")]  # noqa: UP045
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
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove the name: retention no longer keeps the savepoint.")
    ] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Give the present state a name. Retention keeps it, and restore and --at accept the name.

    It does not keep files of the sinks: a restore is possible only until somebody vacuums those tables.
    --drop deletes no file: the next vacuum after the retention does.

    Example:  headrace savepoint flights before_upgrade --why "engine 0.2"

    Example:  headrace savepoint flights before_upgrade --drop --why "the upgrade went well"

    Exit codes: 0; 2 for a bad name or an unknown job; 3 while a run holds the job; 10 job and sink disagree.
    """
    from headrace.commit.restore import drop_savepoint
    from headrace.commit.restore import savepoint as savepoint_job

    job, name = job_and_text(name, second)
    config = load(job)
    if drop:
        checkpoint = drop_savepoint(config, name, why, run_id or new_run_id())
        text = f"savepoint '{name}' is dropped, as checkpoint {checkpoint.checkpoint_id}. 'headrace vacuum' removes its files."
        show_checkpoint(config.job, checkpoint, text, as_json=as_json)
        return
    checkpoint = savepoint_job(config, name, why, run_id or new_run_id())
    text = f"savepoint '{name}' is checkpoint {checkpoint.checkpoint_id}"
    show_checkpoint(config.job, checkpoint, f"{text}. {not_protected(config.sinks)}", as_json=as_json)


def restore(
    job: Job = None,
    *,
    to: Annotated[str, typer.Option("--to", metavar="CHECKPOINT", help="Checkpoint id or savepoint name.")],
    why: Why,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    bring_back_erased: Annotated[
        bool, typer.Option("--bring-back-erased", help="Even if it has rows of a key that was erased later.")
    ] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Take state and sinks back to a checkpoint. Nothing is deleted: restoring again undoes it.

    Messages that a sink has sent to a topic stay there.

    The next run reads the input again from that checkpoint on. `headrace checkpoints` lists ids.
    It changes nothing if files of the checkpoint were deleted, in the state tables or in a sink; nor if the checkpoint has
    rows of a key that was erased later, unless you give --bring-back-erased.

    Example:  headrace restore flights --to 12 --why "bad weather data" --yes

    Exit codes: 0; 2 unknown job or checkpoint, or not confirmed; 3 a run holds the job; 8 files gone; 10 job and sink
    disagree, and this restore does not repair it.
    """
    from headrace.cli._output import show
    from headrace.commit.restore import restore as restore_job

    config = load(job)
    if not as_json:
        show(*stays_sent(config))
    _confirm(f"Take job '{config.job}' back to checkpoint {to}?", yes=yes)
    target = int(to) if to.isdecimal() else to
    checkpoint = restore_job(config, target, why, run_id or new_run_id(), brings_back_erased=bring_back_erased)
    text = f"restored to {checkpoint.restored_from}; this is checkpoint {checkpoint.checkpoint_id}"
    show_checkpoint(config.job, checkpoint, text, as_json=as_json)


def vacuum(
    job: Job = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the files.")] = False,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Remove files that no checkpoint within the retention and no savepoint needs.

    It also removes entries of the tables' logs that no such checkpoint needs. Older checkpoints can be neither
    read nor restored afterwards. Look first with --dry-run, which needs no lease. The list of files is a
    checkpoint of its own, committed before the first file is deleted. The output also shows what each branch holds back.

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
    show(*files, f"{counted(len(files), 'file')} {'would be removed' if dry_run else 'removed'}")
    show(*sentences_about(config.job, branches))


def not_protected(sinks: Iterable[str]) -> str:
    """Return a sentence on the sinks' files, which a savepoint does not keep."""
    names = " or ".join(f"'{name}'" for name in sorted(sinks))
    return (
        "Savepoints keep files of the state, and none of the sinks:\n"
        f"a VACUUM of {names}, or a clean-up of a sink's Delta log, may make a restore impossible."
    )


def stays_sent(config: JobConfig) -> Iterator[str]:
    """Yield a sentence for each sink that has sent messages, which a restore cannot take back."""
    for name, sink in sorted(config.sinks.items()):
        if sink.format == "kafka":
            yield f"Messages that sink '{name}' has sent to {sink.place} stay there: nobody can take them back."


def _confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation unless `yes`. Raises `ConfigError` when nobody can answer, or the answer is no."""
    from headrace.errors import ConfigError

    if yes:
        return
    if not sys.stdin.isatty():
        msg = "this needs a confirmation: add --yes"
        raise ConfigError(msg)
    if not typer.confirm(question, err=True):
        msg = "not confirmed: nothing was changed"
        raise ConfigError(msg)


def show_checkpoint(job: str, checkpoint: Checkpoint | None, text: str, *, as_json: bool) -> None:
    """Print the text on a command's checkpoint, or the checkpoint as JSON."""
    from headrace.cli._output import at_time, print_json, show

    if not as_json:
        show(f"{job}: {text}")
        return
    plain = checkpoint and {
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind,
        "name": checkpoint.name,
        "restored_from": checkpoint.restored_from,
        "committed_at": at_time(checkpoint.committed_at),
        "metrics": checkpoint.metrics,
        "note": checkpoint.note,
    }
    print_json({"job": job, "checkpoint": plain})
