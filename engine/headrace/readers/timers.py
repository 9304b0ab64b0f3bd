"""`headrace timers`: registered timers, the user's and the engine's."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import Rows
from headrace.state.timer_service import DOMAINS
from headrace.tables.predicate import NoneOf, OneOf
from headrace.tables.schemas import TIMERS

_INTERNAL_DOMAINS = tuple(domain.name for domain in DOMAINS.values() if domain.is_internal)

NOT_INTERNAL = NoneOf("domain", _INTERNAL_DOMAINS)
"""The timers that user code registered."""


def list_timers(job: JobAtCheckpoint, limit: int = 50, *, internal: bool = False) -> Rows:
    """Return registered timers, the next one first; with `internal`, also those that the engine set."""
    conditions = [] if internal else [NOT_INTERNAL]
    return job.live_rows(TIMERS, conditions, "ORDER BY timestamp, operator, key LIMIT ?", [limit])


def count_internal_timers(job: JobAtCheckpoint) -> int:
    """Return how many timers the engine has set, to clean up: exact cleanup of TTL, and sweeps of materializers."""
    ((count,),) = job.live_rows(TIMERS, [OneOf("domain", _INTERNAL_DOMAINS)], "", columns="count(*)").rows
    return int(count)
