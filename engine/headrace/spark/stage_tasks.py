"""Runs the tasks of a stage: in Spark, or wherever else tasks can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.errors import EngineBug, HeadraceError
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport
from headrace.spark.transit import Takes


class StageTasks(Protocol):
    """What a micro-batch asks for; `SparkTasks` and the harness of pipelines answer.

    The calls that run tasks answer with one report a task, in the order of tasks, and raise what a task reported: `UserFunctionError`,
    `ServiceError`, `SourceError`, `StorageError`, `StateSchemaError`.
    """

    def start(self) -> None:
        """Get ready to run tasks; called before each micro-batch, which does not count the time.

        Raises `ConfigError` and `ClusterError` where that is not possible.
        """
        ...

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks that read sources."""
        ...

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run a keyed stage over the files in `transit`: a task for each share of the key groups, also without any file."""
        ...


def checked(reports: Iterable[TaskReport], expected: int) -> list[TaskReport]:
    """Return the reports of `expected` tasks in their order.

    Raises what a task reported, and `EngineBug` unless each task reported once.
    """
    found = sorted(reports, key=lambda report: report.task)
    for report in found:
        if report.error is not None:
            raise _as_raised(report.error_class or "", report.error)
    if [report.task for report in found] != list(range(expected)):
        msg = f"{expected} tasks ran, but reports came from {[report.task for report in found]}"
        raise EngineBug(msg)
    return found


def _as_raised(name: str, message: str) -> HeadraceError:
    classes = {cls.__name__: cls for cls in HeadraceError.__subclasses__()}
    return classes.get(name, EngineBug).told(message)
