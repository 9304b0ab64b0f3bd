"""`headrace history`: the rows that a materializer keeps for each primary key."""

from __future__ import annotations

from headrace.commit.state_schemas import HISTORY_STATE
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.key_conditions import key_conditions
from headrace.readers.known_operators import WITH_STATE, check_operator
from headrace.readers.query import Rows, ask_once
from headrace.tables.last_rows import last_values_sql
from headrace.tables.predicate import Conditions, entries_of
from headrace.tables.schemas import MATERIALIZER_HISTORY, STATE_TABLES

_IN_ORDER = "ORDER BY operator, sequence_number"
_AS_ENTRY = (
    f"operator, key_group, key, '{HISTORY_STATE}' AS state, NULL AS namespace, "
    'sequence_number::VARCHAR AS user_key, "row" AS value, inserted_at AS last_access, NULL AS expires_at, NULL AS ttl_ms, '
    "checkpoint_id"
)


def rows_of_key(job: JobAtCheckpoint, key: str, operator: str | None = None) -> Rows:
    """Return the rows in the history of a primary key, in order. `key` is JSON, or a text key without quotes.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
    conditions = [*key_conditions(key, job.checkpoint.max_parallelism), *entries_of(operator)]
    columns = 'operator, key, sequence_number, row_kind, inserted_at, upsert_key, checkpoint_id, "row"'
    return job.live_rows(MATERIALIZER_HISTORY, conditions, _IN_ORDER, columns=columns)


def rows_as_entries(job: JobAtCheckpoint, conditions: Conditions) -> Rows:
    """Return rows of histories in order, with the columns of keyed_state."""
    columns = f"{_AS_ENTRY}, false AS expired" if job.with_expired else _AS_ENTRY
    return job.live_rows(MATERIALIZER_HISTORY, conditions, _IN_ORDER, columns=columns)


def largest_histories(job: JobAtCheckpoint, operator: str | None = None, limit: int = 20) -> Rows:
    """Return the keys with the longest histories, longest first: rows, bytes, first and last insertion.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_STATE)
    table = STATE_TABLES[MATERIALIZER_HISTORY]
    columns = ["operator", "key", "sequence_number", "row", "inserted_at", "checkpoint_id", "deleted"]
    entries = last_values_sql("raw", table, {"bytes": 'strlen("row")', "inserted_at": "inserted_at"})
    return ask_once(
        job.changes(MATERIALIZER_HISTORY, entries_of(operator), columns=columns),
        f"""SELECT operator, key, count(*) AS rows, sum(bytes)::BIGINT AS bytes, min(inserted_at) AS first_insertion,
                   max(inserted_at) AS last_insertion
            FROM ({entries}) GROUP BY ALL ORDER BY rows DESC, operator, key LIMIT ?""",  # noqa: S608 - our own names
        [limit],
        table=MATERIALIZER_HISTORY,
    )
