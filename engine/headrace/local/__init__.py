"""Local runner: process small slices without Spark. It starts no JVM, and does not need pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import JobConfig
    from headrace.run.options import Event, RunOptions, RunReport

__all__ = ["run"]


def run(config: JobConfig, options: RunOptions, on_event: Callable[[Event], None]) -> RunReport:
    """Run a job once in processes of this machine; return what it did.

    Raises a `HeadraceError` that says who has to act. Checkpoints committed before the error stay.
    """
    from headrace.local.runner import run as run_job

    return run_job(config, options, on_event)
