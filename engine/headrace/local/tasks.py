"""Run the tasks of a stage in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile, encode_report
from headrace.run.tasks import checked, run_keyed_task, run_source_task, without_collector


class LocalTasks:
    """Implements `StageTasks`: the same code as in Spark, over the same files."""

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
    def keyed(task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run the tasks of a keyed stage over the rows in transit; return their reports by task."""
        count, payload = task.batch.parallelism, encode_report(task)
        with without_collector():
            return checked((run_keyed_task(payload, index, transit) for index in range(count)), count)
