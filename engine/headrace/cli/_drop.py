"""`headrace drop`: delete a job with all that it has stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli._apply import NOT_CHANGED, Apply, ApplyWhy, reason
from headrace.cli._arguments import AsJson, load, new_run_id
from headrace.cli._change import RunId
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.job_drop import JobToDrop, SinkToDrop
    from headrace.config import JobConfig

NamedJob = Annotated[str, typer.Argument(metavar="JOB", help="Job; required here.", show_default=False)]
Sinks = Annotated[bool, typer.Option("--sinks", help="Also delete the tables of its sinks.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drop")(drop)


def drop(
    job: NamedJob,
    *,
    sinks: Sinks = False,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    as_json: AsJson = False,
) -> None:
    """Delete a job's folder: its state, its checkpoints, its savepoints. A dry run, unless --apply is given.

    Nothing undoes it. The tables of its sinks stay, unless --sinks is given; the job's file and its pipeline always stay. After an
    interruption, no run and no command opens the job any more; call it again to finish.

    Example:  headrace drop flights

    Example:  headrace drop flights --apply --why "replaced by flights_by_day"

    Exit codes: 0; 2 for an unknown job, one without stored data, or no reason; 3 while a run holds the job; 8 storage; 10 a sink is
    not the job's alone.
    """
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.commit.job_drop import drop_job, droppable_job

    config = load(job, checked=False)
    if apply:
        marker = drop_job(config, reason(why), run_id or new_run_id(), sinks=sinks)
        _show_done(config, marker.sinks, as_json=as_json)
        return
    _show_planned(config, droppable_job(config), sinks=sinks, as_json=as_json)


def _show_planned(config: JobConfig, job_to_drop: JobToDrop, *, sinks: bool, as_json: bool) -> None:
    from headrace.cli._output import print_json, show, table

    if as_json:
        print_json(
            {
                "job": config.job,
                "applied": False,
                "folder": job_to_drop.folder,
                "parts": {name: usage._asdict() for name, usage in job_to_drop.parts.items()},
                "sinks": [_plain(sink, deleted=sinks) for sink in job_to_drop.sinks],
                "is_half_dropped": job_to_drop.marker is not None,
            }
        )
        return
    if job_to_drop.marker is not None:
        show(f"An earlier drop was interrupted ({job_to_drop.marker.why}): --apply finishes it.")
    show(f"folder {job_to_drop.folder}")
    show(table(("holds", "files", "bytes"), [(name, *usage) for name, usage in sorted(job_to_drop.parts.items())]))
    for sink in job_to_drop.sinks:
        fate = "stays" if not sinks else sink.refusal or "would be deleted"
        show(
            f"sink '{sink.name}' at {sink.uri}, {counted(sink.usage.files, 'file')}, {counted(sink.usage.size, 'byte')}: {fate}"
        )
    show(f"\n{config.job}: a restore cannot undo this. {NOT_CHANGED}")


def _plain(sink: SinkToDrop, *, deleted: bool) -> dict[str, object]:
    return {
        "name": sink.name,
        "uri": sink.uri,
        **sink.usage._asdict(),
        "published": sink.published,
        "deleted": deleted and sink.refusal is None,
        "refusal": sink.refusal,
    }


def _show_done(config: JobConfig, sinks: dict[str, str], *, as_json: bool) -> None:
    from headrace.cli._output import print_json, show

    kept = {name: sink.path for name, sink in config.sinks.items() if name not in sinks}
    if as_json:
        print_json({"job": config.job, "applied": True, "folder": config.job_folder, "deleted": sinks, "kept": kept})
        return
    show(f"{config.job}: {config.job_folder} is deleted.")
    for name, uri in sinks.items():
        show(f"sink '{name}' at {uri} is deleted.")
    for name, uri in kept.items():
        show(f"sink '{name}' at {uri} stays: a new job of this name must be given another path.")
    show(f"The job's file stays: {config.file}")
