"""Commands `headrace state ...` and `headrace history`: stored state, and the rows behind a sink's row.

The file reads keyed state at any checkpoint (`state`), prints expired entries (`state expired`), and shows the history
of rows behind a row of an upserted table (`history`).
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer

from headrace.cli.arguments import (
    All,
    AsJson,
    AsOf,
    At,
    Job,
    JobOrText,
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
from headrace.cli.state_edits import register_state_edits
from headrace.names import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.api.graph import UpsertMaterialize
    from headrace.cli.output import Table
    from headrace.readers.job_at import JobAtCheckpoint
    from headrace.readers.query import Rows


Second = Annotated[Optional[str], typer.Argument(metavar="KEY", help="Plain text, or JSON.", show_default=False)]  # noqa: UP045


def register_state(app: typer.Typer) -> None:
    """Add the commands."""
    state = typer.Typer(
        help="Read keyed state at any checkpoint; rename or drop state of former operators. Needs no JVM.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    state.command("list")(list_states)
    state.command("get")(get)
    state.command("scan")(scan)
    state.command("history")(history)
    state.command("expired")(expired)
    register_state_edits(state)
    app.add_typer(state, name="state")


def print_rows(
    job: JobAtCheckpoint,
    rows: Rows,
    what: str,
    *,
    as_json: bool,
    total: int | None = None,
    timers_left_out: int | None = None,
) -> None:
    """Print rows with their checkpoint, and the number of the engine's own timers that were left out.

    `total` is the number of rows without a limit; if it is None, there is no limit.
    """
    from headrace.cli.output import cards, decoded, print_json, records, show

    if as_json:
        left_out = {} if timers_left_out is None else {"timers_left_out": timers_left_out}
        limited = {} if total is None else {"total": total}
        print_json({"checkpoint": job.checkpoint.checkpoint_id, what: decoded(rows), **limited, **left_out})
        return
    body = next((name for name in ("value", "raw") if name in rows.columns), None)
    if rows.rows and body is not None:
        show(cards(rows, body, drop=("key_group",)))
    elif rows.rows:
        show(records(rows, drop=("key_group",)))
    number = len(rows.rows)
    more = total is not None and total > number
    listed = f"{number:,} of {total:,} {what}" if more else counted(number, _SINGULAR.get(what, what), what)
    show(f"{listed}, at checkpoint {job.checkpoint.checkpoint_id}{' (more with -n)' if more else ''}")
    if timers_left_out:
        timers = counted(timers_left_out, "timer")
        show(
            f"left out: {timers} that Headrace sets to clean up; --all shows {'it' if timers_left_out == 1 else 'them'}"
        )


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
    as_json: AsJson = False,
) -> None:
    """List stored states: for each its kind, number of live entries, keys, bytes, last change, and type.

    A state that the pipeline no longer declares is marked as removed: it stays stored. --json has types with their fields.
    Timers that Headrace sets to clean up expired entries are counted at the end, and listed with --all.

    Example:  headrace state list flights

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    from headrace.readers.state import list_states as states_of
    from headrace.readers.waiting import count_internal_timers

    opened = open_job(job, at, as_of, with_expired=with_expired)
    states = states_of(opened, internal=show_all)
    left_out = 0 if show_all else count_internal_timers(opened)
    shown = states if as_json else shortened(states, "type")
    print_rows(opened, shown, "states", as_json=as_json, timers_left_out=left_out)


def shortened(rows: Rows, column: str) -> Rows:
    """Return rows with only the names of types in a column, without fields and limits."""
    from headrace.readers.query import Rows

    place = rows.columns.index(column)

    def short(text: str | None) -> str | None:
        return text if text is None else text.partition("(")[0].strip()

    return Rows(rows.columns, [(*row[:place], short(row[place]), *row[place + 1 :]) for row in rows.rows])


def get(
    first: JobOrText,
    second: Second = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    with_expired: WithExpired = False,
    as_json: AsJson = False,
) -> None:
    """Show all live entries of one key. A text key needs no quotes; several key fields are a JSON list.

    Example:  headrace state get flights N14228 --at 12

    Exit codes: 0, also without entries; 2 for an unknown job, checkpoint, operator or state; 8 files gone.
    """
    from headrace.readers import state as keyed_state
    from headrace.readers.known_keys import how_keys_are_written

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, with_expired=with_expired)
    entries = keyed_state.get(job, key, operator, state)
    hidden = 0 if with_expired else keyed_state.count_expired(job, key, operator, state)
    print_rows(job, entries, "entries", as_json=as_json)
    if not entries.rows and not hidden:
        warn(f"no live entry has this key. {how_keys_are_written(job)}")
    if hidden:
        one = hidden == 1
        text = counted(hidden, "entry", "entries")
        warn(
            f"{text} of this key expired and {'is' if one else 'are'} hidden; --with-expired shows {'it' if one else 'them'}"
        )


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
    as_json: AsJson = False,
) -> None:
    """Show live entries in key order.

    Example:  headrace state scan flights --state legs --prefix N14 -n 10

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state; 8 when its files are gone.
    """
    from headrace.readers import state as keyed_state

    opened = open_job(job, at, as_of, with_expired=with_expired)
    rows = keyed_state.scan(opened, operator, state, prefix, limit)
    total = total_of(rows, limit, lambda: keyed_state.count_scanned(opened, operator, state, prefix))
    print_rows(opened, rows, "entries", as_json=as_json, total=total)


def history(
    first: JobOrText,
    second: Second = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    state: StateOption = None,
    as_json: AsJson = False,
) -> None:
    """Show the changes of one key, oldest first, each with its checkpoint; also when its entries expired.

    It shows why a key is gone: removed, expired and removed, or expired and dropped by a compaction.

    Example:  headrace state history flights N14228

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state.
    """
    from headrace.readers.history import key_history

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of)
    print_rows(job, key_history(job, key, operator, state), "changes", as_json=as_json)


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
    as_json: AsJson = False,
) -> None:
    """Show expired entries that are still stored, without values, and when their bytes will be gone.

    With --ttl, show the immediate effect of another TTL on a state: a dry run, before you change the pipeline.

    Example:  headrace state expired flights

    Example:  headrace state expired flights --state legs --ttl 6h

    Exit codes: 0; 2 for an unknown job, checkpoint, operator or state, or a wrong duration; 8 when files are gone.
    """
    from headrace.storage.pandas import without_pandas

    without_pandas()
    from headrace.readers.expired import expired_entries
    from headrace.readers.job_at import JobAtCheckpoint

    opened = JobAtCheckpoint(load(job), at, as_of=as_of)
    if as_of is not None:
        warn(as_of_text(opened.checkpoint))
    if ttl is not None:
        print_supposed(opened, operator, state, ttl, as_json=as_json)
        return
    warn(opened.ttl.not_declared)
    print_expired(opened, expired_entries(opened, operator, state, limit), as_json=as_json)


_OFF = "off"


def print_expired(job: JobAtCheckpoint, entries: Rows, *, as_json: bool) -> None:
    """Print expired entries, by state and one by one, and when their bytes are gone."""
    from headrace.cli.output import decoded, print_json, records, show, table
    from headrace.readers.expired import expired_states, expiry_compactions, savepoints

    states, compactions, kept_by = expired_states(job), list(expiry_compactions(job)), savepoints(job)
    checkpoint = job.checkpoint.checkpoint_id
    if as_json:
        answer = {"checkpoint": checkpoint, "states": decoded(states), "entries": decoded(entries)}
        print_json({**answer, "removals": compactions, "savepoints": kept_by})
        return
    if states.rows:
        show(records(states), records(entries, drop=("ttl_ms",)))
        show(
            f"They are hidden from user code and readers. The next 'headrace compact {job.config.job}' drops them from the tables;"
        )
        show(
            f"files that had them stay for {counted(job.config.retention.hours, 'hour')} more, and then until 'headrace vacuum {job.config.job}'."
        )
    else:
        show(f"nothing that has expired is stored, at checkpoint {checkpoint}")
    if compactions:
        rows = [
            (compaction.checkpoint_id, compaction.at, compaction.entries, compaction.files_until)
            for compaction in compactions
        ]
        show(table(("compaction", "at", "expired entries", "vacuum removes their files from"), rows))
    if kept_by and (states.rows or compactions):
        show(f"Savepoints keep all that was stored then, for ever: {', '.join(kept_by)}.")


def print_supposed(job: JobAtCheckpoint, operator: str | None, state: str | None, ttl: str, *, as_json: bool) -> None:
    """Print the effect of another TTL."""
    import msgspec

    from headrace.cli.output import print_json, show
    from headrace.readers.expired import declared_name, suppose_ttl

    name = declared_name(job, operator, state)
    supposed = suppose_ttl(job, name, _parsed(ttl))
    if as_json:
        answer = {"checkpoint": job.checkpoint.checkpoint_id, "state": name, "ttl": ttl}
        print_json({**answer, **msgspec.to_builtins(supposed)})
        return
    show(
        f"{name} with a TTL of {ttl}, at checkpoint {job.checkpoint.checkpoint_id} (nothing was changed):",
        f"  {supposed.entries_that_go:,} of {counted(supposed.entries, 'entry', 'entries')} would be dead at once,",
        f"  {supposed.keys_that_go:,} of {counted(supposed.keys, 'key')} would have nothing left,",
        f"  {counted(supposed.entries_that_come_back, 'dead entry', 'dead entries')}, still stored, would live again.",
    )
    if supposed.was_off and ttl != _OFF:
        show("It has no TTL so far: lifetimes of stored entries begin with the first micro-batch that has one.")
    if supposed.entries_that_come_back:
        show(f"Compact first ('headrace compact {job.config.job}') if they must not.")


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
    second: Second = None,
    *,
    largest: Annotated[bool, typer.Option("--largest", help="The keys with the longest histories.")] = False,
    at: At = None,
    as_of: AsOf = None,
    operator: OperatorOption = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show the history of one primary key: the rows that were inserted and not retracted, in order.

    The sink shows the row marked with * (after an update in place, maybe another one). If it is retracted, the row above
    it takes its place. A text key needs no quotes; several key fields are a JSON list. Of a long history it shows the
    last rows (-n). --largest, without KEY, lists the keys with most rows.

    Example:  headrace history flights UA1545-2013-01-01

    Example:  headrace history flights --largest -n 5

    Exit codes: 0, also without history; 2 for an unknown job, checkpoint or operator; 8 files gone.
    """
    if largest:
        _largest(open_job(the_job(first), at, as_of), operator, limit, as_json=as_json)
        return
    if first is None:
        msg = "give the primary key whose history to show, or --largest"
        raise typer.BadParameter(msg)
    from headrace.readers.state import rows_of_key

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of)
    rows = rows_of_key(job, key, operator)
    checkpoint = job.checkpoint.checkpoint_id
    if as_json:
        from headrace.cli.output import decoded, print_json

        print_json({"checkpoint": checkpoint, "rows": decoded(rows)})
        return
    _show(name, key, rows, checkpoint, limit)


def _largest(job: JobAtCheckpoint, operator: str | None, limit: int, *, as_json: bool) -> None:
    from headrace.cli.output import decoded, print_json, records, show
    from headrace.materializer.upsert_materializer import LONG_HISTORY
    from headrace.readers.state import largest_histories

    rows = largest_histories(job, operator, limit)
    if as_json:
        print_json({"checkpoint": job.checkpoint.checkpoint_id, "histories": decoded(rows)})
        return
    show(records(rows) if rows.rows else "no histories")
    long = [row for row in rows.dicts() if row["rows"] >= LONG_HISTORY]
    if long:
        show(
            f"{counted(len(long), 'of them has', 'of them have')} {LONG_HISTORY:,} rows or more. A history ends when its rows are taken back: a key that "
            "only ever gets insertions keeps them all. Give the materializer a `ttl`, or an `on_conflict` that keeps one "
            "row, or an `upsert_key`. See docs/materializer.md."
        )


def _show(job: str, key: str, rows: Rows, checkpoint: int, limit: int) -> None:
    from headrace.cli.output import show

    if not rows.rows:
        show(f"no history for {key}, at checkpoint {checkpoint}. Keys that have one:  headrace history {job} --largest")
        return
    operators = _operators(job)
    dicts = rows.dicts()
    for name in dict.fromkeys(row["operator"] for row in dicts):
        own = [row for row in dicts if row["operator"] == name]
        show(*_of_operator(name, operators.get(name), own, limit))
    show(f"at checkpoint {checkpoint}")


def _of_operator(
    name: str, operator: UpsertMaterialize | None, rows: list[dict[str, Any]], limit: int
) -> list[str | Table]:
    from headrace.cli.output import table

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
    parts.append(table(("", "number", "kind", "inserted at", "checkpoint", *columns), lines))
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


def _operators(job: str) -> dict[str, UpsertMaterialize]:
    """Return the materializers of the job's pipeline; none if it cannot be imported, since rows can be read without it."""
    from headrace.api.graph import UpsertMaterialize
    from headrace.errors import ConfigError
    from headrace.plan.loader import plan_of

    try:
        keyed = plan_of(load(job).code).keyed
    except (ConfigError, ImportError):
        return {}
    return {stage.operator.name: stage.operator for stage in keyed if isinstance(stage.operator, UpsertMaterialize)}
