"""`headrace report`: a page about a job, in one file.

All its numbers are those that checkpoints record, so it says as much about checkpoints whose files are gone. `BLOCKS` has the parts of
the page in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from headrace.cli.arguments import AsOf, At, Branch, Job, load, parsed_milliseconds
from headrace.cli.page import Markup, Series, chart, page, section, table
from headrace.report import Fact, Report, Time

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint

_MOST_EVENTS: Final = 200
_OF_SERVICES: Final = ("calls", "failures", "retries", "parked")
_COUNTS: Final = {
    "Rows": ("rows_in", "rows_out"),
    "Late rows and rows set aside": ("late", "dropped_late", "quarantined"),
    "Calls of services": _OF_SERVICES,
}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


@dataclass(frozen=True, slots=True)
class JobFacts:
    """Checkpoints of a job up to one (`all`), and those of them that no restore has undone (`live`)."""

    config: JobConfig
    checkpoint: Checkpoint
    all: Sequence[Checkpoint]
    live: Sequence[Checkpoint]

    @property
    def batches(self) -> list[Checkpoint]:
        """Return the micro-batches that count."""
        return [checkpoint for checkpoint in self.live if checkpoint.kind.value == "batch"]


def report(
    job: Job = None,
    at: At = None,
    as_of: AsOf = None,
    *,
    branch: Branch = None,
    since: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--since", metavar="TIME", help="Only checkpoints that were committed at or after it (UTC)."),
    ] = None,
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--out", metavar="FILE", help="File to write; JOB.html in this folder if left out."),
    ] = None,
) -> Report:
    """Write a page about a job to an HTML file: checkpoints, rows, seconds by phase, watermark lag, late rows, calls.

    The file needs no network, and has a table for each chart. An older file of that name is replaced.

    Example:  headrace report flights --out flights.html

    Exit codes: 0; 2 for an unknown job, a job that never ran, or a file that cannot be written; 8 when a job's tables cannot be read.
    """
    from headrace.errors import ConfigError

    facts = _facts(load(job, branch=branch), at, as_of, None if since is None else parsed_milliseconds(since))
    file = out or Path(f"{facts.config.job}.html")
    content = html(facts).encode(errors="backslashreplace")
    try:
        file.write_bytes(content)
    except OSError as error:
        msg = f"cannot write '{file}': {error.strerror}"
        raise ConfigError(msg) from error
    return Report(
        Fact("file", str(file), "page:"),
        Fact("bytes", len(content), "bytes:"),
        Fact("checkpoint", facts.checkpoint.checkpoint_id, "checkpoint:"),
        Fact("checkpoints", len(facts.all), "checkpoints shown:"),
    )


def _facts(config: JobConfig, at: str | None, as_of: str | None, since: int | None) -> JobFacts:
    from headrace.errors import ConfigError
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    if at is not None and as_of is not None:
        msg = "give --at (the time of a commit) or --as-of (a time by the watermark), not both"
        raise ConfigError(msg)
    log = CheckpointLog(JobFolder.of(config))
    last = log.resolve(config, at) if as_of is None else log.resolve_as_of(config, as_of)

    def wanted(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        up_to = (checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id <= last.checkpoint_id)
        return [checkpoint for checkpoint in up_to if since is None or checkpoint.committed_at >= since]

    return JobFacts(config, last, wanted(log.checkpoints), wanted(log.lineage.to(last).checkpoints))


def html(facts: JobFacts) -> str:
    """Return the page."""
    branch = "" if facts.config.branch is None else f", branch {facts.config.branch}"
    return page(f"Job {facts.config.job}{branch}", *(block(facts) for block in BLOCKS))


def _summary(facts: JobFacts) -> Markup:
    last = facts.checkpoint
    rows = [
        ("checkpoint", str(last.checkpoint_id)),
        ("kind", last.kind.value),
        ("committed (UTC)", Time(last.committed_at)),
        ("watermark (UTC)", Time(last.watermark)),
        ("run", last.run_id),
        ("checkpoints shown", len(facts.all)),
        ("elements that wait for services", last.work.pending),
    ]
    return section("Where the job is", table("The checkpoint that this page is about", ("fact", "value"), rows))


def _timeline(facts: JobFacts) -> Markup:
    """Return the checkpoints that are no micro-batches, newest first, and the number of all by kind."""
    kinds = [checkpoint.kind.value for checkpoint in facts.all]
    counts = [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]
    live = {checkpoint.checkpoint_id for checkpoint in facts.live}
    events = [checkpoint for checkpoint in reversed(facts.all) if checkpoint.kind.value != "batch"]
    cut = f"The last {_MOST_EVENTS} of {len(events)} are shown." if len(events) > _MOST_EVENTS else None
    rows = [_event(checkpoint, live) for checkpoint in events[:_MOST_EVENTS]]
    by_kind = table("Checkpoints by kind", ("kind", "checkpoints"), counts)
    title = "Restores, savepoints, edits, branches and other changes"
    shown = table(title, [*rows[0]], [[*row.values()] for row in rows]) if rows else None
    return section("Timeline", by_kind, cut, shown)


def _event(checkpoint: Checkpoint, live: set[int]) -> dict[str, Any]:
    """Return a row of the timeline, by headings."""
    return {
        "checkpoint": str(checkpoint.checkpoint_id),
        "kind": checkpoint.kind.value,
        "name": checkpoint.name,
        "committed (UTC)": Time(checkpoint.committed_at),
        "from": None if checkpoint.restored_from is None else str(checkpoint.restored_from),
        "run": checkpoint.run_id,
        "note": checkpoint.note,
        "undone": None if checkpoint.checkpoint_id in live else "by a restore",
    }


def _micro_batches(facts: JobFacts) -> Markup:
    batches = facts.batches
    if not batches:
        return section("Micro-batches", "There are none among these checkpoints.")
    labels = [str(checkpoint.checkpoint_id) for checkpoint in batches]
    phases = dict.fromkeys(phase for checkpoint in batches for phase in checkpoint.seconds)
    seconds = {phase: [checkpoint.seconds.get(phase) for checkpoint in batches] for phase in phases}
    lag = [_lag(checkpoint) for checkpoint in batches]
    return section(
        "Micro-batches",
        *(_counted(title, names, labels, batches) for title, names in _COUNTS.items()),
        chart("Seconds by phase", "seconds", Series(labels, seconds)) if seconds else None,
        chart("Watermark behind the commit", "hours", Series(labels, {"lag": lag})),
    )


def _counted(title: str, names: Sequence[str], labels: Sequence[str], batches: Sequence[Checkpoint]) -> Markup | str:
    """Return a chart of metrics, or a sentence where none was counted."""
    from headrace.metrics import METRICS

    lines = {name: [_count(checkpoint, name) for checkpoint in batches] for name in names}
    if not any(value for line in lines.values() for value in line):
        return f"{title}: none."
    return chart(title, METRICS[names[0]].unit, Series(labels, lines))


def _count(checkpoint: Checkpoint, name: str) -> float | None:
    """Return a metric of a checkpoint; metrics of services are added up over them."""
    if name in checkpoint.metrics or name not in _OF_SERVICES:
        return checkpoint.metrics.get(name)
    counts = [getattr(measured, name, None) for measured in checkpoint.services.values()]
    return sum(count for count in counts if count is not None) if any(count is not None for count in counts) else None


def _lag(checkpoint: Checkpoint) -> float | None:
    return None if checkpoint.watermark is None else (checkpoint.committed_at - checkpoint.watermark) / 3_600_000


BLOCKS: Final[tuple[Callable[[JobFacts], Markup | None], ...]] = (_summary, _timeline, _micro_batches)
"""Parts of the page, in their order. One that has nothing to tell returns None."""
