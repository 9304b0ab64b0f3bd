"""The demonstration job, opened at a checkpoint as the readers do."""

from __future__ import annotations

from typing import Any

from headrace.config import load_job
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import Rows


def opened(at: int | str | None = None, **options: Any) -> JobAtCheckpoint:
    """Open the demonstration job at a checkpoint, the last one by default."""
    return JobAtCheckpoint(load_job("demo"), at, **options)


def values(rows: Rows) -> list[str | None]:
    """Return the values of entries."""
    return [row["value"] for row in rows.dicts()]
