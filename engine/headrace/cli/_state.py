"""`headrace state ...`: keyed state at any checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli._arguments import (
    All,
    AsJson,
    At,
    Job,
    Limit,
    Operator,
    State,
    WithExpired,
    job_and_text,
    load,
)

if TYPE_CHECKING:
    from headrace.checkpoint.reader import Rows, StateReader

First = Annotated[
    str, typer.Argument(metavar="JOB", help="May be left out where there is only one.", show_default=False)
]
Second = Annotated[Optional[str], typer.Argument(metavar="KEY", help="Plain text, or JSON.", show_default=False)]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Add the commands."""
    state = typer.Typer(
        help="Look into keyed state at any checkpoint. Needs no JVM.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    state.command("list")(list_states)
    state.command("get")(get)
    state.command("scan")(scan)
    state.command("history")(history)
    state.command("expired")(expired)
    app.add_typer(state, name="state")


def open_reader(job: str | None, at: str | None, *, with_expired: bool = False) -> StateReader:
    """A reader of a job's state at a checkpoint."""
    from headrace.cli._arrow import without_pandas

    without_pandas()
    from headrace.checkpoint.reader import StateReader

    reader = StateReader(load(job), at, with_expired=with_expired)
    warn(reader.not_declared)
    return reader


def warn(what: str | None) -> None:
    """Tell, on stderr, what is worth knowing beside the answer."""
    if what is not None:
        typer.echo(f"note: {what}", err=True)


def print_rows(
    reader: StateReader, rows: Rows, what: str, *, as_json: bool, timers_left_out: int | None = None
) -> None:
    """Print rows with the checkpoint that they belong to, and how many of the engine's own timers were left out of them."""
    from headrace.cli._output import cards, decoded, print_json, records, show

    if as_json:
        left_out = {} if timers_left_out is None else {"timers_left_out": timers_left_out}
        print_json({"checkpoint": reader.checkpoint.checkpoint_id, what: decoded(rows), **left_out})
        return
    body = next((name for name in ("value", "raw") if name in rows.columns), None)
    if rows.rows and body is not None:
        show(cards(rows, body, drop=("key_group",)))
    elif rows.rows:
        show(records(rows, drop=("key_group",)))
    show(f"{len(rows.rows):,} {what}, at checkpoint {reader.checkpoint.checkpoint_id}")
    if timers_left_out:
        show(f"left out: {timers_left_out:,} timers that Headrace has set itself, to clean up; --all shows them")


def list_states(
    job: Job = None,
    at: At = None,
    with_expired: WithExpired = False,
    show_all: All = False,
    as_json: AsJson = False,
) -> None:
    """List what is stored: per operator and state its kind, the live entries, keys, bytes, the last change, and its type.

    A state that the pipeline does not declare any more is marked as removed: it stays stored. --json has types with their fields.
    Timers that Headrace has set itself, to clean up what has expired, are counted at the end, and listed with --all.

    Example:  headrace state list flights

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    reader = open_reader(job, at, with_expired=with_expired)
    found = reader.list_states(internal=show_all)
    left_out = 0 if show_all else reader.internal_timers()
    shown = found if as_json else shortened(found, "type")
    print_rows(reader, shown, "states", as_json=as_json, timers_left_out=left_out)


def shortened(rows: Rows, column: str) -> Rows:
    """Rows with the names of types alone in a column: no fields, no limits."""
    from headrace.checkpoint.reader import Rows

    place = rows.columns.index(column)

    def short(text: str | None) -> str | None:
        return text if text is None else text.partition("(")[0].strip()

    return Rows(rows.columns, [(*row[:place], short(row[place]), *row[place + 1 :]) for row in rows.rows])


def get(
    first: First,
    second: Second = None,
    *,
    at: At = None,
    operator: Operator = None,
    state: State = None,
    with_expired: WithExpired = False,
    as_json: AsJson = False,
) -> None:
    """Show all live entries of one key. A text key needs no quotes; several key fields are a JSON list.

    Example:  headrace state get flights N14228 --at 12

    Exit codes: 0, also when there is nothing; 2 for an unknown job or checkpoint; 8 files gone.
    """
    job, key = job_and_text(first, second)
    reader = open_reader(job, at, with_expired=with_expired)
    print_rows(reader, reader.get(key, operator, state), "entries", as_json=as_json)


def scan(
    job: Job = None,
    *,
    prefix: Annotated[Optional[str], typer.Option(help="Only keys that begin with this.")] = None,  # noqa: UP045
    at: At = None,
    operator: Operator = None,
    state: State = None,
    limit: Limit = 50,
    with_expired: WithExpired = False,
    as_json: AsJson = False,
) -> None:
    """Show live entries in key order.

    Example:  headrace state scan flights --state legs --prefix N14 -n 10

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    reader = open_reader(job, at, with_expired=with_expired)
    print_rows(reader, reader.scan(operator, state, prefix, limit), "entries", as_json=as_json)


def history(
    first: First,
    second: Second = None,
    *,
    at: At = None,
    operator: Operator = None,
    state: State = None,
    as_json: AsJson = False,
) -> None:
    """Show what happened to one key, oldest first: every change, with the checkpoint that made it, and every end of a life.

    So it says why a key is gone: removed, expired and removed, or expired and dropped by a compaction.

    Example:  headrace state history flights N14228

    Exit codes: 0; 2 for an unknown job or checkpoint.
    """
    job, key = job_and_text(first, second)
    reader = open_reader(job, at)
    print_rows(reader, reader.history(key, operator, state), "changes", as_json=as_json)


def expired(
    job: Job = None,
    *,
    at: At = None,
    operator: Operator = None,
    state: State = None,
    ttl: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Suppose this TTL for --state, such as 12h, or off; say what would go. Nothing is changed."),
    ] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Show what TTL has expired and is still stored, and when its bytes are really gone. Values are not shown.

    With --ttl, tell what another TTL would do to a state at once: a dry run, before you change the pipeline.

    Example:  headrace state expired flights
              headrace state expired flights --state legs --ttl 6h

    Exit codes: 0; 2 for an unknown job, checkpoint or state, or a wrong duration; 8 when files are gone.
    """
    from headrace.cli._arrow import without_pandas

    without_pandas()
    from headrace.checkpoint.expired import ExpiredReader
    from headrace.cli._expired import print_expired, print_supposed

    reader = ExpiredReader(load(job), at)
    if ttl is not None:
        print_supposed(reader, operator, state, ttl, as_json=as_json)
        return
    warn(reader.not_declared)
    print_expired(reader, reader.entries(operator, state, limit), as_json=as_json)
