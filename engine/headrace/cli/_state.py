"""`headrace state ...`: read keyed state at any checkpoint. `_operator_state` has the commands that change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli import _operator_state
from headrace.cli._arguments import (
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
    job_and_text,
    load,
)
from headrace.names import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.commit.checkpoint import Checkpoint
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint
    from headrace.readers.query import Rows

Second = Annotated[Optional[str], typer.Argument(metavar="KEY", help="Plain text, or JSON.", show_default=False)]  # noqa: UP045


def register(app: typer.Typer) -> None:
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
    _operator_state.register(state)
    app.add_typer(state, name="state")


def open_job(
    name: str | None, at: str | None, as_of: str | None = None, *, with_expired: bool = False
) -> JobAtCheckpoint:
    """Open a job's state at a checkpoint, or as of an event time."""
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint

    job = JobAtCheckpoint(load(name), at, as_of=as_of, with_expired=with_expired)
    warn(job.ttl.not_declared)
    if as_of is not None:
        warn(_as_of_text(job.checkpoint))
    return job


def _as_of_text(checkpoint: Checkpoint) -> str:
    """Return which checkpoint --as-of has found."""
    from headrace.sources.interval import moment_text

    return f"this is checkpoint {checkpoint.checkpoint_id}, whose watermark is {moment_text(checkpoint.watermark)}"


def warn(what: str | None) -> None:
    """Print a note on stderr, if there is one."""
    if what is not None:
        typer.echo(f"note: {what}", err=True)


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
    from headrace.cli._output import cards, decoded, print_json, records, show

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
    from headrace.readers.state_list import list_states as states_of
    from headrace.readers.timers import count_internal_timers

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

    Exit codes: 0, also without entries; 2 for an unknown job, checkpoint or operator; 8 files gone.
    """
    from headrace.readers import keyed_state

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, with_expired=with_expired)
    entries = keyed_state.get(job, key, operator, state)
    hidden = 0 if with_expired else keyed_state.count_expired(job, key, operator, state)
    print_rows(job, entries, "entries", as_json=as_json)
    _warn_of_unknown(job, state)
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

    Exit codes: 0; 2 for an unknown job, checkpoint or operator; 8 when its files are gone.
    """
    from headrace.readers import keyed_state

    opened = open_job(job, at, as_of, with_expired=with_expired)
    rows = keyed_state.scan(opened, operator, state, prefix, limit)
    total = total_of(rows, limit, lambda: keyed_state.count_scanned(opened, operator, state, prefix))
    print_rows(opened, rows, "entries", as_json=as_json, total=total)
    _warn_of_unknown(opened, state)


def _warn_of_unknown(job: JobAtCheckpoint, state: str | None) -> None:
    """Warn of a state that no operator had at the checkpoint, if its states are recorded."""
    if state is None:
        return
    known = {name for states in (job.log.state_schemas(job.checkpoint) or {}).values() for name in states}
    if known and state not in known:
        warn(
            f"no operator has a state '{state}' at checkpoint {job.checkpoint.checkpoint_id}. There are: {', '.join(sorted(known))}"
        )


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

    Exit codes: 0; 2 for an unknown job, checkpoint or operator.
    """
    from headrace.readers.key_history import key_history

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
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    from headrace.cli._expired import print_expired, print_supposed
    from headrace.readers.expired import expired_entries
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint

    opened = JobAtCheckpoint(load(job), at, as_of=as_of)
    if as_of is not None:
        warn(_as_of_text(opened.checkpoint))
    if ttl is not None:
        print_supposed(opened, operator, state, ttl, as_json=as_json)
        return
    warn(opened.ttl.not_declared)
    print_expired(opened, expired_entries(opened, operator, state, limit), as_json=as_json)
