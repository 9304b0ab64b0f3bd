"""`headrace state drop` and `rename`: delete or move what the code no longer has under its name: an operator's state, a sink's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli._apply import NOT_CHANGED, Apply, ApplyWhy, reason, show_rows
from headrace.cli._arguments import AsJson, Job, load, new_run_id
from headrace.cli._change import RunId
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.commit.stored_operator import StoredOperator
    from headrace.config import JobConfig

Operator = Annotated[str, typer.Option("--operator", help="Name under which the operator's state is stored.")]
RenamedOperator = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--operator", help="Name under which the operator's state is stored."),
]
RenamedSink = Annotated[Optional[str], typer.Option("--sink", help="Former name of the sink.")]  # noqa: UP045
To = Annotated[str, typer.Option("--to", metavar="NEW", help="Name that it has in the code now.")]


def register(state: typer.Typer) -> None:
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
    as_json: AsJson = False,
) -> None:
    """Delete the state of an operator that the pipeline no longer has. A dry run, unless --apply is given.

    Deletes all its rows: state, timers, histories, waiting elements, held records. Its rows in the quarantine stay: they
    are input. It never deletes state of an operator that the pipeline still has. The deletion is one checkpoint;
    'headrace restore' undoes it.

    Example:  headrace state drop flights --operator totals

    Example:  headrace state drop flights --operator totals --apply --why "not needed any more"

    Exit codes: 0; 2 for an unknown job or operator, one that the pipeline has, or no reason; 3 while a run holds the job; 8
    storage; 10 job and sink disagree.
    """
    _without_pandas()
    from headrace.commit.operator_drop import drop_operator, droppable

    config = load(job)
    if apply:
        checkpoint = drop_operator(config, operator, reason(why), run_id or new_run_id())
        one, several = f"row of operator '{operator}' was", f"rows of operator '{operator}' were"
        text = f"{counted(checkpoint.metrics['rows_dropped'], one, several)} dropped: checkpoint {checkpoint.checkpoint_id}."
        _show_done(config, checkpoint, text, as_json=as_json)
        return
    stored = droppable(config, operator)
    if not as_json:
        show_rows(stored.state_rows, "rows to drop")
    _show_planned(config, stored, _aside(stored), as_json=as_json)


def rename(
    job: Job = None,
    *,
    operator: RenamedOperator = None,
    sink: RenamedSink = None,
    to: To,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Move the state of an operator, or the table of a sink, to its new name. A dry run, unless --apply is given.

    Rename the operator in the pipeline first, a sink also in the job's file. States and keys must fit, and the new name must have
    no state yet. The move is one checkpoint; 'headrace restore' undoes that of an operator. The table of a sink keeps its rows.

    Example:  headrace state rename flights --operator totals --to totals_by_day --apply

    Example:  headrace state rename flights --sink board --to flight_board --apply

    Exit codes: 0; 2 for an unknown job, operator or sink, names that do not match the pipeline, or a new name with state; 3 while
    a run holds the job; 6 the state does not fit the operator; 8 storage; 10 job and sink disagree.
    """
    _without_pandas()
    from headrace.commit.operator_rename import renamable, rename_operator
    from headrace.errors import ConfigError

    config = load(job)
    if (operator is None) == (sink is None):
        msg = "name what has a new name: --operator NAME, or --sink NAME. Nothing was changed."
        raise ConfigError(msg)
    if operator is None:
        _rename_sink(config, str(sink), to, apply=apply, why=why, run_id=run_id or new_run_id(), as_json=as_json)
        return
    if apply:
        checkpoint = rename_operator(config, operator, to, run_id or new_run_id(), why=why)
        one, several = f"row of operator '{operator}' is", f"rows of operator '{operator}' are"
        text = f"{counted(checkpoint.metrics['rows_moved'], one, several)} of '{to}' now: checkpoint {checkpoint.checkpoint_id}."
        _show_done(config, checkpoint, text, as_json=as_json)
        return
    stored = renamable(config, operator, to)
    if not as_json:
        show_rows(stored.rows, f"rows to move to '{to}'")
    _show_planned(config, stored, "", as_json=as_json)


def _rename_sink(
    config: JobConfig, sink: str, to: str, *, apply: bool, why: str | None, run_id: str, as_json: bool
) -> None:
    from headrace.cli._output import print_json, show
    from headrace.commit.sink_owners import renamable_sink, rename_sink

    plain: dict[str, Any] = {"job": config.job, "sink": sink, "to": to, "applied": apply}
    if apply:
        checkpoint = rename_sink(config, sink, to, run_id, why)
        text = f"{config.job}: the table of sink '{sink}' is that of '{to}' now: checkpoint {checkpoint.checkpoint_id}."
        plain |= {"checkpoint": checkpoint.checkpoint_id, "note": checkpoint.note}
    else:
        uri = renamable_sink(config, sink, to).sinks[sink].path
        text = f"{config.job}: the table of sink '{sink}' at {uri} would become that of '{to}', with its rows. {NOT_CHANGED}"
        plain |= {"checkpoint": None}
    if as_json:
        print_json(plain)
    else:
        show(text)


def _without_pandas() -> None:
    from headrace.tables.late_pandas import without_pandas

    without_pandas()


def _aside(stored: StoredOperator) -> str:
    if not stored.set_aside:
        return ""
    return f"What it has in the quarantine stays ({counted(stored.set_aside, 'row')}): it is input that was set aside. "


def _show_planned(config: JobConfig, stored: StoredOperator, text: str, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show

    if as_json:
        print_json(
            {
                "job": config.job,
                "operator": stored.name,
                "applied": False,
                "rows": stored.rows,
                "states": stored.states,
                "checkpoint": None,
            }
        )
        return
    states = f" State(s): {', '.join(stored.states)}." if stored.states else ""
    rows = sum(stored.state_rows.values())
    show(f"{config.job}: operator '{stored.name}' has {counted(rows, 'row')} of state.{states}", f"{text}{NOT_CHANGED}")


def _show_done(config: JobConfig, checkpoint: Checkpoint, text: str, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show

    if as_json:
        plain = {
            "job": config.job,
            "applied": True,
            "metrics": checkpoint.metrics,
            "checkpoint": checkpoint.checkpoint_id,
        }
        print_json({**plain, "note": checkpoint.note})
        return
    before = checkpoint.checkpoint_id - 1
    show(f"{config.job}: {text}", f"To undo: headrace restore {config.job} --to {before} --why ...")
