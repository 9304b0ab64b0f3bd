"""`headrace status` and `headrace checkpoints`: where jobs stand, and how they got there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from engine.cli._arguments import AsJson, Job, Limit, load

if TYPE_CHECKING:
    from engine.checkpoint.checkpoint import Checkpoint


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("checkpoints")(checkpoints)


def status(job: Job = None, as_json: AsJson = False) -> None:
    """Say where each job stands, or only JOB.

    Last checkpoint, watermark, what it took in, and which run holds the job at present.

    Example:  headrace status

    Exit codes: 0; 2 for an unknown job or a wrong file.
    """
    from engine.cli._output import print_json, show, table
    from engine.config import list_jobs

    found = [_status(name) for name in ([job] if job else list_jobs())]
    if as_json:
        print_json({"jobs": found})
        return
    columns = ("job", "at", "kind", "committed", "watermark", "rows in", "set aside", "held by")
    keys = ("job", "checkpoint", "kind", "committed", "watermark", "rows_in", "quarantined", "held_by")
    show(table(columns, [[row[key] for key in keys] for row in found]))


def _status(name: str) -> dict[str, Any]:
    from engine import clock
    from engine.checkpoint._log import CheckpointLog
    from engine.cli._arrow import without_pandas
    from engine.cli._output import at_time

    without_pandas()
    config = load(name)
    log = CheckpointLog(config.job_folder, config.storage_options)
    last, held = log.last, log.lease
    holder = held if held and held.expires_at > clock.now() else None
    return {
        "job": config.job,
        "checkpoint": last.checkpoint_id if last else None,
        "kind": last.kind.value if last else "never run",
        "committed": at_time(last.committed_at) if last else None,
        "watermark": at_time(last.watermark) if last else None,
        "rows_in": last.metrics.get("rows_in") if last else None,
        "quarantined": last.metrics.get("quarantined") if last else None,
        "checkpoints": len(log.checkpoints),
        "held_by": holder.run_id if holder else None,
        "held_until": at_time(holder.expires_at) if holder else None,
    }


def checkpoints(job: Job = None, limit: Limit = 20, as_json: AsJson = False) -> None:
    """List the checkpoints, newest first.

    Any of them can be given to --at and, within the retention, to `headrace restore`.

    Example:  headrace checkpoints flights -n 5

    Exit codes: 0; 2 for an unknown job.
    """
    from engine.checkpoint._log import CheckpointLog
    from engine.cli._arrow import without_pandas
    from engine.cli._output import print_json, show, table

    without_pandas()
    config = load(job)
    log = CheckpointLog(config.job_folder, config.storage_options)
    found = [_checkpoint(each) for each in reversed(log.checkpoints[-limit:])]
    if as_json:
        print_json({"job": config.job, "total": len(log.checkpoints), "checkpoints": found})
        return
    columns = ("id", "kind", "committed", "watermark", "rows in", "run", "note")
    rows = [
        (c["checkpoint_id"], _kind(c), c["committed_at"], c["watermark"], c["rows_in"], c["run_id"], c["note"])
        for c in found
    ]
    show(table(columns, rows))


def _kind(checkpoint: dict[str, Any]) -> str:
    if checkpoint["name"]:
        return f"{checkpoint['kind']} {checkpoint['name']}"
    if checkpoint["restored_from"] is not None:
        return f"{checkpoint['kind']} to {checkpoint['restored_from']}"
    return str(checkpoint["kind"])


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    import msgspec

    from engine.cli._output import at_time

    plain: dict[str, Any] = msgspec.to_builtins(checkpoint)
    for name in ("interval_start", "interval_end", "watermark", "committed_at"):
        plain[name] = at_time(plain[name])
    # What lies on the workers' disks is nobody's business but the engine's.
    del plain["local_copies"]
    return {**plain, "rows_in": checkpoint.metrics.get("rows_in")}
