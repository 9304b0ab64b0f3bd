"""`headrace report`: a page about a job, in one file.

Its numbers over time are those that checkpoints record, so it says as much about checkpoints whose files are gone; state and quarantine are
those at one checkpoint. `BLOCKS` has the parts of the page in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Optional

import typer

from headrace.cli.arguments import AsOf, At, Branch, Job, load, parsed_milliseconds
from headrace.cli.page import Graph, Markup, Series, chart, graph, page, section, table
from headrace.names import counted
from headrace.report import Report, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint
    from headrace.plan.stages import Plan
    from headrace.readers.job_at import JobAtCheckpoint

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
        typer.Option(
            "--out", metavar="FILE", help="File to write; JOB.html, or jobs.html, in this folder if left out."
        ),
    ] = None,
) -> Report:
    """Write a page about a job to an HTML file: operators, checkpoints, rows, seconds, lag, calls, state, quarantine.

    The file needs no network, and has a table for each chart. An older file of that name is replaced. Without JOB, where there are
    several, the page is about all of them, the worst first: jobs.html.

    Example:  headrace report flights --out flights.html

    Example:  headrace report

    Exit codes: 0; 2 for an unknown job, a job that never ran, or a file that cannot be written; 8 when a job's tables cannot be read.
    """
    from headrace.config import known_jobs
    from headrace.errors import ConfigError

    names = known_jobs() if job is None and branch is None else []
    if len(names) > 1:
        if at is not None or as_of is not None or since is not None:
            msg = "--at, --as-of and --since choose checkpoints of one job: name it"
            raise ConfigError(msg)
        return _written(out or Path("jobs.html"), page("Jobs", _jobs(names)))
    about = _facts(load(job, branch=branch), at, as_of, None if since is None else parsed_milliseconds(since))
    return _written(
        out or Path(f"{about.config.job}.html"),
        html(about),
        checkpoint=about.checkpoint.checkpoint_id,
        checkpoints=len(about.all),
    )


def _written(file: Path, text: str, **known: int) -> Report:
    """Write a page, and return the report on it. The file is there as a whole or as it was."""
    from headrace import clock
    from headrace.errors import ConfigError

    content = text.encode(errors="backslashreplace")
    beside = file.with_name(f".{file.name}.{clock.unique_id()[:12]}")
    try:
        beside.write_bytes(content)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        msg = f"cannot write '{file}': {error.strerror}"
        raise ConfigError(msg) from error
    return Report(*facts(file=str(file), bytes=len(content), **known), f"{file}: {counted(len(content), 'byte')}")


def _jobs(names: Sequence[str]) -> Markup:
    """Return a table of all jobs, the worst first: those that cannot be read, that never ran, then those furthest behind."""
    rows = sorted((_job_row(name) for name in names), key=lambda row: (row[1] is None, -(row[4] or 0), row[0]))
    headings = ("job", "problem", "checkpoint", "committed (UTC)", "hours behind", "set aside", "waiting for services")
    return section("All jobs, the worst first", table("The last checkpoint of each job", headings, rows))


def _job_row(name: str) -> tuple[Any, ...]:
    from headrace import clock
    from headrace.errors import HeadraceError
    from headrace.log.checkpoint import Kind
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    try:
        log = CheckpointLog(JobFolder.of(load(name)))
        last, batch = log.last, log.lineage.last_of(Kind.BATCH)
    except HeadraceError as error:
        return (name, str(error), None, None, None, None, None)
    if last is None:
        return (name, "it never ran", None, None, None, None, None)
    behind = None if last.watermark is None else round((clock.now() - last.watermark) / 3_600_000, 1)
    aside = None if batch is None else batch.metrics.get("quarantined")
    return (name, None, str(last.checkpoint_id), Time(last.committed_at), behind, aside, last.work.pending)


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


def html(about: JobFacts) -> str:
    """Return the page."""
    branch = "" if about.config.branch is None else f", branch {about.config.branch}"
    return page(f"Job {about.config.job}{branch}", *(block(about) for block in BLOCKS))


def _summary(about: JobFacts) -> Markup:
    last = about.checkpoint
    rows = [
        ("checkpoint", str(last.checkpoint_id)),
        ("kind", last.kind.value),
        ("committed (UTC)", Time(last.committed_at)),
        ("watermark (UTC)", Time(last.watermark)),
        ("run", last.run_id),
        ("checkpoints shown", len(about.all)),
        ("elements that wait for services", last.work.pending),
    ]
    return section("Where the job is", table("The checkpoint that this page is about", ("fact", "value"), rows))


def _timeline(about: JobFacts) -> Markup:
    """Return the checkpoints that are no micro-batches, newest first, and the number of all by kind."""
    kinds = [checkpoint.kind.value for checkpoint in about.all]
    counts = [(kind, kinds.count(kind)) for kind in dict.fromkeys(kinds)]
    live = {checkpoint.checkpoint_id for checkpoint in about.live}
    events = [checkpoint for checkpoint in reversed(about.all) if checkpoint.kind.value != "batch"]
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


def _micro_batches(about: JobFacts) -> Markup:
    batches = about.batches
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


def _graph(about: JobFacts) -> Markup | None:
    """Return the operators: what feeds them, and where they lead. None where the job's code cannot be read here."""
    from headrace.errors import HeadraceError
    from headrace.plan.loader import plan_of

    try:
        plan = plan_of(about.config.code)
    except HeadraceError as error:
        return section("Operators", f"The job's code cannot be read here: {error}")
    edges = [*_edges(plan)]
    rows = [
        (
            stage.name,
            type(stage.operator).__name__,
            ", ".join(dict.fromkeys(first for first, then in edges if then == stage.name)),
            ", ".join(dict.fromkeys(then for first, then in edges if first == stage.name)),
        )
        for stage in plan.keyed
    ]
    names = ("operator", "kind", "fed by", "leads to")
    drawing = graph("From sources to sinks", Graph(_columns(plan, edges), edges))
    return section("Operators", drawing, table("Operators with a key", names, rows))


def _edges(plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield the pairs of sources, keyed operators and sinks between which rows flow. A sink has a word before its name, which another may have."""
    from headrace.plan.stages import ToSink, ToStage, walk

    flows = [(stage.name, stage.flow) for stage in plan.source_stages]
    flows += [(stage.name, flow) for stage in plan.keyed for flow in stage.flows.values()]
    for name, flow in flows:
        for use in walk(flow):
            if isinstance(use.to, ToStage):
                yield name, use.to.stage
            elif isinstance(use.to, ToSink):
                yield name, f"sink {use.to.sink}"


def _columns(plan: Plan, edges: Sequence[tuple[str, str]]) -> list[list[str]]:
    """Return the names by their distance from the sources; sinks stand at the end."""
    depths = {source.name: 0 for source in plan.sources}
    for stage in plan.keyed:  # by rank: what feeds it stands before it
        depths[stage.name] = 1 + max((depths.get(first, 0) for first, then in edges if then == stage.name), default=0)
    columns = [
        [name for name, own in depths.items() if own == depth] for depth in range(max(depths.values(), default=0) + 1)
    ]
    return [*columns, [*dict.fromkeys(then for _, then in edges if then.startswith("sink "))]]


def _services(about: JobFacts) -> Markup | None:
    """Return what the last micro-batch measured of each service; None without one."""
    last = next((checkpoint for checkpoint in reversed(about.batches) if checkpoint.services), None)
    if last is None:
        return None
    rows = [
        (
            name,
            own.calls,
            own.failures,
            own.retries,
            own.timeouts,
            own.parked,
            own.p50_ms,
            own.p99_ms,
            own.breaker or None,
        )
        for name, own in last.services.items()
    ]
    names = ("operator", "calls", "failures", "retries", "timeouts", "parked", "median ms", "p99 ms", "breaker")
    return section("Services", table(f"What checkpoint {last.checkpoint_id} measured", names, rows))


def _state(about: JobFacts) -> Markup:
    """Return what is stored at the checkpoint, and the longest histories."""
    from headrace.readers.state import largest_histories, list_states

    def stored(job: JobAtCheckpoint) -> list[Markup]:
        states = list_states(job).dicts()
        shown = ("operator", "state", "kind", "entries", "keys", "bytes", "last_change", "type")
        rows = [[row[name] if name != "last_change" else str(row[name]) for name in shown] for row in states]
        headings = [name.replace("_", " ") for name in shown]
        longest = [
            (row["operator"], row["key"], row["rows"], row["bytes"]) for row in largest_histories(job, limit=10).dicts()
        ]
        parts = [table("Live entries by operator and state", headings, rows)]
        return [*parts, table("Longest histories", ("operator", "key", "rows", "bytes"), longest)] if longest else parts

    return section("State", *_at_checkpoint(about, stored))


_SAMPLES: Final = 3
_MOST_REASONS: Final = 20


def _quarantine(about: JobFacts) -> Markup:
    """Return what was set aside, by source or operator and reason, with samples."""
    from headrace.readers.sql import ask_sql

    query = (
        f"SELECT operator, error, count(*) AS rows, list(position ORDER BY position)[1:{_SAMPLES}] AS places, "  # noqa: S608 - our own numbers
        f"list(raw ORDER BY position)[1:{_SAMPLES}] AS raws FROM quarantine GROUP BY ALL ORDER BY rows DESC, operator, error LIMIT {_MOST_REASONS}"
    )

    def aside(job: JobAtCheckpoint) -> list[Markup | str]:
        reasons = ask_sql(job, query).dicts()
        rows = [
            (
                row["operator"],
                row["rows"],
                row["error"],
                ", ".join(row["places"]),
                " | ".join(raw for raw in row["raws"] if raw),
            )
            for row in reasons
        ]
        names = ("operator or source", "rows", "reason", "places", "samples")
        return [table("Rows set aside, by reason", names, rows)] if rows else ["Nothing is set aside."]

    return section("Quarantine", *_at_checkpoint(about, aside))


def _at_checkpoint(
    about: JobFacts, read: Callable[[JobAtCheckpoint], Sequence[Markup | str]]
) -> Sequence[Markup | str]:
    """Return what is read of the tables at the checkpoint, or a sentence where their files are gone."""
    from headrace.errors import HeadraceError
    from headrace.readers.job_at import JobAtCheckpoint

    try:
        return read(JobAtCheckpoint(about.config, about.checkpoint.checkpoint_id))
    except HeadraceError as error:
        return [f"It cannot be read any more: {error}"]


BLOCKS: Final[tuple[Callable[[JobFacts], Markup | None], ...]] = (
    _summary,
    _graph,
    _timeline,
    _micro_batches,
    _services,
    _state,
    _quarantine,
)
"""Parts of the page, in their order. One that has nothing to tell returns None."""
