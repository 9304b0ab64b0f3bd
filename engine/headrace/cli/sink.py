"""`headrace sink ...`: change which job a sink's table belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.arguments import NOT_CHANGED, Apply, ApplyWhy, NamedJob, RunId, load, new_run_id, reason
from headrace.names import counted
from headrace.report import Report, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.edits.sink_owners import OtherOwner
    from headrace.log.checkpoint import Checkpoint


Sink = Annotated[str, typer.Argument(metavar="SINK", help="Sink of the job.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    sink = typer.Typer(
        help="Change which job the table of a sink belongs to.", no_args_is_help=True, rich_markup_mode=None
    )
    sink.callback()(_sink)
    sink.command("take-over")(take_over)
    app.add_typer(sink, name="sink")


def _sink() -> None:
    """Have Typer keep the name of the only command."""


def take_over(
    job: NamedJob,
    sink: Sink,
    *,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
) -> Report:
    """Make a table of another job that of a sink. It begins empty. A dry run, unless --apply is given.

    The rows of the former owner stay in the table's history until a VACUUM, and that job is refused from then on. A job that has
    published to the sink before goes back by 'headrace reconcile' afterwards, and fills the table again.

    Example:  headrace sink take-over flights flight_board

    Example:  headrace sink take-over flights flight_board --apply --why "flights_old is dropped"

    Exit codes: 0; 2 for an unknown job or sink, a table that is nobody else's, or no reason; 3 while a run holds the job; 8 storage;
    10 the job disagrees with another sink.
    """
    from headrace.edits.sink_owners import other_owner
    from headrace.edits.sink_owners import take_over as take_over_sink

    config = load(job)
    if apply:
        return _done(config, sink, take_over_sink(config, sink, reason(why), run_id or new_run_id()))
    return _planned(config, other_owner(config, sink))


def _planned(config: JobConfig, table: OtherOwner) -> Report:
    files = f"{counted(table.usage.files, 'file')}, {counted(table.usage.size, 'byte')}"
    return Report(
        *facts(job=config.job, sink=table.sink, applied=False, uri=table.uri, **table.usage._asdict()),
        *facts(owner=table.owner, checkpoint=None),
        f"sink '{table.sink}' at {table.uri}, {files}: {table.owner}",
        f"It would become the table of job '{config.job}', and begin empty. {NOT_CHANGED}",
    )


def _done(config: JobConfig, sink: str, checkpoint: Checkpoint) -> Report:
    uri, checkpoint_id = config.sinks[sink].path, checkpoint.checkpoint_id
    return Report(
        *facts(job=config.job, sink=sink, applied=True, uri=uri, checkpoint=checkpoint_id, note=checkpoint.note),
        f"{config.job}: sink '{sink}' has the table {uri} now, without rows: checkpoint {checkpoint_id}.",
        f"If the job has published to the sink before:  headrace reconcile {config.job}",
    )
