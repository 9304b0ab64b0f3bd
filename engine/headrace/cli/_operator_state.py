"""`headrace state drop` and `rename`: what is stored of an operator that the code does not have any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._apply import NOT_CHANGED, Apply, ApplyWhy, reason, show_rows
from headrace.cli._arguments import AsJson, Job, load, new_run_id
from headrace.cli._change import RunId

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.commit.stored_operator import StoredOperator
    from headrace.config import JobConfig

Operator = Annotated[str, typer.Option("--operator", help="The operator, by the name that its state has.")]
To = Annotated[str, typer.Option("--to", metavar="NEW", help="The name that the operator has in the code now.")]


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
    """Delete the state of an operator that the pipeline does not have any more. A dry run, unless --apply is given.

    All its rows go: state, timers, histories, elements that wait for it, records that it holds. Its rows in the quarantine
    stay: they are input. The state of an operator that the pipeline still has is never dropped. It is one checkpoint, and
    'headrace restore' takes it back.

    Example:  headrace state drop flights --operator totals
              headrace state drop flights --operator totals --apply --why "not needed any more"

    Exit codes: 0; 2 for an unknown job or operator, one that the pipeline has, or no reason; 3 while a run holds the job; 8
    storage; 10 job and sink disagree.
    """
    _without_pandas()
    from headrace.commit.operator_drop import drop_operator, droppable

    config = load(job)
    if apply:
        made = drop_operator(config, operator, reason(why), run_id or new_run_id())
        text = f"{made.metrics['rows_dropped']:,} rows of operator '{operator}' were dropped: checkpoint {made.checkpoint_id}."
        _show_done(config, made, text, as_json=as_json)
        return
    stored = droppable(config, operator)
    if not as_json:
        show_rows(stored.state_rows, "rows to drop")
    _show_planned(config, stored, _aside(stored), as_json=as_json)


def rename(
    job: Job = None,
    *,
    operator: Operator,
    to: To,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Move the state of an operator to the name that it has in the pipeline now. A dry run, unless --apply is given.

    Rename the operator in the pipeline first. States and keys must fit, and the new name must have no state yet. It is one
    checkpoint, and 'headrace restore' takes it back.

    Example:  headrace state rename flights --operator totals --to totals_by_day --apply

    Exit codes: 0; 2 for an unknown job or operator, names that the pipeline does not bear out, or a new name with state; 3 while
    a run holds the job; 6 the state does not fit the operator; 8 storage; 10 job and sink disagree.
    """
    _without_pandas()
    from headrace.commit.operator_rename import renamable, rename_operator

    config = load(job)
    if apply:
        made = rename_operator(config, operator, to, run_id or new_run_id(), why=why)
        text = f"{made.metrics['rows_moved']:,} rows of operator '{operator}' are of '{to}' now: checkpoint {made.checkpoint_id}."
        _show_done(config, made, text, as_json=as_json)
        return
    stored = renamable(config, operator, to)
    if not as_json:
        show_rows(stored.rows, f"rows to move to '{to}'")
    _show_planned(config, stored, "", as_json=as_json)


def _without_pandas() -> None:
    from headrace.tables.late_pandas import without_pandas

    without_pandas()


def _aside(stored: StoredOperator) -> str:
    if not stored.set_aside:
        return ""
    return f"Its {stored.set_aside:,} rows in the quarantine stay: they are input that was set aside. "


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
    show(f"{config.job}: operator '{stored.name}' has {rows:,} rows of state.{states}", f"{text}{NOT_CHANGED}")


def _show_done(config: JobConfig, made: Checkpoint, text: str, *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show

    if as_json:
        plain = {"job": config.job, "applied": True, "metrics": made.metrics, "checkpoint": made.checkpoint_id}
        print_json({**plain, "note": made.note})
        return
    before = made.checkpoint_id - 1
    show(f"{config.job}: {text}", f"To undo: headrace restore {config.job} --to {before} --why ...")
