"""Rows that wait or were refused: calls, requests, timers, rows of the quarantine."""

from __future__ import annotations

from headrace.readers.job_at import WITH_QUARANTINE, WITH_REQUESTS, JobAtCheckpoint, check_operator, key_conditions
from headrace.readers.query import Rows
from headrace.readers.sql import ask_sql
from headrace.state.timers import DOMAINS
from headrace.storage.predicate import Condition, NoneOf, OneOf
from headrace.tables.schemas import QUARANTINE, TIMERS
from headrace.tables.view import entries_of

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

_INTERNAL_DOMAINS = tuple(domain.name for domain in DOMAINS.values() if domain.is_internal)
_COUNTED = "operator, count(*) AS number, min({}) AS first"
_COUNTS = (
    f"SELECT 'answers' AS waiting, {_COUNTED.format('NULL::TIMESTAMPTZ')} FROM async_requests WHERE status = 'completed' GROUP BY ALL",  # noqa: S608 - our own names, as below
    f"SELECT 'calls' AS waiting, {_COUNTED.format('next_attempt_at')} FROM async_requests {_NOT_COMPLETED} GROUP BY ALL",  # noqa: S608
    f"SELECT 'held' AS waiting, {_COUNTED.format('NULL::TIMESTAMPTZ')} FROM buffered_requests GROUP BY ALL",  # noqa: S608
    f"SELECT 'timers' AS waiting, {_COUNTED.format('timestamp')} FROM timers WHERE domain NOT IN {_INTERNAL_DOMAINS} GROUP BY ALL",  # noqa: S608
)


def list_retries(job: JobAtCheckpoint, operator: str | None = None, limit: int = 50, *, key: str | None = None) -> Rows:
    """Return the elements of async operators that wait for a service, the next attempt first.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_REQUESTS)
    query = f"{_ASYNC} {_NOT_COMPLETED} ORDER BY next_attempt_at NULLS FIRST, operator, element LIMIT {limit}"
    return ask_sql(job, query, _of(job, operator, key))


def count_retries(job: JobAtCheckpoint, operator: str | None = None, key: str | None = None) -> Rows:
    """Return for each async operator the number of waiting elements, the oldest, the next attempt, and the most attempts."""
    query = (
        "SELECT operator, count(*) AS waiting, min(first_attempt_at) AS since, min(next_attempt_at) AS next_attempt, "  # noqa: S608
        f"max(attempts) AS most_attempts FROM async_requests {_NOT_COMPLETED} GROUP BY 1 ORDER BY 1"
    )
    return ask_sql(job, query, _of(job, operator, key))


def list_requests(
    job: JobAtCheckpoint, operator: str | None = None, limit: int = 50, *, key: str | None = None
) -> Rows:
    """Return elements of async operators, and records that operators hold back. Raises `ConfigError` for an unknown operator."""
    check_operator(job, operator, WITH_REQUESTS)
    query = f"SELECT * FROM ({_ASYNC} UNION ALL {_HELD}) ORDER BY operator, status, key LIMIT {limit}"  # noqa: S608
    return ask_sql(job, query, _of(job, operator, key))


def count_requests(job: JobAtCheckpoint, operator: str | None = None, key: str | None = None) -> int:
    """Count the elements and records that `list_requests` returns without a limit."""
    return sum(job.count_live(name, _of(job, operator, key)) for name in WITH_REQUESTS)


NOT_INTERNAL = NoneOf("domain", _INTERNAL_DOMAINS)
"""Condition for the timers of user code."""


def count_waiting(job: JobAtCheckpoint, operator: str | None = None, key: str | None = None) -> Rows:
    """Return the numbers of all that waits, by what it is and operator, with the time of the first: its next attempt, or when it fires.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, (*WITH_REQUESTS, TIMERS))
    parts = [ask_sql(job, query, _of(job, operator, key)) for query in _COUNTS]
    return Rows(parts[0].columns, sorted((row for part in parts for row in part.rows), key=lambda row: row[:2]))


def list_timers(
    job: JobAtCheckpoint,
    limit: int = 50,
    *,
    internal: bool = False,
    operator: str | None = None,
    key: str | None = None,
) -> Rows:
    """Return registered timers, the next one first; with `internal`, include the engine's own. Raises `ConfigError` for an unknown operator."""
    check_operator(job, operator, (TIMERS,))
    return job.live_rows(
        TIMERS, _of_timers(job, operator, key, internal=internal), "ORDER BY timestamp, operator, key LIMIT ?", [limit]
    )


def count_timers(
    job: JobAtCheckpoint, *, internal: bool = False, operator: str | None = None, key: str | None = None
) -> int:
    """Count the timers that `list_timers` lists without a limit."""
    return job.count_live(TIMERS, _of_timers(job, operator, key, internal=internal))


def count_internal_timers(job: JobAtCheckpoint, operator: str | None = None, key: str | None = None) -> int:
    """Count the engine's own timers: they clean up expired state exactly, and sweep materializers."""
    return job.count_live(TIMERS, [*_of(job, operator, key), OneOf("domain", _INTERNAL_DOMAINS)])


def _of_timers(job: JobAtCheckpoint, operator: str | None, key: str | None, *, internal: bool) -> list[Condition]:
    return [*_of(job, operator, key), *([] if internal else [NOT_INTERNAL])]


def _of(job: JobAtCheckpoint, operator: str | None, key: str | None) -> list[Condition]:
    """Return the conditions for rows of an operator and a key, each None for all."""
    return [*entries_of(operator), *([] if key is None else key_conditions(key, job.checkpoint.max_parallelism))]


def list_quarantine(job: JobAtCheckpoint, limit: int = 50, operator: str | None = None) -> Rows:
    """Return rows of the quarantine, those of the newest checkpoint first, in the order of files and of rows in them.

    Only those of one operator or source, if `operator` names it. Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_QUARANTINE)
    return job.live_rows(
        QUARANTINE,
        entries_of(operator),
        "ORDER BY checkpoint_id DESC, source, file, first_row, position LIMIT ?",
        [limit],
    )


def count_quarantine(job: JobAtCheckpoint, operator: str | None = None) -> int:
    """Count the rows that `list_quarantine` returns without a limit."""
    return job.count_live(QUARANTINE, entries_of(operator))
