"""Which version of a sink a checkpoint had published."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import unreadable
from headrace.tables.store import TableMissingError


def sink_version(job: JobAtCheckpoint, uri: str) -> int | None:
    """Return the sink's version just before the first publication after the checkpoint; None: the latest."""
    last = job.log.last
    if last is None or job.checkpoint.checkpoint_id >= last.checkpoint_id:
        return None
    try:
        commits = job.snapshot(uri, None).history()
    except TableMissingError:
        return None
    except OSError as error:
        raise unreadable(uri, None, error) from error
    later = [commit.version for commit in commits if (commit.info.checkpoint_id or 0) > job.checkpoint.checkpoint_id]
    return max(min(later) - 1, 0) if later else None
