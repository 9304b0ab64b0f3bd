"""`headrace retries` and `requests`: what was taken in and is not done, and what it waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from headrace.cli._arguments import AsJson, At, Job, Limit, Operator
from headrace.cli._state import open_reader, print_rows

if TYPE_CHECKING:
    from headrace.checkpoint.reader import StateReader

_RECORD = "coalesce(json_extract(element, '$.value')::VARCHAR, element)"
_ASYNC = f"""
    SELECT operator, key, status, attempts, first_attempt_at AS since, next_attempt_at AS next_attempt, last_error,
           cost_ms, {_RECORD} AS value
    FROM async_requests
"""  # noqa: S608 - no values in it
_HELD = """
    SELECT operator, key, 'held' AS status, NULL AS attempts, NULL AS since, NULL AS next_attempt, NULL AS last_error,
           NULL AS cost_ms, coalesce(json_extract(record, '$.value')::VARCHAR, record) AS value
    FROM buffered_requests
"""


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("retries")(retries)
    app.command("requests")(requests)


def retries(
    job: Job = None, *, operator: Operator = None, at: At = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List who waits for a service: since when, how often it was called, the last error, the next attempt.

    The next attempt first. A run takes up what is due; in between nothing is called. In ordered mode all that comes after an
    element that waits is held as well: headrace requests JOB.

    Example:  headrace retries flights -n 10

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    reader = open_reader(job, at)
    where = f"WHERE status <> 'completed' {_only(operator)}"
    rows = reader.sql(f"{_ASYNC} {where} ORDER BY next_attempt_at NULLS FIRST, operator, element LIMIT {limit}")
    print_rows(reader, rows, "waiting", as_json=as_json)
    if not as_json:
        _more(reader, where, len(rows.rows))


def requests(
    job: Job = None, *, operator: Operator = None, at: At = None, limit: Limit = 50, as_json: AsJson = False
) -> None:
    """List all that was taken in and is not done: elements of async operators, and records that operators hold.

    Status: `pending`, no call has failed; `waiting for retry`; `completed`, it has its results and waits for an earlier one;
    `held`, it waits in front of a keyed operator.

    Example:  headrace requests flights

    Exit codes: 0; 2 for an unknown job or checkpoint; 8 when its files are gone.
    """
    reader = open_reader(job, at)
    rows = reader.sql(
        f"SELECT * FROM ({_ASYNC} UNION ALL {_HELD}) WHERE true {_only(operator)} "  # noqa: S608 - a literal
        f"ORDER BY operator, status, key LIMIT {limit}"
    )
    print_rows(reader, rows, "requests", as_json=as_json)


def _only(operator: str | None) -> str:
    from headrace.checkpoint._query import literal

    return "" if operator is None else f"AND operator = {literal(operator)}"


def _more(reader: StateReader, where: str, listed: int) -> None:
    from headrace.cli._output import records, show

    if listed:
        summary = (
            "SELECT operator, count(*) AS waiting, min(first_attempt_at) AS since, min(next_attempt_at) AS next_attempt, "  # noqa: S608
            f"max(attempts) AS most_attempts FROM async_requests {where} GROUP BY 1 ORDER BY 1"
        )
        show(records(reader.sql(summary)))
