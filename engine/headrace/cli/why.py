"""`headrace why`: what led to what a key has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer

from headrace.cli.arguments import AsOf, At, Branch, JobOrText, Key, OperatorOption, job_and_text, open_job
from headrace.names import counted
from headrace.report import Drawing, Note, Report, Time, facts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.readers.why import Cause, InputRows, Why


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("why")(why)


def why(
    first: JobOrText,
    second: Key = None,
    *,
    field: Annotated[
        Optional[str], typer.Option("--field", metavar="NAME", help="Only changes of this field of a value.")  # noqa: UP045
    ] = None,
    operator: OperatorOption = None,
    sink: Annotated[
        Optional[str], typer.Option("--sink", metavar="NAME", help="Only operators that lead to this sink.")  # noqa: UP045
    ] = None,
    at: At = None,
    as_of: AsOf = None,
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="Checkpoints at most.")] = 10,
    branch: Branch = None,
) -> Report:
    """Say what led to what a key has: changes, newest first, with input rows, timers, calls, edits and restores.

    Rows are looked up in the files that each micro-batch took in, while these are there. What nobody can tell is said.

    Example:  headrace why flights N14228 --field last_seq

    Exit codes: 0, also for a key without changes; 2 for an unknown job, checkpoint, operator, field or sink; 8 when files are gone.
    """
    from headrace.errors import ConfigError
    from headrace.readers.known_keys import how_keys_are_written
    from headrace.readers.why import why as why_of

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of, branch=branch)
    if sink is not None and sink not in job.config.sinks:
        known = ", ".join(sorted(job.config.sinks)) or "none"
        msg = f"job '{job.config.job}' has no sink '{sink}' (it has: {known})"
        raise ConfigError(msg)
    answer = why_of(job, key, operator=operator, field_name=field, sink=sink, limit=limit)
    nothing = f"nothing of this key has changed, as far as is stored. {how_keys_are_written(job)}"
    return Report(
        *facts(job=job.config.job, checkpoint=job.checkpoint.checkpoint_id, key=key),
        *facts(causes=[_as_json(cause) for cause in answer.causes], untold=answer.untold),
        Drawing(lambda width: _lines(answer, width)) if answer.causes else Note(nothing, "warning"),
        *answer.untold,
    )


def _as_json(cause: Cause) -> dict[str, Any]:
    checkpoint = cause.checkpoint
    of_checkpoint = (
        {}
        if checkpoint is None
        else {
            "checkpoint": checkpoint.checkpoint_id,
            "kind": checkpoint.kind.value,
            "committed_at": Time(checkpoint.committed_at),
            "run": checkpoint.run_id,
            "note": checkpoint.note,
        }
    )
    names = ("what", "operator", "state", "namespace", "user_key", "before", "value")
    changes = [{name: change.get(name) for name in names} for change in cause.changes]
    inputs = [{"source": rows.source, "file": rows.file, "rows": rows.rows} for rows in cause.inputs]
    return {**of_checkpoint, "changes": changes, "timers": cause.timers, "calls": cause.calls, "inputs": inputs}


def _lines(answer: Why, width: int) -> Iterator[str]:
    from headrace.cli.output import wrapped

    for cause in answer.causes:
        yield from wrapped(_heading(cause), width)
        for line in _parts(cause):
            yield from wrapped(f"  {line}", width)
        yield ""


def _heading(cause: Cause) -> str:
    checkpoint = cause.checkpoint
    if checkpoint is None:
        return "not by a checkpoint: what has expired meanwhile"
    note = f"{'' if checkpoint.note is None else f': {checkpoint.note}'}"
    return f"checkpoint {checkpoint.checkpoint_id}, {checkpoint.kind.value}, {Time(checkpoint.committed_at)}, run {checkpoint.run_id}{note}"


def _parts(cause: Cause) -> Iterator[str]:
    from headrace.cli.output import shown_key

    for change in cause.changes:
        names = (change["operator"], change["state"], change.get("namespace"), shown_key(change.get("user_key")))
        yield f"{'.'.join(names[:2])}{''.join(f' {name}' for name in names[2:] if name)} {change['what']}: {_difference(change)}"
    yield from cause.timers
    yield from cause.calls
    for rows in cause.inputs:
        yield f"from {rows.source}: {rows.file}{_numbers(rows)}"


def _difference(change: dict[str, Any]) -> str:
    from headrace.cli.output import cut, spaced_json

    before, after = (None if raw is None else msgspec.json.decode(raw) for raw in (change["before"], change["value"]))

    def text(value: Any) -> str:
        return (
            "nothing" if value is None else cut(spaced_json(msgspec.json.encode(value).decode(), times=True), _LONGEST)
        )

    if isinstance(before, dict) and isinstance(after, dict):
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return (
            "; ".join(f"{name} {text(before.get(name))} -> {text(after.get(name))}" for name in names)
            or "the same value"
        )
    return text(after) if before is None else f"{text(before)} -> {text(after)}"


_LONGEST = 200
_SHOWN = 8


def _numbers(rows: InputRows) -> str:
    if rows.rows is None:
        return ""
    some = ", ".join(map(str, rows.rows[:_SHOWN]))
    more = f" and {len(rows.rows) - _SHOWN:,} more" if len(rows.rows) > _SHOWN else ""
    return f", {counted(len(rows.rows), 'row')}: {some}{more}"
