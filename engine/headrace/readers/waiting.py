"""`headrace retries` and `requests`: elements that were taken in and are not finished."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.known_operators import WITH_REQUESTS, check_operator
from headrace.readers.query import Rows
from headrace.readers.sql_views import ask_sql
from headrace.tables.predicate import entries_of

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
_NOT_COMPLETED = "WHERE status <> 'completed'"


def list_retries(job: JobAtCheckpoint, operator: str | None = None, limit: int = 50) -> Rows:
    """Return the elements of async operators that wait for a service, the next attempt first.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_REQUESTS)
    query = f"{_ASYNC} {_NOT_COMPLETED} ORDER BY next_attempt_at NULLS FIRST, operator, element LIMIT {limit}"
    return ask_sql(job, query, entries_of(operator))


def count_retries(job: JobAtCheckpoint, operator: str | None = None) -> Rows:
    """Return for each async operator the number of waiting elements, the oldest, the next attempt, and the most attempts."""
    query = (
        "SELECT operator, count(*) AS waiting, min(first_attempt_at) AS since, min(next_attempt_at) AS next_attempt, "  # noqa: S608
        f"max(attempts) AS most_attempts FROM async_requests {_NOT_COMPLETED} GROUP BY 1 ORDER BY 1"
    )
    return ask_sql(job, query, entries_of(operator))


def list_requests(job: JobAtCheckpoint, operator: str | None = None, limit: int = 50) -> Rows:
    """Return elements of async operators, and records that operators hold back. Raises `ConfigError` for an unknown operator."""
    check_operator(job, operator, WITH_REQUESTS)
    query = f"SELECT * FROM ({_ASYNC} UNION ALL {_HELD}) ORDER BY operator, status, key LIMIT {limit}"  # noqa: S608
    return ask_sql(job, query, entries_of(operator))


def count_requests(job: JobAtCheckpoint, operator: str | None = None) -> int:
    """Count the elements and records that `list_requests` returns without a limit."""
    return sum(job.count_live(name, entries_of(operator)) for name in WITH_REQUESTS)
