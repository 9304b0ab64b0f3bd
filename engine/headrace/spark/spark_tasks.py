"""Runs the tasks of a stage as a Spark job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headrace.spark.reports import KeyedTask, SourceTask, TaskReport, decode_report, encode_report
from headrace.spark.stage_tasks import checked
from headrace.spark.tasks import REPORT_DDL, Partition, keyed_partition, source_partition, transit_partition
from headrace.spark.transit import Takes, transit_ddl


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """See `StageTasks`: one Spark job a stage, one Spark task a task."""

    spark: SparkSession

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """See `StageTasks.sources`."""
        if not tasks:
            return []
        ids = self.spark.range(0, len(tasks), 1, len(tasks))
        return _collect(ids, source_partition([encode_report(task) for task in tasks]), len(tasks))

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """See `StageTasks.keyed`."""
        count = task.batch.parallelism
        if not transit:
            # Over an empty relation Spark runs no task at all, but timers may be due.
            return _collect(
                self.spark.range(0, count, 1, count), keyed_partition(encode_report(task), idle=True), count
            )
        owner = f"cast(key_group * {count} div {task.batch.max_parallelism} as int)"
        rows = self._read(task, takes, transit).selectExpr("*", f"{owner} as task").repartitionById(count, "task")
        return _collect(rows.drop("task").sortWithinPartitions("order"), keyed_partition(encode_report(task)), count)

    def _read(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> DataFrame:
        ddl = transit_ddl(takes)
        if "://" not in task.batch.job_folder:
            return self.spark.read.schema(ddl).parquet(*transit)
        # Executors read from the object store as they wrote to it, so Spark needs no S3 client of its own.
        paths = self.spark.createDataFrame([(path,) for path in transit], "path string")
        spread = paths.repartition(min(len(transit), task.batch.parallelism))
        return spread.mapInArrow(transit_partition(task.batch.storage), ddl)


def _collect(rows: DataFrame, work: Partition, expected: int) -> list[TaskReport]:
    reports = rows.mapInArrow(work, REPORT_DDL)
    return checked((decode_report(bytes(row.report)) for row in reports.collect()), expected)
