"""`headrace history`: show the history of rows behind a row of an upserted table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec
import typer

from headrace.cli._arguments import AsJson, AsOf, At, Limit, OperatorOption, job_and_text, the_job
from headrace.cli._state import Second, open_job
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.api import UpsertMaterialize
    from headrace.cli._table import Table
    from headrace.readers.job_at_checkpoint import JobAtCheckpoint
    from headrace.readers.query import Rows

First = Annotated[
    Optional[str],  # noqa: UP045
    typer.Argument(metavar="JOB", help="Leave it out if there is only one.", show_default=False),
]
_SHOWN = "shown"
_LONGEST = 500
"""Longest text of a field or row that is printed, in characters."""

_MOST_FIELDS = 4
"""Highest number of differing fields in a table. Rows that differ in more are printed one below the other."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("history")(history)


def history(
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
    from headrace.readers.materialized import rows_of_key

    name, key = job_and_text(first, second)
    job = open_job(name, at, as_of)
    rows = rows_of_key(job, key, operator)
    checkpoint = job.checkpoint.checkpoint_id
    if as_json:
        from headrace.cli._output import decoded, print_json

        print_json({"checkpoint": checkpoint, "rows": decoded(rows)})
        return
    _show(name, key, rows, checkpoint, limit)


def _largest(job: JobAtCheckpoint, operator: str | None, limit: int, *, as_json: bool) -> None:
    from headrace.cli._output import decoded, print_json, records, show
    from headrace.materializer.upsert_materializer import LONG_HISTORY
    from headrace.readers.materialized import largest_histories

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
    from headrace.cli._output import show

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
    from headrace.cli._output import table

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
    from headrace.cli._output import cut, spaced_json

    return cut(spaced_json(bytes(raw).decode(), times=True), _LONGEST)


def _differing(rows: list[dict[str, msgspec.Raw]]) -> list[str]:
    """Return the fields in which rows differ."""
    names = dict.fromkeys(name for row in rows for name in row)
    return [name for name in names if len({bytes(row.get(name, b"")) for row in rows}) > 1]


def _operators(job: str) -> dict[str, UpsertMaterialize]:
    """Return the materializers of the job's pipeline; none if it cannot be imported, since rows can be read without it."""
    from headrace.api import UpsertMaterialize
    from headrace.cli._arguments import load
    from headrace.errors import ConfigError
    from headrace.plan.pipelines import plan_of

    try:
        keyed = plan_of(load(job).code).keyed
    except (ConfigError, ImportError):
        return {}
    return {stage.operator.name: stage.operator for stage in keyed if isinstance(stage.operator, UpsertMaterialize)}
