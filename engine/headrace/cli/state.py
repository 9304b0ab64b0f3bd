"""Commands `headrace state ...` and `headrace history`: stored state, and the rows behind a sink's row.

The file reads keyed state at any checkpoint (`state`), prints expired entries (`state expired`), and shows the history
of rows behind a row of an upserted table (`history`).
"""

from __future__ import annotations

import shlex
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer

from headrace.cli.arguments import (
    All,
    AsOf,
    At,
    Branch,
    Job,
    JobOrText,
    Key,
    Limit,
    OperatorOption,
    StateOption,
    WithExpired,
    as_of_text,
    job_and_text,
    load,
    open_job,
    the_job,
    warn,
)
from headrace.cli.corrections import register_corrections
from headrace.cli.state_edits import register_state_edits
from headrace.names import counted
from headrace.report import Block, Drawing, Fact, Note, Report, Table, Time, facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.api.graph import UpsertMaterialize
    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.query import Rows
    from headrace.readers.versions import EventOfVersion, Versions


def register_state(app: typer.Typer) -> None:
    """Add the commands."""
    state = typer.Typer(
        help="Read keyed state at any checkpoint; correct it; rename or drop that of former operators. Needs no JVM.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    state.command("list")(list_states)
    state.command("get")(get)
    state.command("scan")(scan)
    state.command("history")(history)
    state.command("expired")(expired)
    register_state_edits(state)
    register_corrections(state)
    app.add_typer(state, name="state")


def of_rows(
    job: JobAtCheckpoint,
    rows: Rows,
    what: str,
    *more: Block | None,
    shown: Rows | None = None,
    total: int | None = None,
    timers_left_out: int | None = None,
) -> Report:
    """Return the report on rows: their checkpoint, their number, and that of the engine's own timers that were left out.

    People read the rows `shown`, by default all. `total` is the number of rows without a limit; if it is None, there is no limit.
    """
    from headrace.cli.output import typed_rows

    return Report(
        *facts(checkpoint=job.checkpoint.checkpoint_id, **{what: typed_rows(rows)}),
        None if total is None else Fact("total", total),
        None if timers_left_out is None else Fact("timers_left_out", timers_left_out),
        _for_people(rows if shown is None else shown),
        *_numbers(job, len(rows.rows), what, total, timers_left_out),
        *more,
    )


def _for_people(rows: Rows) -> Block:
    """Return rows as a table; with a long column, as one block of lines each."""
    from headrace.cli.output import card_lines, rows_table

    body = next((name for name in ("value", "raw") if name in rows.columns), None)
    if body is None or not rows.rows:
        return rows_table(rows, drop=("key_group",))
    return Drawing(partial(card_lines, rows, body, drop=("key_group",)))


def _numbers(
    job: JobAtCheckpoint, number: int, what: str, total: int | None, timers_left_out: int | None
) -> Iterator[str]:
    """Yield sentences on the numbers of rows."""
    more = total is not None and total > number
    listed = f"{number:,} of {total:,} {what}" if more else counted(number, _SINGULAR.get(what, what), what)
    yield f"{listed}, at checkpoint {job.checkpoint.checkpoint_id}{' (more with -n)' if more else ''}"
    if timers_left_out:
        timers, them = counted(timers_left_out, "timer"), "it" if timers_left_out == 1 else "them"
        yield f"left out: {timers} that Headrace sets to clean up; --all shows {them}"


_SINGULAR = {"states": "state", "entries": "entry", "changes": "change", "timers": "timer", "requests": "request"}


def total_of(rows: Rows, limit: int, count: Callable[[], int]) -> int:
    """Return the number of rows without a limit. Counts only if the limit may have cut some off: that reads the table again."""
    return len(rows.rows) if len(rows.rows) < limit else count()


def list_states(
    job: Job = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    with_expired: WithExpired = False,
    show_all: All = False,
    largest: Annotated[bool, typer.Option("--largest", help="The keys with most bytes.")] = False,
    limit: Limit = 20,
    branch: Branch = None,
) -> Report:
    """List stored states: for each its kind, number of live entries, keys, bytes, last change, and type.

    A state that the pipeline no longer declares is marked as removed: it stays stored. --json has types with their fields.
    Timers that Headrace sets to clean up expired entries are counted at the end, and listed with --all. --largest lists the keys whose
    values take most bytes, at most -n of them; 'headrace history JOB --largest' those with the longest histories.

    Example:  headrace state list flights

    Example:  headrace state list flights --largest -n 5

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    from headrace.readers.state import largest_keys
    from headrace.readers.state import list_states as states_of
    from headrace.readers.waiting import count_internal_timers

    opened = open_job(job, at, as_of, branch=branch, with_expired=with_expired)
    if largest:
        return of_rows(opened, largest_keys(opened, limit=limit), "keys")
    states = states_of(opened, internal=show_all)
    left_out = 0 if show_all else count_internal_timers(opened)
    shown = shortened(states, "type")
    return of_rows(opened, states, "states", shown=shown, timers_left_out=left_out)


def shortened(rows: Rows, column: str) -> Rows:
    """Return rows with only the names of types in a column, without fields and limits."""
    from headrace.readers.query import Rows

    place = rows.columns.index(column)

    def short(text: str | None) -> str | None:
        return text if text is None else text.partition("(")[0].strip()

    return Rows(rows.columns, [(*row[:place], short(row[place]), *row[place + 1 :]) for row in rows.rows])


def get(
    first: JobOrText,
    second: Key = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    with_expired: WithExpired = False,
    branch: Branch = None,
) -> Report:
    """Show all live entries of one key. A text key needs no quotes; several key fields are a JSON list.

    Example:  headrace state get flights N14228 --at 12

    Exit codes: 0, also without entries; 2 for an unknown job, checkpoint, operator or state; 8 files gone.
    """
    from headrace.readers import state as keyed_state
    from headrace.readers.known_keys import how_keys_are_written

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, branch=branch, with_expired=with_expired)
    entries = keyed_state.get(job, key, operator, state)
    hidden = 0 if with_expired else keyed_state.count_expired(job, key, operator, state)
    nothing = not entries.rows and not hidden
    unknown = Note(f"no live entry has this key. {how_keys_are_written(job)}", "warning") if nothing else None
    return of_rows(job, entries, "entries", *filter(None, (unknown, *_hidden(hidden))))


def _hidden(entries: int) -> Iterator[Note]:
    """Yield a warning of entries that are not shown, if there are some."""
    if entries:
        text = counted(entries, "entry of this key expired and is hidden", "entries of this key expired and are hidden")
        yield Note(f"{text}; --with-expired shows {'it' if entries == 1 else 'them'}", "warning")


def scan(
    job: Job = None,
    *,
    prefix: Annotated[Optional[str], typer.Option(help="Only keys that begin with this.")] = None,  # noqa: UP045
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    limit: Limit = 50,
    with_expired: WithExpired = False,
    branch: Branch = None,
) -> Report:
    """Show live entries in key order.

    Example:  headrace state scan flights --state legs --prefix N14 -n 10

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state; 8 when its files are gone.
    """
    from headrace.readers import state as keyed_state

    opened = open_job(job, at, as_of, branch=branch, with_expired=with_expired)
    rows = keyed_state.scan(opened, operator, state, prefix, limit)
    total = total_of(rows, limit, lambda: keyed_state.count_scanned(opened, operator, state, prefix))
    return of_rows(opened, rows, "entries", total=total)


def history(
    first: JobOrText,
    second: Key = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    branch: Branch = None,
) -> Report:
    """Show the changes of one key, oldest first, each with its checkpoint; also when its entries expired.

    It shows why a key is gone: removed, expired and removed, or expired and dropped by a compaction.

    Example:  headrace state history flights N14228

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state.
    """
    from headrace.readers.history import key_history
    from headrace.readers.known_keys import how_keys_are_written
    from headrace.readers.state import rows_of_key

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, branch=branch)
    changes = key_history(job, key, operator, state)
    if changes.rows:
        return of_rows(job, changes, "changes")
    rows = rows_of_key(job, key, operator)
    way = (
        f"it has no keyed state, but a row in the history of {', '.join(dict.fromkeys(row['operator'] for row in rows.dicts()))}: "
        f"'headrace why {shlex.join([name, key])}' tells its changes"
        if rows.rows
        else f"nothing is stored of this key. {how_keys_are_written(job)}"
    )
    return of_rows(job, changes, "changes", Note(way, "warning"))


def expired(
    job: Job = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    ttl: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Show what this TTL (such as 12h, or off) would remove from --state. Changes nothing."),
    ] = None,
    limit: Limit = 20,
    branch: Branch = None,
) -> Report:
    """Show expired entries that are still stored, without values, and when their bytes will be gone.

    With --ttl, show the immediate effect of another TTL on a state: a dry run, before you change the pipeline.

    Example:  headrace state expired flights

    Example:  headrace state expired flights --state legs --ttl 6h

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state, or a wrong duration; 8 when files are gone.
    """
    from headrace.readers.expired import expired_entries
    from headrace.readers.job_at import JobAtCheckpoint

    opened = JobAtCheckpoint(load(job, branch=branch), at, as_of=as_of)
    if as_of is not None:
        warn(as_of_text(opened.checkpoint))
    if ttl is not None:
        return of_supposed(opened, operator, state, ttl)
    warn(opened.ttl.not_declared)
    return of_expired(opened, expired_entries(opened, operator, state, limit))


_OFF = "off"


def of_expired(job: JobAtCheckpoint, entries: Rows) -> Report:
    """Return the report on expired entries, by state and one by one, and when their bytes are gone."""
    from headrace.cli.output import rows_table, typed_rows
    from headrace.readers.expired import expired_states, expiry_compactions, savepoints

    states, compactions, kept_by = expired_states(job), list(expiry_compactions(job)), savepoints(job)
    checkpoint = job.checkpoint.checkpoint_id
    return Report(
        *facts(checkpoint=checkpoint, states=typed_rows(states), entries=typed_rows(entries)),
        *facts(removals=compactions, savepoints=kept_by),
        rows_table(states),
        rows_table(entries, drop=("ttl_ms",)) if states.rows else None,
        _until_gone(job) if states.rows else f"nothing that has expired is stored, at checkpoint {checkpoint}",
        Table.shown(
            ("compaction", "at", "expired entries", "vacuum removes their files from"),
            [(done.checkpoint_id, done.at, done.entries, done.files_until) for done in compactions],
        ),
        _kept(kept_by) if kept_by and (states.rows or compactions) else None,
    )


def _until_gone(job: JobAtCheckpoint) -> str:
    hours = counted(job.config.retention.hours, "hour")
    return (
        f"They are hidden from user code and readers. The next 'headrace maintain {job.config.job}' drops them from the tables;\n"
        f"files that had them stay for {hours} more, and then until 'headrace maintain {job.config.job}' removes them."
    )


def _kept(savepoints: Sequence[str]) -> str:
    return f"Savepoints keep all that was stored then, for ever: {', '.join(savepoints)}."


def of_supposed(job: JobAtCheckpoint, operator: str | None, state: str | None, ttl: str) -> Report:
    """Return the report on the effect of another TTL."""
    from headrace.readers.expired import declared_name, suppose_ttl

    name = declared_name(job, operator, state)
    supposed = suppose_ttl(job, name, _parsed(ttl))
    checkpoint = job.checkpoint.checkpoint_id
    begins = "It has no TTL so far: lifetimes of stored entries begin with the first micro-batch that has one."
    return Report(
        *facts(checkpoint=checkpoint, state=name, ttl=ttl, **msgspec.to_builtins(supposed)),
        f"{name} with a TTL of {ttl}, at checkpoint {checkpoint} (nothing was changed):",
        f"  {supposed.entries_that_go:,} of {counted(supposed.entries, 'entry', 'entries')} would be dead at once,",
        f"  {supposed.keys_that_go:,} of {counted(supposed.keys, 'key')} would have nothing left,",
        f"  {counted(supposed.entries_that_come_back, 'dead entry', 'dead entries')}, still stored, would live again.",
        begins if supposed.was_off and ttl != _OFF else None,
        f"Compact first ('headrace maintain {job.config.job} --state') if they must not."
        if supposed.entries_that_come_back
        else None,
    )


def _parsed(text: str) -> timedelta | None:
    from headrace.config import parse_duration
    from headrace.errors import ConfigError

    if text == _OFF:
        return None
    try:
        ttl = parse_duration(text)
    except ValueError as error:
        msg = f"--ttl: {error}, or '{_OFF}'"
        raise ConfigError(msg) from error
    if not ttl:
        msg = f"--ttl: a TTL must be at least 1 ms, or '{_OFF}'"
        raise ConfigError(msg)
    return ttl


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
    last rows (-n). --largest, without KEY, lists the keys with most rows.

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
    from headrace.errors import ConfigError
    from headrace.readers.versions import versions_of

    try:
        return versions_of(job, key, operator)
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
    for name in dict.fromkeys(event.operator for event in versions.events):
        own = [event for event in versions.events if event.operator == name]
        opened = sum(event.what == "opens" for event in own)
        yield f"{name}: {counted(opened, 'version')}, by {counted(len(own), 'event')}"
        if len(own) > limit:
            yield f"  the last {limit} of them (more with -n)"
        yield _version_table(own, limit)
    if any(len(event.fields or {}) > _MOST_FIELDS for event in versions.events):
        yield f"of the fields that differ, the first {_MOST_FIELDS} are shown: --json has all"
    yield from versions.untold


def _version_table(events: list[EventOfVersion], limit: int) -> Table:
    sequences = [_texts(event.sequence) for event in events]
    fields = [_texts(event.fields or {}) for event in events]
    differing = [name for name in _differing([own for own in fields if own]) if name not in sequences[0]]
    shown = differing[:_MOST_FIELDS]
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

    rows = largest_histories(job, operator, limit)
    long = sum(row["rows"] >= LONG_HISTORY for row in rows.dicts())
    advice = (
        f"{counted(long, 'of them has', 'of them have')} {LONG_HISTORY:,} rows or more. A history ends when its rows are taken back: a key that "
        "only ever gets insertions keeps them all. Give the materializer a `ttl`, or an `on_conflict` that keeps one "
        "row, or an `upsert_key`. See docs/materializer.md."
    )
    return Report(
        *facts(checkpoint=job.checkpoint.checkpoint_id, histories=typed_rows(rows)),
        rows_table(rows) if rows.rows else "no histories",
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
        yield f"no history for {key}, at checkpoint {checkpoint}. Keys that have one:  headrace history {job.config.job} --largest"
        return
    dicts = rows.dicts()
    for name in dict.fromkeys(row["operator"] for row in dicts):
        own = [row for row in dicts if row["operator"] == name]
        yield from _of_operator(name, operators.get(name), own, limit)
    yield f"at checkpoint {checkpoint}"


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
        parts.append("  in all of them  " + ", ".join(f"{field} {_text(raw)}" for field, raw in same.items()))
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
