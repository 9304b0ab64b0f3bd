"""`headrace top`: what runs do now, again and again."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli.arguments import Branch, Job, load
from headrace.cli.output import bytes_text, span_text
from headrace.errors import HeadraceError
from headrace.report import Report, Table, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.progress import BatchProgress

_COLUMNS = {
    "job": "job",
    "checkpoint": "at",
    "held_by": "run",
    "operator": "works at",
    "rows": "rows",
    "of": "of",
    "rate": "rows/s",
    "in_flight": "in flight",
    "waiting": "waiting",
    "breaker": "breaker",
    "lag": "lag",
    "state": "state",
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("top")(top)


def top(
    job: Job = None,
    *,
    every: Annotated[str, typer.Option("--every", metavar="SPAN", help="Time between two looks, such as 5s.")] = "2s",
    times: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--times", metavar="N", min=1, help="Number of looks; without it, until Ctrl-C."),
    ] = None,
    branch: Branch = None,
) -> Report:
    """Show what each job's run does now, in this or another process: operator, rows, rates, calls, what waits, open breakers, lag, state.

    On a terminal, each look takes the place of the one before; elsewhere, each is a table below the last one. `waiting` counts elements that
    wait for a service, `lag` is how far the watermark is behind now (ms in JSON), and `state` the size of the state tables' files (bytes).

    Example:  headrace top

    Example:  headrace top flights --every 10s --times 6

    Exit codes: 0; 2 for an unknown job or a wrong span; 8 when a job's tables cannot be read; 130 after Ctrl-C.
    """
    from headrace import clock
    from headrace.cli.output import print_text
    from headrace.config import known_jobs, parse_duration
    from headrace.errors import ConfigError

    try:
        seconds = parse_duration(every).total_seconds()
    except ValueError as error:
        msg = f"--every: {error}"
        raise ConfigError(msg) from error
    configs = [load(job, branch=branch)] if job or branch else [load(name) for name in known_jobs()]
    looks: dict[str, Look] = {}
    left = times
    while True:
        looks = {config.job: look(config, looks.get(config.job)) for config in configs}
        report = _report(looks)
        left = None if left is None else left - 1
        if left == 0:
            return report
        if sys.stdout.isatty():
            print("\033[H\033[2J", end="")
        print_text(report)
        sys.stdout.flush()
        clock.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Look:
    """Facts about a job at one time (s, of a clock that only runs forward)."""

    at: float
    row: dict[str, Any]
    work: tuple[str, int, str] | None = None
    """Run, checkpoint and operator whose rows are counted."""


def look(config: JobConfig, before: Look | None) -> Look:
    """Look at a job. The rate is that since the look `before`, at the same operator of the same micro-batch; else the micro-batch's before, while a run holds the job."""
    from headrace import clock

    at = clock.monotonic()
    try:
        return _looked(config, before, at)
    except HeadraceError as error:
        return Look(at, {**dict.fromkeys(_COLUMNS), "job": config.job, "operator": f"ERROR: {error}"})


def _looked(config: JobConfig, before: Look | None, at: float) -> Look:
    from headrace import clock
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    log = CheckpointLog(JobFolder.of(config))
    last, held = log.last, log.lease
    runs = held is not None and held.left(clock.now()) > 0
    progress = _progress(config, held.attempt_id) if held is not None and runs else None
    work = None if progress is None or held is None else (held.run_id, progress.checkpoint_id, progress.operator)
    row = {
        "job": config.job,
        "checkpoint": None if last is None else last.checkpoint_id,
        "held_by": held.run_id if held is not None and runs else None,
        **_work_row(progress, None if last is None else last.work.pending),
        "rate": _rate(progress, work, before, at) if progress is not None else _last_rate(log) if runs else None,
        "breaker": next((own.breaker for own in last.services.values() if own.breaker not in {"", "closed"}), None)
        if last is not None
        else None,
        "lag": None if last is None or last.watermark is None else max(0, clock.now() - last.watermark),
        "state": None if last is None else JobFolder.of(config).size_of_tables(last.versions),
    }
    return Look(at, row, work)


def _work_row(progress: BatchProgress | None, pending: int | None) -> dict[str, Any]:
    if progress is None:
        return {"operator": None, "rows": None, "of": None, "in_flight": None, "waiting": pending or None}
    return {name: getattr(progress, name) for name in ("operator", "rows", "of", "in_flight", "waiting")}


def _progress(config: JobConfig, attempt_id: str) -> BatchProgress | None:
    from headrace.log.progress import ProgressFiles
    from headrace.tables.folder import JobFolder

    return ProgressFiles(JobFolder.of(config), attempt_id).read()


def _rate(progress: BatchProgress, work: Any, before: Look | None, at: float) -> int | None:
    if before is None or before.work != work or at <= before.at:
        return None
    return round((progress.rows - (before.row["rows"] or 0)) / (at - before.at))


def _last_rate(log: Any) -> int | None:
    """Return the rows per second of the last micro-batch; None without one."""
    from headrace.log.checkpoint import Kind

    batch = log.lineage.last_of(Kind.BATCH)
    seconds = 0.0 if batch is None else sum(batch.seconds.values())
    return round(batch.metrics.get("rows_in", 0) / seconds) if batch is not None and seconds else None


def _text(name: str, value: Any) -> Any:
    if value is None:
        return None
    return span_text(value) if name == "lag" else bytes_text(value) if name == "state" else value


def _report(looks: dict[str, Look]) -> Report:
    from headrace import clock

    rows = [own.row for own in looks.values()]
    shown = [name for name in _COLUMNS if name == "job" or any(row[name] is not None for row in rows)]
    texts = [[_text(name, row[name]) for name in shown] for row in rows]
    now = Time(clock.now())
    return Report(
        *facts(at=now),
        Table("jobs", (), rows),
        Table.shown([_COLUMNS[name] for name in shown], texts),
        f"at {now}",
    )
