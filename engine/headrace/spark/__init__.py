"""Running pipelines on Spark. `import headrace.spark` does not start or even import Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.provision.pyspark import check_connect, check_pyspark

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.config import JobConfig
    from headrace.run.options import Event, RunOptions, RunReport
    from headrace.run.trace import Trace

__all__ = ["run"]


def run(
    config: JobConfig,
    options: RunOptions,
    on_event: Callable[[Event], None],
    *,
    may_start: bool = True,
    trace: Trace | None = None,
) -> RunReport:
    """Run a job once; return what it did. Unless Spark `may_start`, raise `SparkNeededError` where it is needed.

    `trace` observes its parts.

    Raises a `HeadraceError` that says who has to act. Checkpoints committed before the error stay.
    """
    if config.profile.is_connect:
        check_connect()
        from headrace.spark.connect import run as run_job
    else:
        check_pyspark()
        from headrace.spark.runner import run as run_job
    return run_job(config, options, on_event, may_start=may_start, trace=trace)
