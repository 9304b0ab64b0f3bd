"""Versions of sinks at checkpoints."""

from __future__ import annotations

from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import unreadable
from headrace.tables.store import TableMissingError


def sink_version(job: JobAtCheckpoint, uri: str) -> int | None:
    """Return the last version of a sink before the first publication after the checkpoint; None means the latest version.

    Raises `StorageError` when the sink's log cannot be read.
    """
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
