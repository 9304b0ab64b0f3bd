"""Promotion: the result of a branch becomes that of the job."""

from __future__ import annotations

from contextlib import AbstractContextManager

from headrace.commit.checkpoint import Checkpoint
from headrace.config import JobConfig


class Promotion:
    """A promotion of a branch, under way: it holds the job's lease. Use `promoting`."""

    @property
    def is_behind(self) -> bool:
        """Tell whether the job has taken in what the branch has not."""
        raise NotImplementedError

    def promote(self) -> Checkpoint:
        """Commit the promotion, publish the sinks, and close the branch."""
        raise NotImplementedError


def promoting(config: JobConfig, name: str, run_id: str) -> AbstractContextManager[Promotion]:
    """Claim the job's lease and publish its head, for the length of the block."""
    msg = f"promotion of branch '{name}' of job '{config.job}' by run {run_id}"
    raise NotImplementedError(msg)
