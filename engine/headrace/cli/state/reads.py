"""Commands `headrace state list`, `get`, `scan` and `history`: keyed state at any checkpoint."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Optional

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
    job_and_text,
    open_job,
)
from headrace.cli.corrections import register_corrections
from headrace.cli.state.expired import expired
from headrace.cli.state.rows import of_rows, total_of
from headrace.cli.state_edits import register_state_edits
from headrace.names import counted
from headrace.report import Note, Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.readers.query import Rows


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
    return of_rows(opened, states, "states", shown=shown, timers_left_out=left_out, spare=_SPARE)


_SPARE = ("last_change", "type", "keys")
"""Columns that a list of states does without on a narrow terminal, the first ones first."""


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
    prefix: Annotated[Optional[str], typer.Option(metavar="TEXT", help="Only keys that begin with this.")] = None,  # noqa: UP045
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
