"""Run of a job without Spark, on this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Final

from headrace import clock, logs
from headrace.commit.run_check import checked_plan, only_on_spark
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.local.tasks import LocalTasks
from headrace.local.workers import Workers
from headrace.plan.loader import plan_of
from headrace.run.events import OnEvent
from headrace.run.job_run import run_on
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile
from headrace.run.options import RunOptions, RunReport
from headrace.run.tasks import StageTasks
from headrace.run.trace import NO_TRACE, Trace
from headrace.storage.refusals import doing

ROWS_WORTH_WORKERS: Final = 100_000
"""Number of rows of a run from which on its tasks run in worker processes, which take most of a second to start."""


def run(
    config: JobConfig,
    options: RunOptions,
    on_event: OnEvent,
    *,
    rows_worth_workers: int = ROWS_WORTH_WORKERS,
    trace: Trace | None = None,
) -> RunReport:
    """Run a job once, as on Spark; return its report. From `rows_worth_workers` rows on, tasks run in worker processes.

    `trace` observes the parts of the run. Raises `ConfigError` for a job that needs Spark, before anything is done, and otherwise the errors of a run on Spark.
    """
    started = clock.monotonic()
    if problems := [*only_on_spark(config, checked_plan(config))]:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ConfigError(
            f"job '{config.job}' needs Spark, and the local runner starts none. Nothing was run.\n{listed}\nRun it on Spark: headrace run "
            f"{config.job} --runner spark"
        )
    tasks = TasksHere(Workers(_cores()), rows_worth_workers)
    # User code prints to standard error, as in Spark's Python workers: standard output belongs to the command.
    with redirect_stdout(logs.output_of_user_code()):
        try:
            return run_on(
                tasks, config, options, on_event, started=started, shows_progress=True, trace=trace or NO_TRACE
            )
        finally:
            tasks.workers.close()


class TasksHere:
    """Implements `StageTasks`: a run's first rows in this process, large slices and those after many rows in `workers`."""

    def __init__(self, workers: Workers, rows_worth_workers: int) -> None:
        """Start nothing yet."""
        self.workers = workers
        self._rows_worth_workers = rows_worth_workers
        self._rows = 0
        self._in_this_process = LocalTasks()
        self._tasks: StageTasks = self._in_this_process

    def start(self) -> None:
        """Do nothing: workers start with their first task."""

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources. Decides where all stages of the micro-batch run."""
        self._rows += sum(file.taken for task in tasks for file in task.files)
        self._tasks = self.workers if self._rows >= self._rows_worth_workers else self._in_this_process
        with doing(f"tasks of '{', '.join(dict.fromkeys(task.source for task in tasks))}'"):
            return self._tasks.sources(tasks)

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage where the sources ran."""
        with doing(f"tasks of '{plan_of(task.batch.code).keyed[task.stage].name}'"):
            return self._tasks.keyed(task, transit)


def _cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
