"""Parts of a job's page. `BLOCKS` has them in their order; each makes a section of what checkpoints and tables say.

Numbers over time are those that checkpoints record, so they are there for checkpoints whose files are gone, too; state and quarantine are
read from the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from headrace.cli.charts import Graph, Series, chart, graph
from headrace.cli.growth import Sizes, by_operator, growth
from headrace.cli.page import Markup, number, page, section, table
from headrace.cli.timeline import timeline
from headrace.names import counted
from headrace.report import Time

if TYPE_CHECKING:
    from headrace.cli.job_facts import JobFacts
    from headrace.log.checkpoint import Checkpoint
    from headrace.plan.stages import Plan
    from headrace.readers.job_at import JobAtCheckpoint

_OF_SERVICES: Final = ("calls", "failures", "retries", "parked")
_COUNTS: Final = {
    "Rows": ("rows_in", "rows_out"),
    "Late rows and rows set aside": ("late", "dropped_late", "quarantined"),
    "Calls of services": _OF_SERVICES,
}


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

    lines = {name: [checkpoint.count(name) for checkpoint in batches] for name in names}
    if not any(value for line in lines.values() for value in line):
        return f"{title}: none."
    return chart(title, METRICS[names[0]].unit, Series(labels, lines))


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
    columns, facts = _columns(plan, edges), _facts_of_boxes(about, plan)
    rows = [
        (
            name,
            ", ".join(dict.fromkeys(first for first, then in edges if then == name)),
            ", ".join(dict.fromkeys(then for first, then in edges if first == name)),
            facts.get(name, ""),
        )
        for names in columns
        for name in names
    ]
    drawing = graph("From sources to sinks", Graph(columns, edges, facts))
    words = "Rows and seconds are those of the last micro-batch, entries and bytes of values those at the checkpoint."
    names = ("source, operator or sink", "fed by", "leads to", "rows, seconds, state")
    return section("Operators", words, drawing, table("Sources, operators and sinks", names, rows))


def _facts_of_boxes(about: JobFacts, plan: Plan) -> dict[str, str]:
    """Return what is known of sources, operators and sinks, by the names of their boxes."""
    sizes = _known_sizes(about)
    facts = {
        name: f"{counted(entries, 'entry', 'entries')}, {number(size)} B" for name, (entries, size) in sizes.items()
    }
    if not about.batches:
        return facts
    last = about.batches[-1]
    for stage in plan.keyed:
        if stage.name in last.seconds:
            facts[stage.name] = f"{facts.get(stage.name, 'no state')}, {number(last.seconds[stage.name])} s"
    if len(plan.sources) == 1:  # of several, the checkpoint has the sum
        facts[plan.sources[0].name] = _rate(last.metrics.get("rows_in", 0), last)
    for name in plan.sinks:
        facts[f"sink {name}"] = _rate(sum(file.rows for file in last.outputs.get(name, ())), last)
    return facts


def _rate(rows: int, batch: Checkpoint) -> str:
    seconds = sum(batch.seconds.values())
    return f"{counted(rows, 'row')}, {number(round(rows / seconds))}/s" if rows and seconds else counted(rows, "row")


def _known_sizes(about: JobFacts) -> Sizes:
    """Return the state at the checkpoint; none where its files are gone, which the part on state says."""
    from headrace.errors import HeadraceError

    try:
        states, _ = about.states
    except HeadraceError:
        return {}
    return by_operator(states)


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
    """Return what is stored at the checkpoint, how much it was at earlier ones, and the longest histories."""
    from headrace.readers.state import largest_histories, largest_keys

    def stored(job: JobAtCheckpoint) -> list[Markup | str]:
        states, seconds = about.states
        shown = ("operator", "state", "kind", "entries", "keys", "bytes", "last_change", "type")
        rows = [[row[name] if name != "last_change" else str(row[name]) for name in shown] for row in states]
        headings = [name.replace("_", " ") for name in shown]
        longest = [
            (row["operator"], row["key"], row["rows"], row["bytes"]) for row in largest_histories(job, limit=10).dicts()
        ]
        largest = [[*row.values()] for row in largest_keys(job, limit=10).dicts()]
        return [
            table("Live entries by operator and state", headings, rows),
            *growth(about, job, seconds),
            *([table("Largest keys", ("operator", "state", "key", "entries", "bytes"), largest)] if largest else []),
            *([table("Longest histories", ("operator", "key", "rows", "bytes"), longest)] if longest else []),
        ]

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

    try:
        return read(about.job)
    except HeadraceError as error:
        return [f"It cannot be read any more: {error}"]


BLOCKS: Final[tuple[Callable[[JobFacts], Markup | None], ...]] = (
    _summary,
    _graph,
    timeline,
    _micro_batches,
    _services,
    _state,
    _quarantine,
)
"""Parts of the page, in their order. One that has nothing to tell returns None."""
