"""Run of a job on a server of Spark Connect: the driver has neither a JVM nor an RDD.

Spark for tasks alone: what else a run on Spark needs is refused by name. Tasks are those of `headrace.spark.tasks`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql.connect.session import SparkSession

from headrace import clock
from headrace.commit.run_check import checked_plan, not_on_connect
from headrace.config import JobConfig
from headrace.errors import ConfigError, StorageError
from headrace.plan.loader import plan_of
from headrace.plan.stages import Plan
from headrace.run.events import OnEvent
from headrace.run.job_run import run_on
from headrace.run.messages import BatchSettings, KeyedTask, SourceTask, TaskReport, TransitFile, encode_report
from headrace.run.options import Event, RunOptions, RunReport
from headrace.run.output import transit_folder
from headrace.run.trace import NO_TRACE, Trace
from headrace.spark.connect_session import CLIENT_ERRORS, close, connect_errors, opened
from headrace.spark.runner import not_allowed
from headrace.spark.tasks import (
    REPORT_DDL,
    NumberedTask,
    Parts,
    decoded,
    described_keyed_task,
    inline_parts,
    numbered_partition,
    source_task,
    stored_parts,
    tasks_of,
    transit_part,
)

LARGE: Final = 64_000
"""Size of a description of tasks (bytes) from which on it goes through the job's folder instead of the plan that the server gets."""


def run(
    config: JobConfig, options: RunOptions, on_event: OnEvent, *, may_start: bool = True, trace: Trace | None = None
) -> RunReport:
    """Run a job once, as `headrace.spark.runner.run` does. The session is opened when the first micro-batch needs it.

    Raises `ConfigError` for a job that needs Spark in the process of its driver, before anything is done.
    """
    started = clock.monotonic()
    _refuse(config, checked_plan(config))
    tasks = ConnectTasks(config, on_event, may_start=may_start)
    try:
        return run_on(tasks, config, options, on_event, started=started, shows_progress=True, trace=trace or NO_TRACE)
    finally:
        tasks.close()


def _refuse(config: JobConfig, plan: Plan) -> None:
    if problems := [*not_on_connect(config, plan)]:
        listed = "\n".join(f"- {problem}" for problem in problems)
        raise ConfigError(
            f"job '{config.job}' needs Spark in the process of its driver, and master {config.profile.shown_master} of cluster "
            f"'{config.profile.name}' is a server of Spark Connect. Nothing was run.\n{listed}"
        )


class ConnectTasks:
    """Implements `StageTasks`: one query for each stage, with one partition for each task."""

    def __init__(self, config: JobConfig, on_event: OnEvent, *, may_start: bool) -> None:
        """Open nothing yet. Unless the session `may_start`, the first task raises `SparkNeededError`."""
        self._config = config
        self._on_event = on_event
        self._may_start = may_start
        self._opened: SparkSession | None = None

    def start(self) -> None:
        """Open the session, as `StageTasks.start` describes."""
        self._session()

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources as a query."""
        if not tasks:
            return []
        parts = [encode_report(task) for task in tasks]
        with self._translated(", ".join(dict.fromkeys(task.source for task in tasks))):
            return self._numbered(source_task, parts, len(tasks), tasks[0].batch)

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage as a query."""
        parts = [encode_report(task), transit_part(transit)]
        with self._translated(plan_of(task.batch.code).keyed[task.stage].name):
            return self._numbered(described_keyed_task, parts, task.batch.parallelism, task.batch)

    def close(self) -> None:
        """End the session, if it is open."""
        if self._opened is not None:
            close(self._opened)

    def _numbered(
        self,
        task_of: Callable[[Sequence[bytes]], NumberedTask],
        parts: Sequence[bytes],
        count: int,
        batch: BatchSettings,
    ) -> list[TaskReport]:
        numbers = self._session().range(0, count, 1, count)
        with _described(parts, batch) as described:
            return self._reports(numbers.mapInArrow(numbered_partition(task_of, described), REPORT_DDL), count)

    def _reports(self, reports: DataFrame, count: int) -> list[TaskReport]:
        """Run a query; return the reports of its `count` tasks. The server stops them when this process is interrupted."""
        session, tag = self._session(), f"headrace-{self._config.job}"
        session.addTag(tag)
        try:
            table = reports.toArrow()
        except CLIENT_ERRORS:
            raise
        except BaseException:
            with suppress(*CLIENT_ERRORS):
                session.interruptTag(tag)
            raise
        return decoded(table["report"].to_pylist(), count)

    def _session(self) -> SparkSession:
        if self._opened is None:
            if not self._may_start:
                raise not_allowed(self._config.job)
            self._on_event(Event("starting", f"connecting to Spark at {self._config.profile.shown_master}"))
            self._opened = opened(self._config)
        return self._opened

    @contextmanager
    def _translated(self, stage: str) -> Iterator[None]:
        """Translate Spark's errors into errors of Headrace. Nothing is committed while tasks run."""
        place = self._config.profile.shown_master
        with tasks_of(stage), connect_errors(place, f"in the tasks of '{stage}'"):
            yield


@contextmanager
def _described(parts: Sequence[bytes], batch: BatchSettings) -> Iterator[Parts]:
    """Yield the description of a stage for its tasks. A large one lies in a file during the block."""
    if sum(map(len, parts)) < LARGE:
        yield inline_parts(parts)
        return
    file = f"{transit_folder(batch.attempt_id)}/tasks-{clock.unique_id()}"
    try:
        yield stored_parts(parts, batch.folder, file)
    finally:
        with suppress(StorageError):
            batch.folder.remove_file(file)
