"""`headrace retries` and `requests`: list waiting elements and held records."""

from __future__ import annotations

import typer

from headrace.cli._arguments import AsJson, AsOf, At, Job, Limit, OperatorOption
from headrace.cli._state import open_job, print_rows, total_of


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("retries")(retries)
    app.command("requests")(requests)


def retries(
    job: Job = None,
    *,
    operator: OperatorOption = None,
    at: At = None,
    as_of: AsOf = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List elements that wait for a service: since when, the number of calls, the last error, the next attempt.

    The next attempt comes first. A run calls for the elements that are due; between runs nothing is called. In ordered mode,
    records after a waiting element are held as well: headrace requests JOB.

    Example:  headrace retries flights -n 10

    Exit codes: 0; 2 for an unknown job, checkpoint or operator; 8 when its files are gone.
    """
    from headrace.readers.waiting import count_retries, list_retries

    opened = open_job(job, at, as_of)
    rows = list_retries(opened, operator, limit)
    counts = count_retries(opened, operator)
    total = sum(row["waiting"] for row in counts.dicts())
    print_rows(opened, rows, "waiting", as_json=as_json, total=total)
    if rows.rows and not as_json:
        from headrace.cli._output import records, show

        show(records(counts))


def requests(
    job: Job = None,
    *,
    operator: OperatorOption = None,
    at: At = None,
    as_of: AsOf = None,
    limit: Limit = 50,
    as_json: AsJson = False,
) -> None:
    """List unfinished input: elements of async operators, and records that operators hold.

    Status: `pending`, no call has failed; `waiting for retry`; `completed`, it has its results and waits for an earlier one;
    `held`, it waits in front of a keyed operator.

    Example:  headrace requests flights

    Exit codes: 0; 2 for an unknown job, checkpoint or operator; 8 when its files are gone.
    """
    from headrace.readers.waiting import count_requests, list_requests

    opened = open_job(job, at, as_of)
    rows = list_requests(opened, operator, limit)
    total = total_of(rows, limit, lambda: count_requests(opened, operator))
    print_rows(opened, rows, "requests", as_json=as_json, total=total)
