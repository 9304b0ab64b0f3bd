"""`headrace timers`: registered timers, those of user code and the engine's own."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import Rows
from headrace.state.timer_service import DOMAINS
from headrace.tables.predicate import NoneOf, OneOf
from headrace.tables.schemas import TIMERS

_INTERNAL_DOMAINS = tuple(domain.name for domain in DOMAINS.values() if domain.is_internal)

NOT_INTERNAL = NoneOf("domain", _INTERNAL_DOMAINS)
"""Condition for the timers of user code."""


def list_timers(job: JobAtCheckpoint, limit: int = 50, *, internal: bool = False) -> Rows:
    """Return registered timers, the next one first; with `internal`, include the engine's own."""
    conditions = [] if internal else [NOT_INTERNAL]
    return job.live_rows(TIMERS, conditions, "ORDER BY timestamp, operator, key LIMIT ?", [limit])


def count_timers(job: JobAtCheckpoint, *, internal: bool = False) -> int:
    """Count the timers that `list_timers` lists without a limit."""
    return job.count_live(TIMERS, [] if internal else [NOT_INTERNAL])


def count_internal_timers(job: JobAtCheckpoint) -> int:
    """Count the engine's own timers: they clean up expired state exactly, and sweep materializers."""
    return job.count_live(TIMERS, [OneOf("domain", _INTERNAL_DOMAINS)])
