"""`headrace history retract`: take one row out of the history behind a row of an upserted table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Optional

import typer

from headrace.cli.arguments import Apply, ApplyWhy, Branch, NamedJob, RunId, load
from headrace.cli.corrections import EntryKey, fields_of
from headrace.cli.proposal import Proposal, Shown, corrected
from headrace.report import Block, Report, Stored, Table, Time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from headrace.edits.retract import HistoryLine, Retraction


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("history retract")(retract)


def retract(
    job: NamedJob,
    key: EntryKey,
    *,
    row: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--row", metavar="NUMBER", help="Number of the row, as 'headrace history' shows it."),
    ] = None,
    field: Annotated[
        list[str],
        typer.Option("--field", metavar="NAME=VALUE", help="The row that has this value.", show_default=False),
    ] = [],  # noqa: B006 - Typer copies it
    sink: Annotated[
        Optional[str], typer.Option("--sink", metavar="NAME", help="Sink that shows the key's row.")  # noqa: UP045
    ] = None,
    operator: Annotated[
        Optional[str], typer.Option("--operator", metavar="NAME", help="Materializer of the history.")  # noqa: UP045
    ] = None,
    apply: Apply = False,
    why: ApplyWhy = None,
    run_id: RunId = None,
    branch: Branch = None,
) -> Report | Proposal:
    """Take one row out of a key's history, as if its retraction had come. A dry run that shows both, unless --apply is given.

    If the sink shows this row, it gets the row before it, or loses the key, with the same checkpoint. A retraction of the row that
    comes later matches nothing. --operator and --sink may be left out where there is one materializer, and --row where there is one
    row. It is one checkpoint; 'headrace restore' undoes it.

    Example:  headrace history retract flights 2013-01-01-UA1545-EWR --row 2

    Exit codes: 0; 2 for an unknown job, operator or sink, a key without a history, a row that is none of it or one of several, or no
    reason; 3 while a run holds the job; 6 the code cannot read what is stored; 8 storage; 10 job and sink disagree.
    """
    from headrace.edits.retract import RetractRow, RowName, materializer_of

    config = load(job, branch=branch)
    name = RowName(materializer_of(config, operator, sink), key, row, fields_of(field))
    return corrected(config, RetractRow(name), _shown, run_id=run_id, apply=apply, why=why)


def _shown(effect: Retraction) -> Shown:
    lines = [
        {"number": line.number, "kind": line.kind, "inserted_at": Time(line.inserted_at), "row": Stored(line.row)}
        for line in effect.lines
    ]
    changes = [{"kind": output.kind.symbol, "row": Stored(output.raw.decode())} for output in effect.outputs]
    return Shown(
        {
            "operator": effect.operator,
            "sink": effect.sink,
            "key": Stored(effect.key, is_key=True),
            "row": effect.number,
            "ended": [line.number for line in effect.lines if line.has_ended],
            "history": lines,
            "sink_changes": changes,
        },
        (_history(effect), *_of_sink(effect)),
    )


def _history(effect: Retraction) -> Table:
    shown_after = _shown_after(effect)
    lines = [
        (
            _mark(line, shown_after),
            line.number,
            line.kind,
            Time(line.inserted_at),
            _text(line.row),
        )
        for line in _some(effect)
    ]
    return Table.shown(("", "number", "kind", "inserted at", "row"), lines)


_SHOWN = 20


def _some(effect: Retraction) -> Sequence[HistoryLine]:
    """Return the last rows, and the one that goes."""
    first = max(0, len(effect.lines) - _SHOWN)
    return [line for place, line in enumerate(effect.lines) if place >= first or line.is_taken_out]


def _shown_after(effect: Retraction) -> int | None:
    left = [line.number for line in effect.lines if not (line.is_taken_out or line.has_ended)]
    return None if not left else left[0 if effect.shows_first else -1]


def _mark(line: HistoryLine, shown_after: int | None) -> str:
    if line.is_taken_out:
        return "goes"
    if line.has_ended:
        return "has ended"
    return "*" if line.number == shown_after else ""


def _of_sink(effect: Retraction) -> Iterator[Block | str]:
    """Yield what becomes of the sink."""
    if effect.outputs:
        yield f"Sink '{effect.sink}' changes with it:"
        yield Table.shown(
            ("kind", "row"), [(output.kind.symbol, _text(output.raw.decode())) for output in effect.outputs]
        )
    elif effect.may_stay:
        yield (
            f"Sink '{effect.sink}' stays as it is. If it shows the row that goes, updated in place since, it shows that until the key changes "
            "next."
        )
    else:
        yield f"Sink '{effect.sink}' stays as it is: it shows another row of the key."


def _text(raw: str) -> str:
    from headrace.cli.output import cut, spaced_json

    return cut(spaced_json(raw, times=True), _LONGEST)


_LONGEST = 500
"""Longest row that is printed, in characters."""
