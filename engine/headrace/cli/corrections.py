"""`headrace state set`, `delete`, `expire`, `set-timer` and `delete-timer`, `headrace calls`: corrections by hand."""

from __future__ import annotations

import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer

from headrace.cli.arguments import (
    Apply,
    ApplyWhy,
    Branch,
    NamedJob,
    RunId,
    check_word,
    load,
    parsed_milliseconds,
)
from headrace.cli.proposal import Proposal, Shown, corrected, named
from headrace.names import counted
from headrace.report import Report, Stored, Table, Time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from headrace.api.functions import TimeDomain
    from headrace.async_io.pending_call import StoredCall
    from headrace.config import JobConfig
    from headrace.edits.entries.edit import EntryDifference, EntryEffect
    from headrace.edits.load import LoadEffect, LoadEntries
    from headrace.state.timers import TimerChange


def register_corrections(state: typer.Typer) -> None:
    """Add the commands to those of `headrace state`."""
    state.command("set")(set_entry)
    state.command("delete")(delete)
    state.command("expire")(expire)
    state.command("load")(load_state)
    state.command("set-timer")(set_timer)
    state.command("delete-timer")(delete_timer)


def register_calls(app: typer.Typer) -> None:
    """Add the commands."""
    calls = typer.Typer(help="Correct calls that wait for a service.", no_args_is_help=True)
    calls.command("drop")(drop_calls)
    calls.command("retry-now")(retry_calls)
    app.add_typer(calls, name="calls")


EntryKey = Annotated[str, typer.Argument(metavar="KEY", help="Plain text, or JSON.", show_default=False)]
Value = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="VALUE", help="JSON, or plain text for a state of texts.", show_default=False),
]
EntryOperator = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--operator", metavar="NAME", help="Operator of the state; may be left out where only one fits."),
]
EntryState = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--state", metavar="NAME", help="Name of the state; may be left out where only one fits."),
]
Namespace = Annotated[Optional[str], typer.Option("--namespace", metavar="TEXT", help="Namespace, such as a window.")]  # noqa: UP045
MapEntry = Annotated[Optional[str], typer.Option("--entry", metavar="KEY", help="Key within a map, as text or JSON.")]  # noqa: UP045
Fields = Annotated[
    list[str],
    typer.Option(
        "--field",
        metavar="NAME=VALUE",
        help="Change this field of the record, and keep the others.",
        show_default=False,
    ),
]
Create = Annotated[bool, typer.Option("--create", help="Make the entry if the key has none.")]


def set_entry(
    job: NamedJob,
    key: EntryKey,
    value: Value = None,
    *,
    field: Fields = [],  # noqa: B006 - Typer copies it
    operator: EntryOperator = None,
    state: EntryState = None,
    namespace: Namespace = None,
    entry: MapEntry = None,
    create: Create = False,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Set the value of one entry of state. A dry run that shows the difference, unless --apply is given.

    The value has the type that the pipeline declares for the state. Of a list, a JSON array takes the place of all elements. The next
    micro-batch sees the value; its lifetime begins anew. It is one checkpoint; 'headrace restore' undoes it. No sink changes: its rows
    follow when the operator emits for this key again.

    Example:  headrace state set flights N14228 --operator rotation --field legs=3

    Example:  headrace state set flights N14228 7 --operator rotation --state total --apply --why "counted by hand"

    Exit codes: 0; 2 for an unknown job, operator, state or key, a value of another type, or no reason; 3 while a run holds the job; 6
    the code cannot read what is stored; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.entries.changes import SetEntry
    from headrace.edits.entries.edit import EntryName, named_state
    from headrace.errors import ConfigError

    if (value is None) == (not field):
        msg = "give the new value, or --field NAME=VALUE for each field to change. Nothing was changed."
        raise ConfigError(msg)
    config = load(job, branch=branch)
    name = EntryName(*named_state(config, operator, state), key, namespace, entry)
    edit = SetEntry(name, value, fields_of(field), creates=create)
    return corrected(config, edit, _shown_by(config), run_id=run_id, apply=apply, why=why)


def delete(
    job: NamedJob,
    key: EntryKey,
    *,
    operator: EntryOperator = None,
    state: EntryState = None,
    namespace: Namespace = None,
    entry: MapEntry = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Delete what a key has in one state. A dry run that shows the entries, unless --apply is given.

    Timers of the key stay. It is one checkpoint; 'headrace restore' undoes it. To remove a key for good, from all tables and their
    files: 'headrace erase'.

    Example:  headrace state delete flights N14228 --operator rotation --state legs

    Exit codes: 0; 2 for an unknown job, operator or state, a key without such entries, or no reason; 3 while a run holds the job; 8
    storage; 10 job and sink disagree.
    """
    from headrace.edits.entries.changes import DeleteEntries
    from headrace.edits.entries.edit import EntryName, named_state

    config = load(job, branch=branch)
    name = EntryName(*named_state(config, operator, state), key, namespace, entry)
    return corrected(config, DeleteEntries(name), _shown_by(config), run_id=run_id, apply=apply, why=why)


def expire(
    job: NamedJob,
    key: EntryKey,
    *,
    operator: EntryOperator = None,
    state: EntryState = None,
    namespace: Namespace = None,
    entry: MapEntry = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """End the lifetime of what a key has in one state, as if its TTL had passed. A dry run, unless --apply is given.

    It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace state expire flights N14228 --operator rotation --state legs

    Exit codes: 0; 2 for an unknown job, operator or state, one without a TTL, a key without such entries, or no reason; 3 while a run
    holds the job; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.entries.changes import ExpireEntries
    from headrace.edits.entries.edit import EntryName, named_state

    config = load(job, branch=branch)
    name = EntryName(*named_state(config, operator, state), key, namespace, entry)
    return corrected(config, ExpireEntries(name), _shown_by(config), run_id=run_id, apply=apply, why=why)


def load_state(
    job: NamedJob,
    *,
    source: Annotated[
        str, typer.Option("--from", metavar="PATH", help="Parquet file, folder of them, or Delta table.")
    ],
    operator: EntryOperator = None,
    state: EntryState = None,
    key: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option(
            "--key", metavar="COLUMN", help="Column of the key; once for each part. By default the key's fields."
        ),
    ] = None,
    value: Annotated[
        str, typer.Option("--value", metavar="COLUMN", help="Column of a value that is no record.")
    ] = "value",
    entry: Annotated[str, typer.Option("--entry", metavar="COLUMN", help="Column of the key within a map.")] = "entry",
    time: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--time", metavar="COLUMN", help="Column of the event time, from which a lifetime counts."),
    ] = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Set one state of many keys from a table. A dry run that checks all rows, unless --apply is given.

    Key and value have the types that the pipeline declares; the fields of a record are columns of their own. Keys that are there get
    the new value, others stay. The job may be new: then its first run goes on from what was loaded. It is one checkpoint; 'headrace
    restore' undoes it.

    Example:  headrace state load flights --operator totals --state total --from lake/totals --key tail --value cents

    Exit codes: 0; 2 for an unknown job, operator or state, a missing column, rows that do not fit, a key that comes twice, or no
    reason; 3 while a run holds the job; 6 the code cannot read what is stored; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.entries.edit import named_state
    from headrace.edits.load import LoadColumns, LoadEntries

    config = load(job, branch=branch)
    name = named_state(config, operator, state)
    columns = LoadColumns(tuple(key or ()), value, entry, time)
    edit = LoadEntries(*name, _place(source), columns)
    return corrected(config, edit, partial(_loaded, edit), run_id=run_id, apply=apply, why=why)


def _loaded(edit: LoadEntries, effect: LoadEffect) -> Shown:
    from headrace.cli.output import cut, spaced_json

    samples = [(Stored(key, is_key=True), cut(spaced_json(raw, times=True), _LONGEST)) for key, raw in effect.samples]
    return Shown(
        {"operator": edit.operator, "state": edit.state, "rows": effect.rows},
        (
            Table.shown(("key", "value"), samples),
            f"{counted(effect.rows, 'row')} in all." if effect.rows > len(effect.samples) else None,
        ),
    )


def _place(path: str) -> str:
    from headrace.errors import ConfigError

    if not path:
        msg = "--from names no place. Nothing was changed."
        raise ConfigError(msg)
    return path if "://" in path else str(Path(path).absolute())


def fields_of(given: list[str]) -> dict[str, str]:
    """Return the values of --field by name. Raises `ConfigError` where one has no name, or a name comes twice."""
    from headrace.errors import ConfigError

    fields = dict(field.partition("=")[::2] for field in given if field.find("=") > 0)
    if len(fields) < len(given):
        msg = "--field takes NAME=VALUE, and each name once. Nothing was changed."
        raise ConfigError(msg)
    return fields


def _shown_by(config: JobConfig) -> Callable[[EntryEffect], Shown]:
    def shown(effect: EntryEffect) -> Shown:
        return Shown(
            {
                "operator": effect.name.operator,
                "state": effect.name.state,
                "differences": [difference._asdict() for difference in effect.differences],
            },
            (
                Table.shown(("entry", "field", "before", "after"), _difference_lines(effect.differences)),
                *_what_follows(config, effect),
            ),
        )

    return shown


def _difference_lines(differences: Sequence[EntryDifference]) -> Iterator[tuple[str, ...]]:
    """Yield lines of a table: a line for each field of a record that differs, else one for the value."""
    from headrace.cli.output import cut, shown_key, spaced_json

    def text(value: Any) -> str:
        return "" if value is None else cut(spaced_json(msgspec.json.encode(value).decode(), times=True), _LONGEST)

    for entry in differences:
        label = " ".join(filter(None, (shown_key(entry.key), entry.namespace, shown_key(entry.user_key))))
        before, after = (None if raw is None else msgspec.json.decode(raw) for raw in (entry.before, entry.after))
        if isinstance(before, dict) and isinstance(after, dict):
            names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
            yield from ((label, name, text(before.get(name)), text(after.get(name))) for name in names)
        else:
            yield label, "", text(before), text(after)


def _what_follows(config: JobConfig, effect: EntryEffect) -> Iterator[str]:
    """Yield what the edit leaves as it is: sinks, and timers of the key."""
    from headrace.errors import HeadraceError
    from headrace.plan.loader import plan_of

    try:
        plan = plan_of(config.code)
        sinks = sorted(plan.sinks_behind(effect.name.operator)) if effect.name.operator in plan.ranks() else []
    except HeadraceError:
        sinks = []
    if sinks:
        yield (
            f"No sink changes. Rows of {', '.join(sinks)} follow when '{effect.name.operator}' emits for this key again: with its next "
            "record or timer."
        )
    if effect.timers_left:
        yield f"{counted(effect.timers_left, 'timer of the key stays', 'timers of the key stay')}: headrace waiting {named(config)} --timers --key {shlex.quote(effect.name.key)}"


_LONGEST = 200
"""Longest value that is printed, in characters."""


Domain = Annotated[
    str, typer.Option("--domain", metavar="DOMAIN", help="Clock of the timer: event_time or processing_time.")
]
TimerOperator = Annotated[str, typer.Option("--operator", metavar="NAME", help="Operator whose timer it is.")]
TimerNamespace = Annotated[
    Optional[str], typer.Option("--namespace", metavar="TEXT", help="Namespace, such as a window.")  # noqa: UP045
]


def set_timer(
    job: NamedJob,
    key: EntryKey,
    time: Annotated[str, typer.Argument(metavar="TIME", help="As in 2026-01-10T05:00Z.", show_default=False)],
    *,
    operator: TimerOperator,
    domain: Domain = "event_time",
    namespace: TimerNamespace = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Set a timer of a key: its operator's on_timer() is called when the clock reaches the time. A dry run, unless --apply is given.

    It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace state set-timer flights N14228 2013-01-10T05:00Z --operator rotation

    Exit codes: 0; 2 for an unknown job, operator or key, a time that has passed, or no reason; 3 while a run holds the job; 8 storage;
    10 job and sink disagree.
    """
    from headrace.edits.waiting import SetTimer, TimerName

    config = load(job, branch=branch)
    name = TimerName(operator, key, parsed_milliseconds(time), _domain(domain), namespace)
    return corrected(config, SetTimer(name), partial(_timers, operator), run_id=run_id, apply=apply, why=why)


def delete_timer(
    job: NamedJob,
    key: EntryKey,
    *,
    operator: TimerOperator,
    time: Annotated[Optional[str], typer.Option("--time", metavar="TIME", help="Only the timer of this time.")] = None,  # noqa: UP045
    domain: Domain = "event_time",
    namespace: TimerNamespace = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Delete timers of a key. A dry run that lists them, unless --apply is given.

    It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace state delete-timer flights N14228 --operator rotation

    Exit codes: 0; 2 for an unknown job, a key without such timers, or no reason; 3 while a run holds the job; 8 storage; 10 job and
    sink disagree.
    """
    from headrace.edits.waiting import DeleteTimers, TimerName

    config = load(job, branch=branch)
    at = None if time is None else parsed_milliseconds(time)
    name = TimerName(operator, key, at, _domain(domain), namespace)
    return corrected(config, DeleteTimers(name), partial(_timers, operator), run_id=run_id, apply=apply, why=why)


def _domain(text: str) -> TimeDomain:
    from headrace.api.functions import TimeDomain

    check_word("--domain", text, [str(domain) for domain in TimeDomain])
    return TimeDomain(text)


def _timers(operator: str, changes: Sequence[TimerChange]) -> Shown:
    rows = [
        (
            Stored(timer.key_json.decode(), is_key=True),
            timer.domain,
            Time(timer.timestamp),
            timer.namespace or None,
            "set" if is_set else "deleted",
        )
        for timer, is_set in changes
    ]
    columns = ("key", "domain", "time", "namespace", "change")
    return Shown({"operator": operator}, [Table.shown(columns, rows)])


CallKey = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--key", metavar="KEY", help="Only calls of this key, as plain text or JSON."),
]
CallOperator = Annotated[str, typer.Option("--operator", metavar="NAME", help="Async operator that makes the calls.")]


def drop_calls(
    job: NamedJob,
    *,
    operator: CallOperator,
    key: CallKey = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Give up calls that wait for a service. A dry run that counts them, unless --apply is given.

    They go to the quarantine, from where 'headrace quarantine JOB --requeue' brings them back. What waits behind them goes on with the
    next run. It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace calls drop flights --operator weather --apply --why "the station is gone"

    Exit codes: 0; 2 for an unknown job, an operator without waiting calls, or no reason; 3 while a run holds the job; 8 storage; 10 job
    and sink disagree.
    """
    from headrace.edits.waiting import CallName, DropCalls

    edit = DropCalls(CallName(operator, key))
    return corrected(load(job, branch=branch), edit, partial(_calls, operator), run_id=run_id, apply=apply, why=why)


def retry_calls(
    job: NamedJob,
    *,
    operator: CallOperator,
    key: CallKey = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Make calls that wait for their next attempt due now. A dry run that counts them, unless --apply is given.

    The next run makes them. They keep their number of attempts. It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace calls retry-now flights --operator weather --apply --why "the service is back"

    Exit codes: 0; 2 for an unknown job, an operator without waiting calls, or no reason; 3 while a run holds the job; 8 storage; 10 job
    and sink disagree.
    """
    from headrace.edits.waiting import CallName, RetryCalls

    edit = RetryCalls(CallName(operator, key))
    return corrected(load(job, branch=branch), edit, partial(_calls, operator), run_id=run_id, apply=apply, why=why)


def _calls(operator: str, calls: Sequence[StoredCall]) -> Shown:
    columns = ("key", "status", "attempts", "next attempt", "last error")
    rows = [
        (
            Stored(call.key, is_key=True),
            call.status,
            call.attempts,
            None if call.next_attempt_at is None else Time(call.next_attempt_at),
            call.last_error,
        )
        for call in calls[:_SHOWN]
    ]
    more = f"{counted(len(calls), 'call')} in all." if len(calls) > _SHOWN else None
    return Shown({"operator": operator, "calls": len(calls)}, (Table.shown(columns, rows), more))


_SHOWN = 20
