"""`headrace savepoint` and `restore`: commands that change which checkpoints a job has or goes back to.

`headrace reconcile`: compare a job with its sinks, and bring both together again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.arguments import (
    Apply,
    ApplyWhy,
    Branch,
    Job,
    JobOrText,
    Name,
    RunId,
    Yes,
    confirm,
    job_and_text,
    load,
    new_run_id,
)
from headrace.names import counted
from headrace.report import Report, Table, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.edits.reconcile import Comparison, ReconcilePlan, SinkDifference, SinkRestore
    from headrace.log.checkpoint import Checkpoint


Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept with the checkpoint.")]


def register_restore(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (savepoint, restore):
        app.command(command.__name__)(command)


def savepoint(
    name: JobOrText,
    second: Name = None,
    *,
    why: Why,
    drop: Annotated[
        bool, typer.Option("--drop", help="Remove the name: retention no longer keeps the savepoint.")
    ] = False,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report:
    """Give the present state a name. Retention keeps it, and restore and --at accept the name.

    It does not keep files of the sinks: a restore is possible only until somebody vacuums those tables.
    --drop deletes no file: the next vacuum after the retention does.

    Example:  headrace savepoint flights before_upgrade --why "engine 0.2"

    Example:  headrace savepoint flights before_upgrade --drop --why "the upgrade went well"

    Exit codes: 0; 2 for a bad name or an unknown job; 3 while a run holds the job; 10 job and sink disagree.
    """
    from headrace.edits.restore import drop_savepoint
    from headrace.edits.restore import savepoint as savepoint_job

    job, name = job_and_text(name, second)
    config = load(job, branch=branch)
    if drop:
        checkpoint = drop_savepoint(config, name, why, run_id or new_run_id())
        text = f"savepoint '{name}' is dropped, as checkpoint {checkpoint.checkpoint_id}. 'headrace maintain {config.job}' removes its files."
        return of_checkpoint(config.job, checkpoint, text)
    checkpoint = savepoint_job(config, name, why, run_id or new_run_id())
    text = f"savepoint '{name}' is checkpoint {checkpoint.checkpoint_id}"
    return of_checkpoint(config.job, checkpoint, f"{text}. {not_protected(config.sinks)}")


def restore(
    job: Job = None,
    *,
    to: Annotated[str, typer.Option("--to", metavar="CHECKPOINT", help="Checkpoint id or savepoint name.")],
    why: Why,
    yes: Yes = False,
    bring_back_erased: Annotated[
        bool, typer.Option("--bring-back-erased", help="Even if it has rows of a key that was erased later.")
    ] = False,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report:
    """Take state and sinks back to a checkpoint. Nothing is deleted: restoring again undoes it.

    Messages that a sink has sent to a topic stay there.

    The next run reads the input again from that checkpoint on. `headrace checkpoints` lists ids.
    It changes nothing if files of the checkpoint were deleted, in the state tables or in a sink; nor if the checkpoint has
    rows of a key that was erased later, unless you give --bring-back-erased.

    Example:  headrace restore flights --to 12 --why "bad weather data" --yes

    Exit codes: 0; 2 unknown job or checkpoint, or not confirmed; 3 a run holds the job; 8 files gone; 10 job and sink
    disagree, and this restore does not repair it.
    """
    from headrace.edits.restore import restore as restore_job

    config = load(job, branch=branch)
    sent = [*stays_sent(config)]
    was_asked = _confirm("\n".join([*sent, f"Take job '{config.job}' back to checkpoint {to}?"]), yes=yes)
    target = int(to) if to.isdecimal() else to
    checkpoint = restore_job(config, target, why, run_id or new_run_id(), brings_back_erased=bring_back_erased)
    text = f"restored to {checkpoint.restored_from}; this is checkpoint {checkpoint.checkpoint_id}"
    return of_checkpoint(config.job, checkpoint, text, *([] if was_asked else sent))


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
        if sink.kind.sends_messages:
            yield f"Messages that sink '{name}' has sent to {sink.place} stay there: nobody can take them back."


def _confirm(question: str, *, yes: bool) -> bool:
    """Ask for confirmation unless `yes`; return whether somebody was asked. Raises `ConfigError` when nobody can answer, or the answer is no."""
    from headrace.errors import ConfigError

    if yes:
        return False
    if not sys.stdin.isatty():
        msg = "this needs a confirmation: add --yes"
        raise ConfigError(msg)
    confirm(question)
    return True


def of_checkpoint(job: str, checkpoint: Checkpoint | None, text: str, *before: str) -> Report:
    """Return the report of a command that commits a checkpoint, or that has nothing to do. People read the texts."""
    plain = checkpoint and {
        "checkpoint_id": checkpoint.checkpoint_id,
        "kind": checkpoint.kind,
        "name": checkpoint.name,
        "restored_from": checkpoint.restored_from,
        "committed_at": Time(checkpoint.committed_at),
        "metrics": checkpoint.metrics,
        "note": checkpoint.note,
    }
    return Report(*facts(job=job, checkpoint=plain), *before, f"{job}: {text}")


def register_reconcile(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reconcile")(reconcile)


def reconcile(job: Job = None, *, apply: Apply = False, why: ApplyWhy = None, run_id: RunId = None) -> Report:
    """Compare a job with its sinks, and bring them together after one was lost or came from a backup.

    Shows the checkpoint that each sink has and the one it should have, and what --apply would do: job and sinks go
    back to the newest checkpoint that all of them can reach, as a restore. The next run takes in later input again.
    It deletes nothing. Without --apply it needs no lease and changes nothing.

    Example:  headrace reconcile flights
    Example:  headrace reconcile flights --apply --why "the lake came from the backup of Sunday"

    Exit codes: 0, also when there is nothing to do; 2 unknown job, or --apply without --why; 3 a run holds the job; 8 storage;
    10 job and sinks cannot be brought together: the message has the ways out.
    """
    from headrace.edits.reconcile import compare
    from headrace.edits.reconcile import reconcile as reconcile_job
    from headrace.errors import ConfigError, SinkMismatchError

    if apply and not why:
        msg = "--apply needs a reason, which is kept with the checkpoint: --why TEXT"
        raise ConfigError(msg)
    config = load(job)
    comparison = compare(config)
    sinks = _sinks(config, comparison)
    if comparison.refusal is not None:
        return Report(sinks, error=SinkMismatchError(comparison.refusal))
    checkpoint = reconcile_job(config, run_id or new_run_id(), why) if apply and why else None
    return Report(sinks, *facts(**_plain(config, comparison, checkpoint)), *_sentences(config, comparison, checkpoint))


def _sinks(config: JobConfig, comparison: Comparison) -> Table:
    home = f"{config.home}/"
    return Table.shown(
        ("sink", "path", "has", "should have", "what is wrong"),
        [
            (sink.sink, sink.path.removeprefix(home), _has(sink), _number(sink.wanted), _detail(sink))
            for sink in comparison.sinks
        ],
    )


def _has(sink: SinkDifference) -> str:
    return "no table" if not sink.exists else _number(sink.published)


def _number(checkpoint_id: int | None) -> str:
    return "nothing" if checkpoint_id is None else str(checkpoint_id)


def _detail(sink: SinkDifference) -> str:
    if sink.mismatch is not None:
        return sink.mismatch.short
    return "not published yet" if _is_unpublished(sink) else ""


def _is_unpublished(sink: SinkDifference) -> bool:
    return (
        sink.mismatch is None and sink.wanted is not None and (sink.published is None or sink.published < sink.wanted)
    )


def _sentences(config: JobConfig, comparison: Comparison, checkpoint: Checkpoint | None) -> Iterator[str]:
    if checkpoint is not None:
        yield (
            f"{config.job}: job and sinks are at checkpoint {checkpoint.restored_from} again, as checkpoint {checkpoint.checkpoint_id}. "
            f"Go on:  headrace run {config.job}"
        )
    elif comparison.plan is None:
        waiting = [sink for sink in comparison.sinks if _is_unpublished(sink)]
        last = f" The next run publishes checkpoint {comparison.last_id} first." if waiting else ""
        yield f"{config.job}: job and sinks agree, nothing to do.{last}"
        for sink in waiting:
            if sink.rules:
                yield (
                    f"The table of sink {sink.sink} refuses rows that break one of its rules: {'; '.join(sink.rules)}. docs/errors.md (10) "
                    "has the ways on."
                )
    else:
        yield f"{config.job}: job and sinks do not fit together. With --apply:"
        yield from (f"- {line}" for line in _steps(config, comparison, comparison.plan))
        yield "Nothing was changed. To do it:"
        yield f'  headrace reconcile {config.job} --apply --why "..."'


def _steps(config: JobConfig, comparison: Comparison, plan: ReconcilePlan) -> Iterator[str]:
    if plan.undone:
        count = counted(len(plan.undone), "checkpoint")
        yield (
            f"The job goes back {count}, from {comparison.last_id} to {plan.target_id} (as checkpoint {plan.checkpoint_id}). The "
            f"next run takes in their input again ({counted(plan.rows_in, 'row')}), as long as it is there."
        )
    else:
        yield f"The job stays at checkpoint {plan.target_id} (as checkpoint {plan.checkpoint_id})."
    if lost := [
        sink.published for sink in comparison.sinks if sink.published and sink.published > (comparison.last_id or 0)
    ]:
        yield (
            f"The job's folder lacks what came up to checkpoint {max(lost)}. The next run takes that in again, as long as the "
            "input is there."
        )
    yield from (_step_of(name, sink) for name, sink in plan.sinks.items())
    yield from stays_sent(config)
    before, after = Time(plan.covered_before), Time(plan.covered_after)
    if before.ms is not None and before != after:
        yield f"Interval runs go on from {after if after.ms is not None else 'the first one'}: all up to {before} have to be run again."


def _step_of(name: str, sink: SinkRestore) -> str:
    if sink.now is None:
        return f"Sink {name} is made anew, empty."
    if sink.now == sink.then:
        return f"Sink {name} keeps its rows (version {sink.now} of its table)."
    return f"Sink {name} goes back from version {sink.now} of its table to the rows of version {sink.then}."


def _plain(config: JobConfig, comparison: Comparison, checkpoint: Checkpoint | None) -> dict[str, Any]:
    plan = comparison.plan
    return {
        "job": config.job,
        "agrees": comparison.agrees,
        "applied": checkpoint is not None,
        "last_checkpoint": comparison.last_id,
        "sinks": [
            {
                "sink": sink.sink,
                "path": sink.path,
                "exists": sink.exists,
                "has": sink.published,
                "should_have": sink.wanted,
                "mismatch": sink.mismatch.kind.value if sink.mismatch else None,
                "detail": _detail(sink),
                "version": plan.sinks[sink.sink].now if plan else None,
                "goes_back_to_version": plan.sinks[sink.sink].then if plan else None,
            }
            for sink in comparison.sinks
        ],
        "plan": plan
        and {
            "target_checkpoint": plan.target_id,
            "new_checkpoint": plan.checkpoint_id,
            "undone_checkpoints": list(plan.undone),
            "rows_taken_in_again": plan.rows_in,
        },
        "checkpoint": checkpoint.checkpoint_id if checkpoint else None,
    }
