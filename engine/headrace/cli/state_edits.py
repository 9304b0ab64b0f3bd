"""`headrace state drop` and `rename`, and `headrace rescale`: commands that rewrite state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli.arguments import (
    NOT_CHANGED,
    Apply,
    ApplyWhy,
    Job,
    RunId,
    load,
    new_run_id,
    reason,
    rows_by_table,
)
from headrace.names import counted
from headrace.report import Report, Table, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.edits.rewrite import StoredOperator
    from headrace.log.checkpoint import Checkpoint


Operator = Annotated[
    str, typer.Option("--operator", metavar="NAME", help="Name under which the operator's state is stored.")
]
RenamedOperator = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--operator", metavar="NAME", help="Name under which the operator's state is stored."),
]
RenamedSink = Annotated[Optional[str], typer.Option("--sink", metavar="NAME", help="Former name of the sink.")]  # noqa: UP045
To = Annotated[str, typer.Option("--to", metavar="NEW", help="Name that it has in the code now.")]


def register_state_edits(state: typer.Typer) -> None:
    """Add the commands to those of `headrace state`."""
    state.command("drop")(drop)
    state.command("rename")(rename)


def drop(
    job: Job = None,
    *,
    operator: Operator,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
) -> Report:
    """Delete the state of an operator that the pipeline no longer has. A dry run, unless --apply is given.

    Deletes all its rows: state, timers, histories, waiting elements, held records. Its rows in the quarantine stay: they
    are input. It never deletes state of an operator that the pipeline still has. The deletion is one checkpoint;
    'headrace restore' undoes it.

    Example:  headrace state drop flights --operator totals

    Example:  headrace state drop flights --operator totals --apply --why "not needed any more"

    Exit codes: 0; 2 for an unknown job or operator, one that the pipeline has, or no reason; 3 while a run holds the job; 8
    storage; 10 job and sink disagree.
    """
    from headrace.edits.edit import apply as apply_edit
    from headrace.edits.edit import preview
    from headrace.edits.operators import DropOperator

    config = load(job)
    if apply:
        checkpoint = apply_edit(config, DropOperator(operator, reason(why)), run_id or new_run_id())
        one, several = f"row of operator '{operator}' was", f"rows of operator '{operator}' were"
        text = f"{counted(checkpoint.metrics['rows_dropped'], one, several)} dropped: checkpoint {checkpoint.checkpoint_id}."
        return _done(config, checkpoint, text)
    stored = preview(config, DropOperator(operator))
    return _planned(config, stored, rows_by_table(stored.state_rows, "rows to drop"), _aside(stored))


def rename(
    job: Job = None,
    *,
    operator: RenamedOperator = None,
    sink: RenamedSink = None,
    to: To,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
) -> Report:
    """Move the state of an operator, or the table of a sink, to its new name. A dry run, unless --apply is given.

    Rename the operator in the pipeline first, a sink also in the job's file. States and keys must fit, and the new name must have
    no state yet. The move is one checkpoint; 'headrace restore' undoes that of an operator. The table of a sink keeps its rows.

    Example:  headrace state rename flights --operator totals --to totals_by_day --apply

    Example:  headrace state rename flights --sink board --to flight_board --apply

    Exit codes: 0; 2 for an unknown job, operator or sink, names that do not match the pipeline, or a new name with state; 3 while
    a run holds the job; 6 the state does not fit the operator; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.edit import apply as apply_edit
    from headrace.edits.edit import preview
    from headrace.edits.operators import RenameOperator
    from headrace.errors import ConfigError

    config = load(job)
    if (operator is None) == (sink is None):
        msg = "name what has a new name: --operator NAME, or --sink NAME. Nothing was changed."
        raise ConfigError(msg)
    if operator is None:
        return _rename_sink(config, str(sink), to, apply=apply, why=why, run_id=run_id or new_run_id())
    if apply:
        checkpoint = apply_edit(config, RenameOperator(operator, to, why), run_id or new_run_id())
        one, several = f"row of operator '{operator}' is", f"rows of operator '{operator}' are"
        text = f"{counted(checkpoint.metrics['rows_moved'], one, several)} of '{to}' now: checkpoint {checkpoint.checkpoint_id}."
        return _done(config, checkpoint, text)
    stored = preview(config, RenameOperator(operator, to))
    return _planned(config, stored, rows_by_table(stored.rows, f"rows to move to '{to}'"), "")


def _rename_sink(config: JobConfig, sink: str, to: str, *, apply: bool, why: str | None, run_id: str) -> Report:
    from headrace.edits.sink_owners import renamable_sink, rename_sink

    renamed = facts(job=config.job, sink=sink, to=to, applied=apply)
    if apply:
        checkpoint = rename_sink(config, sink, to, run_id, why)
        text = f"{config.job}: the table of sink '{sink}' is that of '{to}' now: checkpoint {checkpoint.checkpoint_id}."
        return Report(*renamed, *facts(checkpoint=checkpoint.checkpoint_id, note=checkpoint.note), text)
    uri = renamable_sink(config, sink, to).sinks[sink].path
    text = (
        f"{config.job}: the table of sink '{sink}' at {uri} would become that of '{to}', with its rows. {NOT_CHANGED}"
    )
    return Report(*renamed, *facts(checkpoint=None), text)


def _aside(stored: StoredOperator) -> str:
    if not stored.set_aside:
        return ""
    return f"What it has in the quarantine stays ({counted(stored.set_aside, 'row')}): it is input that was set aside. "


def _planned(config: JobConfig, stored: StoredOperator, tables: Table, text: str) -> Report:
    states = f" State(s): {', '.join(stored.states)}." if stored.states else ""
    rows = sum(stored.state_rows.values())
    return Report(
        *facts(job=config.job, operator=stored.name, applied=False),
        *facts(rows=stored.rows, states=stored.states, checkpoint=None),
        tables,
        f"{config.job}: operator '{stored.name}' has {counted(rows, 'row')} of state.{states}",
        f"{text}{NOT_CHANGED}",
    )


def _done(config: JobConfig, checkpoint: Checkpoint, text: str) -> Report:
    number = checkpoint.checkpoint_id
    return Report(
        *facts(job=config.job, applied=True, metrics=checkpoint.metrics, checkpoint=number, note=checkpoint.note),
        f"{config.job}: {text}",
        f"To undo: headrace restore {config.job} --to {number - 1} --why ...",
    )


MaxParallelism = Annotated[
    int,
    typer.Option("--max-parallelism", metavar="N", min=1, help="New number of key groups of the state."),
]


def register_rescale(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rescale")(rescale)


def rescale(
    job: Job = None,
    *,
    max_parallelism: MaxParallelism,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
) -> Report:
    """Give the state another number of key groups (max_parallelism). A dry run, unless --apply is given.

    It rewrites all rows of the state tables, as one checkpoint; the content of the state and later results stay the same. The job's
    file must have the new number: until state and file agree, runs and all commands that change the job are refused. So change the
    file right before or right after.

    Example:  headrace rescale flights --max-parallelism 512

    Example:  headrace rescale flights --max-parallelism 512 --apply --why "more than 128 tasks"

    Exit codes: 0; 2 for an unknown job, a number that the state has already or that is below 'parallelism', or no reason; 3 while a
    run holds the job; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.edit import apply as apply_edit
    from headrace.edits.edit import preview
    from headrace.edits.rescale import Rescale

    config = load(job, checked=False)
    if apply:
        checkpoint = apply_edit(config, Rescale(max_parallelism, reason(why)), run_id or new_run_id())
        rows, number = checkpoint.metrics["rows_rewritten"], checkpoint.checkpoint_id
        return Report(
            *facts(job=config.job, applied=True, metrics=checkpoint.metrics, checkpoint=number),
            f"{config.job}: {counted(rows, 'row has', 'rows have')} {counted(max_parallelism, 'key group')} now: checkpoint {number}.",
            _of_the_file(config, max_parallelism),
        )
    plan = preview(config, Rescale(max_parallelism))
    rows_of = plan.rows()
    return Report(
        *facts(job=config.job, applied=False, before=plan.before, after=plan.after, rows=rows_of, checkpoint=None),
        rows_by_table(rows_of, "rows to rewrite"),
        f"{config.job}: from {counted(plan.before, 'key group')} to {plan.after}. {NOT_CHANGED}",
        _of_the_file(config, plan.after),
    )


def _of_the_file(config: JobConfig, number: int) -> str:
    """Return a sentence on the change that the job's file needs."""
    if config.max_parallelism == number:
        return f"{config.file} has max_parallelism: {number} already."
    return (
        f"Then write max_parallelism: {number} into {config.file} (it has {config.max_parallelism}): runs are refused "
        "until both agree."
    )
