"""`headrace timers`, `sql` and `views`: list timers, query the state tables, and print views for other engines."""

from __future__ import annotations

from typing import Annotated, Optional

import typer

from headrace.cli._arguments import All, AsJson, AsOf, At, Job, Limit, WithExpired, job_and_text
from headrace.cli._state import open_job, print_rows, total_of

Query = Annotated[str, typer.Argument(metavar="JOB", help="Leave it out if there is only one.", show_default=False)]
Second = Annotated[Optional[str], typer.Argument(metavar="QUERY", help="One query, in quotes.", show_default=False)]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("timers")(timers)
    app.command("sql")(sql)
    app.command("views")(views)


def timers(
    job: Job = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    limit: Limit = 50,
    show_all: All = False,
    as_json: AsJson = False,
) -> None:
    """List the registered timers of both domains (event and processing time), the next one first.

    Timers that Headrace sets to clean up expired entries are counted at the end, and listed with --all.

    Example:  headrace timers flights -n 10

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    from headrace.readers.timers import count_internal_timers, count_timers, list_timers

    opened = open_job(job, at, as_of)
    left_out = 0 if show_all else count_internal_timers(opened)
    rows = list_timers(opened, limit, internal=show_all)
    total = total_of(rows, limit, lambda: count_timers(opened, internal=show_all))
    print_rows(opened, rows, "timers", as_json=as_json, total=total, timers_left_out=left_out)


def sql(
    first: Query,
    second: Second = None,
    *,
    at: At = None,
    as_of: AsOf = None,
    with_expired: WithExpired = False,
    as_json: AsJson = False,
) -> None:
    """Query the state tables, in DuckDB's SQL. The query sees only these views.

    Live entries: keyed_state, timers, buffered_requests, async_requests, materializer_history,
    quarantine, and answers where a service keeps them. All changes: the same names with _changelog.
    Also checkpoints, and the sinks by name, as they were at the checkpoint. Columns need no quotes,
    even if SQL reserves the word (at, end).

    Example:  headrace sql flights "select state, count(*) from keyed_state group by 1"

    Exit codes: 0; 2 for an unknown job or checkpoint, or a query that fails; 8 files gone.
    """
    from headrace.cli._output import decoded, print_json, records, show
    from headrace.readers.sql_views import ask_sql

    name, query = job_and_text(first, second)
    job = open_job(name, at, as_of, with_expired=with_expired)
    rows = ask_sql(job, query)
    if as_json:
        checkpoint = job.checkpoint.checkpoint_id
        print_json({"checkpoint": checkpoint, "columns": rows.columns, "rows": decoded(rows)})
    else:
        show(records(rows) if rows.rows else "no rows")


def views(
    job: Job = None,
    *,
    engine: Annotated[str, typer.Option("--for", metavar="ENGINE", help="duckdb, polars or spark.")] = "duckdb",
    table: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--table", help="Only this state table, such as keyed_state. May be repeated."),
    ] = None,
    at: At = None,
    as_of: AsOf = None,
    with_expired: WithExpired = False,
    as_json: AsJson = False,
) -> None:
    """Print views of live entries, without deleted and expired ones, for DuckDB, Polars (Python) or Spark with Delta Lake.

    The text names the files or versions of one checkpoint, and the times of its TTLs. It stays right as long as retention
    keeps the checkpoint's files. Each view has the name of its table: keyed_state, timers, materializer_history and others.

    Example:  headrace views flights > live.sql

    Example:  headrace views flights --for spark --table keyed_state --at 12

    Exit codes: 0; 2 for an unknown job, checkpoint, engine or table; 8 when its files are gone.
    """
    from headrace.cli._output import print_json
    from headrace.errors import ConfigError
    from headrace.readers.live_views import DIALECTS, live_views, table_names

    opened = open_job(job, at, as_of, with_expired=with_expired)
    for word, known, what in [
        (engine, [*DIALECTS], "engine"),
        *((name, table_names(opened), "table") for name in table or ()),
    ]:
        if word not in known:
            msg = f"there is no {what} '{word}' (known: {', '.join(known)})"
            raise ConfigError(msg)
    text = live_views(opened, DIALECTS[engine], table or ())
    if as_json:
        print_json({"checkpoint": opened.checkpoint.checkpoint_id, "for": engine, "text": text})
    else:
        print(text)
