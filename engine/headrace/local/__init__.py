"""Local runner: process small slices without Spark. It starts no JVM, and does not need pyspark."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import JobConfig
    from headrace.run.options import Event, RunOptions, RunReport
    from headrace.run.trace import Trace

__all__ = ["run"]


def run(
    config: JobConfig, options: RunOptions, on_event: Callable[[Event], None], *, trace: Trace | None = None
) -> RunReport:
    """Run a job once in processes of this machine; return what it did. `trace` observes its parts.

    Raises a `HeadraceError` that says who has to act. Checkpoints committed before the error stay.
    """
    from headrace.local.runner import run as run_job

    return run_job(config, options, on_event, trace=trace)
