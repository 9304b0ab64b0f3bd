"""`headrace quarantine`: input and elements that could not be processed."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.known_operators import WITH_QUARANTINE, check_operator
from headrace.readers.query import Rows
from headrace.tables.predicate import entries_of
from headrace.tables.schemas import QUARANTINE


def list_quarantine(job: JobAtCheckpoint, limit: int = 50, operator: str | None = None) -> Rows:
    """Return rows of the quarantine, newest first; only those of one operator or source, if `operator` names it.

    Raises `ConfigError` for an unknown operator.
    """
    check_operator(job, operator, WITH_QUARANTINE)
    return job.live_rows(
        QUARANTINE, entries_of(operator), "ORDER BY checkpoint_id DESC, source, position LIMIT ?", [limit]
    )


def count_quarantine(job: JobAtCheckpoint, operator: str | None = None) -> int:
    """Count the rows that `list_quarantine` returns without a limit."""
    return job.count_live(QUARANTINE, entries_of(operator))
