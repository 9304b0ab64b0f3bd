"""`headrace status` and `headrace checkpoints`: show the position of jobs, and list their checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.arguments import Branch, Job, Limit, load
from headrace.errors import StorageError
from headrace.names import counted
from headrace.report import Block, Drawing, Report, Table, Time, facts

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint, Lease
    from headrace.log.facts import RowTimes
    from headrace.log.log import CheckpointLog
    from headrace.log.warnings import RunWarning, WatermarkWait
    from headrace.readers.graph import LineageGraph, LineageNode
    from headrace.records.watermarks import Timeline
    from headrace.sources.position import SourceFacts


_COLUMNS = {
    "job": "job",
    "checkpoint": "at",
    "kind": "kind",
    "committed": "committed",
    "watermark": "watermark",
    "rows_in": "rows in",
    "quarantined": "set aside",
    "held_by": "held by",
}


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("status")(status)
    app.command("checkpoints")(checkpoints)


def status(job: Job = None) -> Report:
    """Show the status of each job, or of JOB only.

    Shows the last checkpoint, its watermark and input; the run that holds the job, with its progress within the micro-batch;
    metrics of the services that the job calls, and the elements that wait for them; its branches with their costs;
    warnings, such as late rows of the last run. A job with a broken file is listed with its problems.

    Example:  headrace status

    Exit codes: 0; 2 for an unknown job or a wrong file; 8 when a job's tables cannot be read.
    """
    from headrace.config import known_jobs

    names = [job] if job else known_jobs()
    rows = [_status(names[0])] if len(names) == 1 else [_status_or_error(name) for name in names]
    codes = [row["exit_code"] for row in rows if row["error"]]
    return Report(
        Table("jobs", _COLUMNS, rows),
        *(f"{row['job']}: {row['error']}" for row in rows if row["error"]),
        *(line for row in rows if not row["error"] for line in _waits(row)),
        exit_code=codes[0] if codes else 0,
    )


def _waits(row: dict[str, Any]) -> list[str]:
    from headrace.cli.branch import sentences_about
    from headrace.cli.describe import in_a_line

    lines = [] if row["progress"] is None else [f"{row['job']}: {row['progress']['described']}"]
    lines += [in_a_line(row["job"], name, measured) for name, measured in row["services"].items()]
    lines += _watermarks(row)
    lines += [line for name, source in row["sources"].items() for line in _of_source(row, name, source)]
    lines += [
        f"{row['job']}: sink '{name}' sends to {sink['detail']}"
        for name, sink in row["messages"].items()
        if sink["behind"]
    ]
    if row["waiting"]:
        due = f", the next attempt is due at {row['next_attempt']}" if row["next_attempt"].ms is not None else ""
        lines.append(
            f"{row['job']}: {counted(row['waiting'], 'element waits', 'elements wait')} for services{due} (headrace waiting {row['job']} --calls)"
        )
    lines += [f"{row['job']}: {about['message']}" for about in (*row["watermark_waits"], *row["warnings"])]
    return [*lines, *sentences_about(row["job"], row["branches"])]


def _watermarks(row: dict[str, Any]) -> list[str]:
    """Return lines on the watermark of each source, if sources that never meet have different ones."""
    watermarks = {name: source["watermark"] for name, source in row["sources"].items()}
    if len({*watermarks.values()}) < 2:  # noqa: PLR2004 - they differ
        return []
    shown = ((name, "none yet" if time.ms is None else str(time)) for name, time in watermarks.items())
    return [f"{row['job']}: watermark of source '{name}': {text}" for name, text in shown]


def _of_source(row: dict[str, Any], name: str, source: dict[str, Any]) -> list[str]:
    """Return lines on a source that is ahead of others, was idle, or has ended."""
    lines = []
    if source["unread"]:
        lines.append(
            f"{row['job']}: source '{name}' is ahead of those that it meets: rows of {', '.join(source['unread'])} wait"
        )
    if source["requeued"]:
        lines.append(_requeued_line(row["job"], name, source["requeued"]))
    if source["idle"]:
        lines.append(f"{row['job']}: source '{name}' was idle: the others did not wait for it")
    if source["passed_over"]:
        lines.append(f"{row['job']}: source '{name}' passed over {_passed_text(source['passed_over'])}")
    if source["ended"]:
        lines.append(f"{row['job']}: the end of the input of source '{name}' was declared")
    return lines


def _passed_text(passed: list[dict[str, Any]]) -> str:
    """Return the versions of a table that were passed over as text."""
    from headrace.log.warnings import passed_text
    from headrace.sources.position import PassedVersion

    return passed_text([PassedVersion(**{**own, "timestamp": own["timestamp"].ms}) for own in passed])


def _requeued_line(job: str, source: str, requeued: list[dict[str, Any]]) -> str:
    """Return a line on requeued rows that are not taken in yet."""
    from headrace.sources.position import rows_text

    rows = [entry["rows"] for entry in requeued]
    text = rows_text(sum(count for count in rows if count is not None), rows.count(None))
    return f"{job}: {text} of source '{source}' left the quarantine: the next run takes them in first"


def _status_or_error(name: str) -> dict[str, Any]:
    from headrace.errors import HeadraceError

    try:
        return _status(name)
    except HeadraceError as error:
        return {
            **dict.fromkeys(_COLUMNS),
            "job": name,
            "kind": "ERROR",
            "error": str(error),
            "exit_code": error.exit_code,
        }


def _status(name: str) -> dict[str, Any]:
    import msgspec

    from headrace import clock
    from headrace.cli.branch import usages_of
    from headrace.cli.describe import services_of
    from headrace.commit.sink_position import sent_messages
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    config = load(name)
    log = CheckpointLog(JobFolder.of(config))
    last, held = log.last, log.lease
    now = clock.now()
    left = held.left(now) if held else 0
    return {
        "job": config.job,
        "checkpoint": last.checkpoint_id if last else None,
        "kind": last.kind.value if last else "never run",
        "committed": Time(last.committed_at if last else None),
        "watermark": Time(last.watermark if last else None),
        "interval_start": Time(last.interval_start if last else None),
        "interval_end": Time(last.interval_end if last else None),
        "rows_in": last.metrics.get("rows_in") if last else None,
        "quarantined": last.metrics.get("quarantined") if last else None,
        "checkpoints": len(log.checkpoints),
        "waiting": last.work.pending if last else 0,
        "next_attempt": Time(last.work.due if last else None),
        "services": next(filter(None, map(services_of, reversed(log.checkpoints))), {}),
        "held_by": held.run_id if held and left else None,
        "held_until": Time(now + left if left else None),
        "progress": _progress(config, held) if held and left else None,
        "sources": _sources(log),
        "messages": {
            sent.sink: {"sent": sent.sent, "of": sent.last, "behind": sent.is_behind, "detail": f"{sent.place}: {sent}"}
            for sent in sent_messages(config, log.checkpoints)
        },
        "branches": usages_of(config),
        "watermark_waits": [
            {**msgspec.to_builtins(wait), "message": wait.message(config.job)} for wait in _watermark_waits(config, log)
        ],
        "row_times": msgspec.to_builtins(_row_times(log)),
        "warnings": [msgspec.to_builtins(warning) for warning in _warnings(config, log)],
        "error": None,
    }


def _warnings(config: JobConfig, log: CheckpointLog) -> list[RunWarning]:
    """Return what somebody has to know of the job, although its last run succeeded."""
    from headrace.commit.input_report import input_warnings
    from headrace.log.warnings import row_time_warnings

    of_input = input_warnings(config, log.lineage.checkpoints)
    return [*row_time_warnings(config.job, _row_times(log)), *of_input]


def _watermark_waits(config: JobConfig, log: CheckpointLog) -> list[WatermarkWait]:
    """Return the watermarks that timers wait for, with the rows that are missing to their next steps."""
    from headrace.log.warnings import watermark_waits
    from headrace.tables.folder import JobFolder

    if (last := log.last) is None:
        return []
    view_of = JobFolder.of(config).views(last.versions)
    return watermark_waits(log.lineage, last, view_of)


def _row_times(log: CheckpointLog) -> dict[str, RowTimes]:
    """Return late rows and rows too far ahead of the last run that made a micro-batch, by operator or source."""
    from headrace.log.checkpoint import Kind
    from headrace.log.warnings import row_times_of

    batches = [checkpoint for checkpoint in log.lineage.newest_first() if checkpoint.kind is Kind.BATCH]
    return row_times_of(batch for batch in batches if batch.run_id == batches[0].run_id)


def _progress(config: JobConfig, lease: Lease) -> dict[str, Any] | None:
    """Return the progress of the run that holds the job within its micro-batch; None if it has reported none yet."""
    import msgspec

    from headrace.log.progress import ProgressFiles
    from headrace.tables.folder import JobFolder

    try:
        progress = ProgressFiles(JobFolder.of(config), lease.attempt_id).read()
    except StorageError:
        return None  # the store does not answer: show the rest of the status
    return None if progress is None else {**msgspec.structs.asdict(progress), "described": progress.described()}


def _sources(log: CheckpointLog) -> dict[str, Any]:
    """Return the facts of all sources as plain values."""
    import msgspec

    from headrace.log.warnings import passed_versions

    if (last := log.last) is None:
        return {}
    passed = passed_versions(log.lineage.checkpoints)
    return {
        name: {
            **_source(facts, last.timeline([name])),
            "passed_over": [
                {**msgspec.to_builtins(own), "timestamp": Time(own.timestamp)} for own in passed.get(name, [])
            ],
        }
        for name, facts in last.sources.items()
    }


def _source(facts: SourceFacts, timeline: Timeline) -> dict[str, Any]:
    """Return the facts of a source as plain values."""
    return {
        "last_file": facts.last_name or None,
        "version": facts.version,
        "tables": {table.name: table.version for table in facts.tables},
        "partitions": [
            {
                "partition": number,
                "offset": partition.next,
                "taken_at": Time(partition.taken_at),
                "idle": partition.idle,
            }
            for number, partition in facts.partitions.items()
        ],
        "watermark": Time(timeline.seen),
        "unread": [*map(facts.name_of, facts.begun)],
        "requeued": _requeued(facts),
        "taken_at": Time(facts.taken_at),
        "idle": facts.idle,
        "ended": facts.ended,
    }


def _requeued(facts: SourceFacts) -> list[dict[str, Any]]:
    return [{"file": rows.file, "rows": rows.rows} for rows in facts.requeued]


def checkpoints(job: Job = None, limit: Limit = 20, branch: Branch = None) -> Report:
    """List the checkpoints, newest first.

    --at takes any of them and, within the retention, `headrace restore` as well. A savepoint keeps its state for longer, but
    not its files of the sinks.

    A job with branches or restores is drawn as a graph. Each checkpoint is above its predecessor. * led to the present state
    of its line; x was left behind by a restore, and can still be read and restored. Checkpoints of a branch have its name
    before their kind. A sentence names the listed checkpoints whose files are gone: they can no longer be restored. --json has the edges.

    Example:  headrace checkpoints flights -n 5

    Exit codes: 0; 2 for an unknown job; 8 when a log cannot be read.
    """
    from headrace.cli.restore import not_protected
    from headrace.log.log import CheckpointLog
    from headrace.readers.graph import lineage_graph
    from headrace.tables.folder import JobFolder

    config = load(job, branch=branch)
    log = CheckpointLog(JobFolder.of(config))
    line = {checkpoint.checkpoint_id for checkpoint in log.lineage.newest_first()}
    graph = lineage_graph(config)
    listed = log.checkpoints[-limit:]
    lost = _lost(config, log, listed)
    rows = [
        {
            **_checkpoint(checkpoint),
            "on_line": checkpoint.checkpoint_id in line,
            "restorable": None if lost is None else checkpoint.has_state and checkpoint.checkpoint_id not in lost,
        }
        for checkpoint in reversed(listed)
    ]
    waiting = {name: _requeued(source) for name, source in log.last.sources.items()} if log.last else {}
    edges = [_edge(node) for node in graph.nodes[:limit]]
    return Report(
        *facts(job=config.job, total=len(log.checkpoints), checkpoints=rows, edges=edges),
        Drawing(partial(_graph_lines, graph, limit)) if graph.has_forks else _table(rows),
        None if rows else f"job '{config.job}' has no checkpoints",
        *(_requeued_line(config.job, name, requeued) for name, requeued in waiting.items() if requeued),
        _lost_sentence(lost) if lost else None,
        not_protected(config.sinks) if any(row["name"] for row in rows) else None,
    )


def _lost(config: JobConfig, log: CheckpointLog, listed: Sequence[Checkpoint]) -> list[int] | None:
    """Return the ids of the listed checkpoints that can no longer be restored; None where nobody can tell."""
    from headrace.commit.restore_check import RestoreCheck
    from headrace.log.branches import Branches

    if log.last is None:
        return []
    sinks = [name for name in log.last.sink_tables if name in config.sinks]
    try:
        forks = [branch.fork_id for branch in Branches(config).open] if config.branch is None else []
        return RestoreCheck(config, log.checkpoints, sinks).lost(listed, forks)
    except StorageError:  # a sink or a log cannot be read, or a store does not answer: `verify` says so
        return None


def _lost_sentence(lost: list[int]) -> str:
    from headrace.log.marks import id_ranges

    ids = ", ".join(f"{first} to {last}" if last > first else f"{first}" for first, last in id_ranges({*lost}))
    noun = "Checkpoint" if len(lost) == 1 else "Checkpoints"
    return f"{noun} {ids} can no longer be restored, and no branch can begin there: files are gone."


def _table(rows: list[dict[str, Any]]) -> Block:
    columns = {"checkpoint_id": "id", "kind": "kind", "committed_at": "committed", "watermark": "watermark"}
    columns |= {"rows_in": "rows in", "run_id": "run"}
    columns |= {name: name for name in ("note", "tables") if any(row[name] for row in rows)}
    return Table(None, columns, [{**row, "kind": _kind(row)} for row in rows])


def _graph_lines(graph: LineageGraph, limit: int, width: int) -> Iterator[str]:
    from headrace.cli.graphs import graph_lines, graph_rows

    drawn = [*graph_rows(graph.nodes[:limit], graph.head)]
    columns, *cells = _in_columns(
        [
            ["id", "kind", "committed", "rows in", "run", "note"],
            *(_cells(row.node) for row in drawn if row.node is not None),
        ]
    )
    beside = iter(cells)
    rows = [(row, [] if row.node is None else next(beside)) for row in drawn]
    return graph_lines(columns, rows, width)


def _cells(node: LineageNode) -> list[str]:
    from headrace.cli.output import shown

    values = _checkpoint(node.checkpoint)
    kind = _kind(values) if node.name.lineage is None else f"{node.name.lineage}: {_kind(values)}"
    committed = Time(node.checkpoint.committed_at // 1000 * 1000)
    notes = ", ".join(filter(None, (values["note"], values["tables"])))
    return [
        shown(cell) for cell in (node.name.checkpoint_id, kind, committed, values["rows_in"], values["run_id"], notes)
    ]


def _in_columns(rows: list[list[str]]) -> list[list[str]]:
    """Return cells padded to their columns: numbers to the right, ids of runs shortened if they stay distinct."""
    from headrace.cli.output import cell_width, short_run_id

    numeric, run = (0, 3), 4
    ids = {row[run] for row in rows}
    if len({*map(short_run_id, ids)}) == len(ids):
        rows = [[*row[:run], short_run_id(row[run]), *row[run + 1 :]] for row in rows]
    widths = [max(map(cell_width, column)) for column in zip(*rows, strict=True)]
    widths[-1] = 0
    return [
        [
            " " * (wide - cell_width(cell)) + cell if at in numeric else cell + " " * (wide - cell_width(cell))
            for at, (cell, wide) in enumerate(zip(row, widths, strict=True))
        ]
        for row in rows
    ]


def _edge(node: LineageNode) -> dict[str, Any]:
    """Return the edge to a checkpoint's predecessor. The line None is the job's own."""
    before = node.before
    return {
        "line": node.name.lineage,
        "checkpoint": node.name.checkpoint_id,
        "kind": node.checkpoint.kind.value,
        "on_line": node.on_line,
        "from_line": None if before is None else before.lineage,
        "from_checkpoint": None if before is None else before.checkpoint_id,
    }


def _kind(checkpoint: dict[str, Any]) -> str:
    if checkpoint["name"]:
        return f"{checkpoint['kind']} {checkpoint['name']}"
    if checkpoint["restored_from"] is not None:
        word = "of" if checkpoint["kind"] == "fork" else "to"
        return f"{checkpoint['kind']} {word} {checkpoint['restored_from']}"
    return str(checkpoint["kind"])


def _checkpoint(checkpoint: Checkpoint) -> dict[str, Any]:
    import msgspec

    plain: dict[str, Any] = msgspec.to_builtins(checkpoint)
    for name in ("interval_start", "interval_end", "watermark", "committed_at"):
        plain[name] = Time(plain[name])
    # Local copies on the workers' disks are internal to the engine, and what the code declares is long, and the same for years.
    del plain["declared"]
    for operator in plain["operators"].values():
        operator.pop("local_copies", None)
    versions = {
        f"{table.name} {table.version}": None for facts in checkpoint.sources.values() for table in facts.tables
    }
    return {**plain, "rows_in": checkpoint.metrics.get("rows_in"), "tables": ", ".join(versions)}
