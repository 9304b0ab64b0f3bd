"""Protocol to run the tasks of a stage, on Spark or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from headrace.errors import EngineBug, HeadraceError
from headrace.names import counted
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport
from headrace.spark.transit import Takes


class StageTasks(Protocol):
    """Runner of a micro-batch's tasks, such as `SparkTasks` and the harness of pipelines.

    Methods that run tasks return one report for each task, in the order of tasks, and raise the error that a task reported:
    `UserFunctionError`, `ServiceError`, `SourceError`, `StorageError`, `StateSchemaError`.
    """

    def start(self) -> None:
        """Prepare to run tasks. Called before each micro-batch, outside of its measured time.

        Raises `ConfigError` and `ClusterError` if tasks cannot run.
        """
        ...

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks that read sources."""
        ...

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run a keyed stage over the files in `transit`: a task for each share of the key groups, even without files."""
        ...


def checked(reports: Iterable[TaskReport], expected: int) -> list[TaskReport]:
    """Return the reports of `expected` tasks in their order.

    Raises the error that a task reported, and `EngineBug` unless each task reported once.
    """
    sorted_reports = sorted(reports, key=lambda report: report.task)
    for report in sorted_reports:
        if report.error is not None:
            raise _as_raised(report.error_class or "", report.error)
    if [report.task for report in sorted_reports] != list(range(expected)):
        msg = f"{counted(expected, 'task')} ran, but reports came from {[report.task for report in sorted_reports]}"
        raise EngineBug(msg)
    return sorted_reports


def _as_raised(name: str, message: str) -> HeadraceError:
    classes = {cls.__name__: cls for cls in HeadraceError.__subclasses__()}
    return classes.get(name, EngineBug).told(message)
