"""Keys that a job has under another spelling than the one that a user wrote, and how its keys are written."""

from __future__ import annotations

from typing import Final

from headrace.readers.job_at import WITH_STATE, JobAtCheckpoint
from headrace.readers.query import ask_once

_MOST = 3
"""Number of similar keys that are named."""

_BARE: Final = r"""regexp_replace(lower({}), '["\[\]\s]', '', 'g')"""
"""SQL for a key without the marks of JSON, without spaces, and in lower case."""


def how_keys_are_written(job: JobAtCheckpoint) -> str:
    """Return sentences on the types of a job's keys, and on how a command takes them."""
    types = "; ".join(_types(job))
    written = f"Keys of this job: {types}. " if types else ""
    return (
        f"{written}Write a text or a number plainly, a time as '2013-01-05 06:00', and several fields as a list in JSON: '[\"a\", 1]'. 'headrace state scan "
        f"{job.config.job}' shows keys."
    )


def similar_keys(job: JobAtCheckpoint, key: str) -> list[str]:
    """Return the first keys that differ from a key only in case, spaces or quotes. Reads all keys of the state."""
    query = f"SELECT DISTINCT key FROM raw WHERE {_BARE.format('key')} = {_BARE.format('?')} ORDER BY key LIMIT {_MOST}"  # noqa: S608 - our own SQL
    keys = {
        text
        for table in WITH_STATE
        for part in job.ranges(table)
        for (text,) in ask_once(job.changes(table, part, columns=["key"]), query, [key], table=table).rows
    }
    return sorted(keys)[:_MOST]


def _types(job: JobAtCheckpoint) -> list[str]:
    """Return the keys of operators with their types, as the checkpoint records them."""
    of_operators = job.checkpoint.operator_keys.items()
    return [f"{name}: {key}" for name, keys in sorted(of_operators) for key in dict.fromkeys(filter(None, keys))]
