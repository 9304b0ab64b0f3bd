"""`headrace lineage`: the columns of sources that each column of a sink comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from headrace.cli.arguments import Job, load
from headrace.errors import ConfigError
from headrace.names import did_you_mean
from headrace.report import Block, Report, Table, facts

if TYPE_CHECKING:
    from headrace.plan.column_lineage import JobColumnLineage, Origin


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lineage")(lineage)


_ROWS = "(rows)"


def lineage(
    job: Job = None,
    column: Annotated[
        Optional[str],  # noqa: UP045 - Typer
        typer.Option("--column", metavar="SINK.COLUMN", help="Only this column of a sink."),
    ] = None,
) -> Report:
    """Show which columns of sources each column of a sink comes from.

    Columns have the names of their files and tables. The line (rows) has the columns that decide which rows a sink has: by filters,
    keys, order and windows. A function that declares no reads= may read every column: the line says "maybe".

    Example:  headrace lineage flights --column hourly_departures.departures

    Exit codes: 0; 2 when the job or its pipeline is wrong, or there is no such column.
    """
    from headrace.commit.run_check import checked_plan
    from headrace.plan.column_lineage import job_lineage

    config = load(job)
    checked_plan(config)
    known = job_lineage(config.code, config.appended)
    wanted = None if column is None else _column(column, known)
    sinks = [*_sinks(known, wanted)]
    blocks: list[Block | str] = []
    for sink in sinks:
        blocks += [f"sink {sink['sink']}", Table.shown(("column", "from", "how"), [*_rows(sink, known)])]
    return Report(*facts(job=config.job, sinks=sinks), *blocks)


def _column(given: str, known: JobColumnLineage) -> tuple[str, str]:
    """Return a sink and its column. Raises `ConfigError` for others."""
    names = [f"{sink}.{column}" for sink, of_sink in known.sinks.items() for column in of_sink.columns]
    if given not in names:
        msg = f"--column names a column of a sink, as in --column {names[0]}: there is no '{given}'{did_you_mean(given, names)}"
        raise ConfigError(msg)
    sink, _, column = given.partition(".")
    return sink, column


def _sinks(known: JobColumnLineage, wanted: tuple[str, str] | None) -> Iterator[dict[str, Any]]:
    """Yield the sinks for machines, or only one with one column."""
    for sink, of_sink in known.sinks.items():
        if wanted is None or sink == wanted[0]:
            columns = [name for name in of_sink.columns if wanted is None or name == wanted[1]]
            yield {
                "sink": sink,
                "columns": [{"column": name, "from": _origins(of_sink.columns[name])} for name in columns],
                "rows": _origins(of_sink.rows),
            }


def _origins(origins: Iterable[Origin]) -> list[dict[str, Any]]:
    """Return origins for machines; those that are not sure only where no sure one says the same."""
    by_place = {origin[:4]: origin for origin in sorted(origins, key=lambda origin: (*_order(origin), origin.is_sure))}
    return [
        {
            "source": origin.source,
            "column": origin.column,
            "kind": origin.kind.value,
            "function": origin.by or None,
            "is_sure": origin.is_sure,
        }
        for origin in by_place.values()
    ]


def _order(origin: Origin) -> tuple[bool, str, str, str, str]:
    return not origin.kind.is_direct, origin.kind.value, origin.by, origin.source, origin.column


def _rows(sink: dict[str, Any], known: JobColumnLineage) -> Iterator[tuple[str, ...]]:
    """Yield the rows for people: columns that are read in the same way beside each other."""
    for column in (*sink["columns"], {"column": _ROWS, "from": sink["rows"]}):
        shown = column["column"]
        for how, origins in groupby(column["from"], key=_how):
            yield shown, _listed([*origins], known), how
            shown = ""
        if shown:
            yield shown, "", "no column"


def _how(origin: dict[str, Any]) -> str:
    words = [origin["function"] or "", "" if origin["is_sure"] else "maybe"]
    by = ", ".join(filter(None, words))
    return f"{origin['kind']} ({by})" if by else str(origin["kind"])


def _listed(origins: list[dict[str, Any]], known: JobColumnLineage) -> str:
    """Return the columns for people; of a source whose columns are all there, only its name."""
    parts = []
    for source, columns in groupby(origins, key=lambda origin: origin["source"]):
        names = [origin["column"] for origin in columns]
        is_whole = len(names) == len(known.sources[source]) > 1
        parts.append(f"{source}: {'all columns' if is_whole else ', '.join(names)}")
    return "; ".join(parts)
