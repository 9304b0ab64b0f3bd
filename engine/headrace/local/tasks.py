"""Run the tasks of a stage in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.run.messages import KeyedTask, SourceTask, TaskReport, encode_report
from headrace.run.rows import Takes, read_transit, share_of
from headrace.run.tasks import checked, run_keyed_task, run_source_task, without_collector


class LocalTasks:
    """Implements `StageTasks`: the same code as in Spark, over the same files, without a shuffle service."""

    @staticmethod
    def start() -> None:
        """Do nothing: there is no cluster to start."""

    @staticmethod
    def sources(tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run the tasks of sources; return their reports in the order of the tasks."""
        with without_collector():
            return checked(
                (run_source_task(encode_report(task), number) for number, task in enumerate(tasks)), len(tasks)
            )

    @staticmethod
    def keyed(task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run the tasks of a keyed stage over the rows in transit; return their reports by task."""
        count, payload = task.batch.parallelism, encode_report(task)
        rows = read_transit(transit, takes, task.batch.folder)
        with without_collector():
            return checked(
                (run_keyed_task(payload, index, share_of(rows, index, task.batch)) for index in range(count)), count
            )
