"""Command `headrace history`: the rows behind a row of an upserted table, and the events behind versions of a key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import msgspec
import typer

from headrace.cli.arguments import (
    AsOf,
    At,
    Branch,
    Key,
    Limit,
    OperatorOption,
    job_and_text,
    open_job,
    the_job,
)
from headrace.names import counted
from headrace.report import Report, Table, Time, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.api.graph import UpsertMaterialize
    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.query import Rows
    from headrace.readers.versions import EventOfVersion, Versions


T = TypeVar("T")
First = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="JOB", help="Leave it out if there is only one.", show_default=False),
]
_SHOWN = "shown"
_LONGEST = 500
"""Longest text of a field or row that is printed, in characters."""

_MOST_FIELDS = 4
"""Highest number of differing fields in a table. Rows that differ in more are printed one below the other."""


def register_history(app: typer.Typer) -> None:
    """Add the command."""
    app.command("history")(row_history)


def row_history(
    first: First = None,
    second: Key = None,
    *,
    largest: Annotated[bool, typer.Option("--largest", help="The keys with the longest histories.")] = False,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    limit: Limit = 20,
    branch: Branch = None,
) -> Report:
    """Show the history of one primary key: the rows that were inserted and not retracted, in order; or the events behind the versions of a key.

    The sink shows the row marked with * (after an update in place, maybe another one). If it is retracted, the row above
    it takes its place. A text key needs no quotes; several key fields are a JSON list. Of a long history it shows the
    last rows (-n). --largest, without KEY, lists the keys with most rows, and those with most events.

    Example:  headrace history flights 2013-01-01-UA1545-EWR

    Example:  headrace history flights --largest -n 5

    Exit codes: 0, also without history; 2 for an unknown job, checkpoint or operator; 8 files gone.
    """
    if largest:
        return _largest(open_job(the_job(first), at, as_of, branch=branch), operator, limit)
    if first is None:
        msg = "give the primary key whose history to show, or --largest"
        raise typer.BadParameter(msg)
    from headrace.cli.output import typed_rows
    from headrace.readers.state import rows_of_key

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, branch=branch)
    rows = rows_of_key(job, key, operator)
    versions = _versions(job, key, operator)
    events = [] if versions is None else [_json_of_event(event) for event in versions.events]
    checkpoint = job.checkpoint.checkpoint_id
    return Report(
        *facts(checkpoint=checkpoint, rows=typed_rows(rows), events=events),
        *([] if versions is None else _version_blocks(versions, limit)),
        *(_row_blocks(job, key, rows, limit) if rows.rows or not events else [f"at checkpoint {checkpoint}"]),
    )


def _versions(job: JobAtCheckpoint, key: str, operator: str | None) -> Versions | None:
    """Return the events behind versions of a key; None if the pipeline cannot be imported, which knows them."""
    from headrace.readers.versions import versions_of

    return _known(lambda: versions_of(job, key, operator))


def _most_events(job: JobAtCheckpoint, operator: str | None, limit: int) -> Rows:
    """Return the keys with most events behind versions; none if the pipeline cannot be imported, which knows them."""
    from headrace.readers.query import Rows
    from headrace.readers.versions import keys_with_most_events

    return _known(lambda: keys_with_most_events(job, operator, limit)) or Rows([], [])


def _known(ask: Callable[[], T]) -> T | None:
    """Return what a question about the pipeline gives; None if the pipeline cannot be imported."""
    from headrace.errors import ConfigError

    try:
        return ask()
    except (ConfigError, ImportError, TypeError):
        return None


def _json_of_event(event: EventOfVersion) -> dict[str, Any]:
    source = event.source
    return {
        "operator": event.operator,
        "sequence": msgspec.to_builtins(event.sequence, str_keys=True),
        "what": event.what,
        "event_time": Time(event.at),
        "checkpoint": event.checkpoint_id,
        "input": None if source is None else {"source": source.source, "file": source.file, "rows": source.rows},
        "fields": msgspec.to_builtins(event.fields, str_keys=True),
    }


def _version_blocks(versions: Versions, limit: int) -> Iterator[str | Table]:
    """Yield what people read of the events behind versions, operator by operator."""
    has_more = False
    for name in dict.fromkeys(event.operator for event in versions.events):
        own = [event for event in versions.events if event.operator == name]
        opened = sum(event.what == "opens" for event in own)
        yield f"{name}: {counted(opened, 'version')}, by {counted(len(own), 'event')}"
        same, differing = _same_and_differing(own)
        if same:
            yield _shown_once(same)
        if len(own) > limit:
            yield f"  the last {limit} of them (more with -n)"
        yield _version_table(own, differing[:_MOST_FIELDS], limit)
        has_more = has_more or len(differing) > _MOST_FIELDS
    if has_more:
        yield f"of the fields that differ, the first {_MOST_FIELDS} are shown: --json has all"
    yield from versions.untold


def _same_and_differing(events: list[EventOfVersion]) -> tuple[dict[str, msgspec.Raw], list[str]]:
    """Return the fields that are equal in all rows of events, with their values, and those that are not; without the sequence."""
    rows = [_texts(event.fields) for event in events if event.fields is not None]
    sequence, differing = _texts(events[0].sequence), _differing(rows)
    equal = {name: raw for name, raw in rows[0].items() if name not in {*sequence, *differing}} if rows else {}
    return equal, [name for name in differing if name not in sequence]


def _shown_once(same: dict[str, msgspec.Raw]) -> str:
    """Return the line with the fields that all rows have alike."""
    return "  in all of them  " + ", ".join(f"{field} {_text(raw)}" for field, raw in same.items())


def _version_table(events: list[EventOfVersion], shown: list[str], limit: int) -> Table:
    sequences = [_texts(event.sequence) for event in events]
    fields = [_texts(event.fields or {}) for event in events]
    lines = [
        [*map(_text, sequence.values()), event.what, *(_text(own.get(name, b"")) for name in shown), *_came_by(event)]
        for event, sequence, own in zip(events, sequences, fields, strict=True)
    ]
    return Table.shown((*sequences[0], "what", *shown, "checkpoint", "input row"), lines[-limit:])


def _texts(record: Any) -> dict[str, msgspec.Raw]:
    """Return the fields of a record as JSON."""
    values = msgspec.to_builtins(record, str_keys=True)
    return {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in values.items()}


def _came_by(event: EventOfVersion) -> list[Any]:
    """Return the cells on where an event came from: its checkpoint, and file and number of its row."""
    source = event.source
    place = "" if source is None or not source.rows else f"{source.file}:{source.rows[0]}"
    return [event.checkpoint_id, place]


def _largest(job: JobAtCheckpoint, operator: str | None, limit: int) -> Report:
    from headrace.cli.output import rows_table, typed_rows
    from headrace.materializer.upsert_materializer import LONG_HISTORY
    from headrace.readers.state import largest_histories

    rows, versions = largest_histories(job, operator, limit), _most_events(job, operator, limit)
    long = sum(row["rows"] >= LONG_HISTORY for row in rows.dicts())
    advice = (
        f"{counted(long, 'of them has', 'of them have')} {LONG_HISTORY:,} rows or more. A history ends when its rows are taken back: a key that "
        "only ever gets insertions keeps them all. Give the materializer a `ttl`, or an `on_conflict` that keeps one "
        "row, or an `upsert_key`. See docs/materializer.md."
    )
    return Report(
        *facts(checkpoint=job.checkpoint.checkpoint_id, histories=typed_rows(rows), versions=typed_rows(versions)),
        *[rows_table(own) for own in (rows, versions) if own.rows],
        None if rows.rows or versions.rows else "no histories",
        advice if long else None,
    )


def _row_blocks(job: JobAtCheckpoint, key: str, rows: Rows, limit: int) -> Iterator[str | Table]:
    """Yield what people read of the rows of a key, operator by operator."""
    checkpoint = job.checkpoint.checkpoint_id
    operators = _operators(job)
    if not rows.rows:
        without = [f"'{name}'" for name, operator in operators.items() if not operator.is_needed]
        if without:
            yield f"{', '.join(without)}: no history is kept, since the last change of a key counts."
        yield f"no history for {key}, at checkpoint {checkpoint}. {_other_keys(job)}"
        return
    dicts = rows.dicts()
    for name in dict.fromkeys(row["operator"] for row in dicts):
        own = [row for row in dicts if row["operator"] == name]
        yield from _of_operator(name, operators.get(name), own, limit)
    yield f"at checkpoint {checkpoint}"


def _other_keys(job: JobAtCheckpoint) -> str:
    """Return a sentence on the keys that have a history."""
    from headrace.readers.state import largest_histories

    if largest_histories(job, limit=1).rows or _most_events(job, None, 1).rows:
        return f"Keys that have one:  headrace history {job.config.job} --largest"
    return f"No key has one. Keys with state:  headrace state scan {job.config.job}"


def _of_operator(
    name: str, operator: UpsertMaterialize | None, rows: list[dict[str, Any]], limit: int
) -> list[str | Table]:
    first = operator is not None and operator.shows_first
    for position, row in enumerate(rows):
        row[_SHOWN] = "*" if position == (0 if first else len(rows) - 1) else ""
        row["fields"] = msgspec.json.decode(row["row"], type=dict[str, msgspec.Raw])
    differing = _differing([row["fields"] for row in rows])
    parts: list[str | Table] = [f"{name}: {counted(len(rows), 'row')}"]
    same = {field: raw for field, raw in rows[-1]["fields"].items() if field not in differing}
    if same:
        parts.append(_shown_once(same))
    if len(rows) > limit:
        parts.append(f"  the last {limit} of them (more with -n)")
    columns = differing if len(differing) <= _MOST_FIELDS else ["row"]
    lines = [
        [
            row[_SHOWN],
            row["sequence_number"],
            row["row_kind"],
            row["inserted_at"],
            row["checkpoint_id"],
            *_cells(row, columns),
        ]
        for row in rows[-limit:]
    ]
    parts.append(Table.shown(("", "number", "kind", "inserted at", "checkpoint", *columns), lines))
    if operator is not None and operator.may_show_another and len(rows) > 1:
        parts.append("  * unless another one was updated in place since: then the sink shows that one")
    return parts


def _cells(row: dict[str, Any], columns: list[str]) -> list[str]:
    fields: dict[str, msgspec.Raw] = row["fields"]
    if columns == ["row"] and "row" not in fields:
        return [_text(row["row"].encode())]
    return [_text(fields.get(field, b"")) for field in columns]


def _text(raw: msgspec.Raw | bytes) -> str:
    """Return JSON text, cut for the screen."""
    from headrace.cli.output import cut, spaced_json

    return cut(spaced_json(bytes(raw).decode(), times=True), _LONGEST)


def _differing(rows: list[dict[str, msgspec.Raw]]) -> list[str]:
    """Return the fields in which rows differ."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({bytes(row.get(name, b"")) for row in rows}) > 1]


def _operators(job: JobAtCheckpoint) -> dict[str, UpsertMaterialize]:
    """Return the materializers of the job's pipeline; none if it cannot be imported, since rows can be read without it."""
    from headrace.api.graph import UpsertMaterialize
    from headrace.errors import ConfigError
    from headrace.plan.loader import plan_of

    try:
        keyed = plan_of(job.config.code).keyed
    except (ConfigError, ImportError, TypeError):
        return {}
    return {stage.operator.name: stage.operator for stage in keyed if isinstance(stage.operator, UpsertMaterialize)}
