"""`headrace diff`: differences between two checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli.arguments import Branch, Job, Limit, OperatorOption, open_job
from headrace.report import Block, Report, Table, Time, facts

if TYPE_CHECKING:
    import msgspec

    from headrace.log.checkpoint import Checkpoint
    from headrace.readers.difference import ChangedRow, TableDifference
    from headrace.readers.job_at import JobAtCheckpoint


_LONGEST = 200
"""Longest text of a value that is printed, in characters."""

From = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--from", metavar="CHECKPOINT", help="Checkpoint id, savepoint name or time; the one before --to if left out."
    ),
]
To = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--to", metavar="CHECKPOINT", help="Likewise; the last checkpoint if left out."),
]

FromAsOf = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option(
        "--from-as-of", metavar="TIME", help="In place of --from: event time; see --as-of of 'headrace state'."
    ),
]
ToAsOf = Annotated[
    Optional[str],  # noqa: UP045
    typer.Option("--to-as-of", metavar="TIME", help="In place of --to: likewise."),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("diff")(diff)


def diff(
    job: Job = None,
    *,
    start: From = None,
    end: To = None,
    start_as_of: FromAsOf = None,
    end_as_of: ToAsOf = None,
    operator: OperatorOption = None,
    limit: Limit = 20,
    branch: Branch = None,
) -> Report:
    """Show how state and sinks differ between two checkpoints: numbers of rows, then the first rows of each table (-n).

    Rows are added, gone, changed, or renewed (only the times of their TTL differ). Without options it shows what the last
    checkpoint changed. Expired entries count while they are stored.

    Example:  headrace diff flights --from 12 --to 15

    Example:  headrace diff flights --from before_the_fix --operator delays

    Example:  headrace diff flights --from-as-of 2013-01-05 --to-as-of 2013-01-06

    Exit codes: 0, also when nothing differs; 2 for an unknown job, checkpoint or operator; 8 when files are gone.
    """
    from headrace.readers.difference import default_start, differences
    from headrace.readers.job_at import WITH_REQUESTS, WITH_STATE, check_operator

    after = open_job(job, end, end_as_of, branch=branch, with_expired=True)
    check_operator(after, operator, (*WITH_STATE, *WITH_REQUESTS))
    if start is None and start_as_of is None:
        start = str(default_start(after))
    before = open_job(job, start, start_as_of, branch=branch, with_expired=True)
    return of_differences(before, after, list(differences(before, after, operator, limit)))


def of_differences(before: JobAtCheckpoint, after: JobAtCheckpoint, tables: Sequence[TableDifference]) -> Report:
    """Return the report on the differences between two checkpoints: numbers first, then rows."""
    return Report(
        *facts(**plain_differences(before.checkpoint, after.checkpoint, tables)),
        *difference_blocks(before, after, tables),
    )


def difference_blocks(
    before: JobAtCheckpoint, after: JobAtCheckpoint, tables: Sequence[TableDifference]
) -> Iterator[Block | str]:
    """Yield what people read of the differences between two checkpoints."""
    from headrace.readers.difference import Change

    yield f"from checkpoint {_described(before)} to {_described(after)}"
    if not tables:
        yield "nothing differs"
    names = ("table", "operator", "state")
    groups = [
        (
            (
                f"{difference.table} (sink)" if difference.is_sink else difference.table,
                counts.group.get("operator"),
                counts.group.get("state"),
            ),
            counts.rows,
        )
        for difference in tables
        for counts in difference.counts
    ]
    words = [
        (*group, ", ".join(f"{own[change]:,} {change}" for change in Change if own.get(change)))
        for group, own in groups
    ]
    numbers = [(*group, *(own.get(change, 0) for change in Change)) for group, own in groups]
    yield Table.shown((*names, *Change), numbers, narrower=Table.shown((*names, "rows"), words))
    yield from (line for difference in tables for line in _rows_of(difference))


def _described(job: JobAtCheckpoint) -> str:
    checkpoint, branch = job.checkpoint, job.config.branch
    where = "" if branch is None else f"of branch {branch}, "
    return f"{checkpoint.checkpoint_id} ({where}{checkpoint.kind.value}, {Time(checkpoint.committed_at)})"


def _rows_of(difference: TableDifference) -> Iterator[str]:
    """Yield lines on the rows of one table."""
    from headrace.cli.output import cut, shown, typed_row

    total, listed = sum(sum(counts.rows.values()) for counts in difference.counts), len(difference.rows)
    more = "" if total <= listed else f": the first {listed} of {total:,} (more with -n)"
    yield f"{difference.table}{more}"
    for row in difference.rows:
        named = "  ".join(
            f"{column}={cut(shown(value), _LONGEST)}"
            for column, value in typed_row(row.name).items()
            if value is not None
        )
        yield f"  {row.change:<8} {named}"
        yield from (f"    {line}" for line in _values(row))
    yield ""


def _values(row: ChangedRow) -> list[str]:
    """Return a line for each value of a row that was added, is gone, or differs."""
    if row.before is None or row.after is None:
        values = row.before or row.after or {}
        return [f"{column} {_shown_value(value)}" for column, value in values.items() if value is not None]
    lines = []
    for column in row.fields:
        old, new = _fields(row.before[column]), _fields(row.after[column])
        if old is None or new is None:
            lines.append(f"{column}: {_shown_value(row.before[column])} -> {_shown_value(row.after[column])}")
            continue
        differing = [name for name in dict.fromkeys((*old, *new)) if old.get(name) != new.get(name)]
        lines += [f"{column}.{name}: {_raw(old.get(name))} -> {_raw(new.get(name))}" for name in differing]
    return lines


def _fields(value: Any) -> dict[str, msgspec.Raw] | None:
    """Return the fields of a stored JSON object; None for any other value."""
    import msgspec

    if not isinstance(value, str):
        return None
    try:
        return msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return None


def _raw(value: msgspec.Raw | None) -> str:
    return _shown_value(None if value is None else bytes(value).decode())


def _shown_value(value: Any) -> str:
    """Return a value as other commands show it, with the times in stored JSON."""
    from headrace.cli.output import cut, shown, shown_stored

    return "(nothing)" if value is None else cut(shown(shown_stored(value)), _LONGEST)


def plain_differences(before: Checkpoint, after: Checkpoint, tables: Iterable[TableDifference]) -> dict[str, Any]:
    """Return the differences between two checkpoints as plain values."""
    from headrace.cli.output import typed_row

    return {
        "from": before.checkpoint_id,
        "to": after.checkpoint_id,
        "tables": [
            {
                "table": difference.table,
                "is_sink": difference.is_sink,
                "intervals": [[Time(own.start).utc, Time(own.end).utc] for own in difference.intervals],
                "counts": [{**counts.group, **counts.rows} for counts in difference.counts],
                "rows": [
                    {
                        "change": row.change,
                        "name": typed_row(row.name),
                        "before": row.before and typed_row(row.before),
                        "after": row.after and typed_row(row.after),
                        "fields": row.fields,
                    }
                    for row in difference.rows
                ],
            }
            for difference in tables
        ],
    }
