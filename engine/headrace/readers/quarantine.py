"""`headrace quarantine`: input and elements that could not be processed."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import Rows
from headrace.tables.schemas import QUARANTINE


def list_quarantine(job: JobAtCheckpoint, limit: int = 50) -> Rows:
    """Return what could not be processed, newest first."""
    return job.live_rows(QUARANTINE, [], "ORDER BY checkpoint_id DESC, source, position LIMIT ?", [limit])
