"""Runs the tasks of a stage in this process, one after the other."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from headrace.spark.reports import KeyedTask, SourceTask, TaskReport, encode_report
from headrace.spark.stage_tasks import checked
from headrace.spark.tasks import run_keyed_task, run_source_task
from headrace.spark.transit import Takes, transit_schema
from headrace.state.key_groups import key_group_range
from headrace.tables.files import read_parquet


class LocalTasks:
    """Implements `StageTasks`: the same code as in Spark, over the same files, without a shuffle service."""

    @staticmethod
    def start() -> None:
        """Do nothing: there is no cluster to start."""

    @staticmethod
    def sources(tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run the tasks of sources; return their reports in the order of the tasks."""
        return checked((run_source_task(encode_report(task), number) for number, task in enumerate(tasks)), len(tasks))

    @staticmethod
    def keyed(task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run the tasks of a keyed stage over the rows in transit; return their reports by task."""
        batch = task.batch
        schema = transit_schema(takes)
        tables = [read_parquet(path, batch.storage).cast(schema) for path in transit]
        rows = pa.concat_tables(tables) if tables else schema.empty_table()
        ordered = rows.sort_by("order").combine_chunks()

        def share(index: int) -> list[pa.RecordBatch]:
            groups = key_group_range(index, batch.max_parallelism, batch.parallelism)
            column = ordered["key_group"]
            mine = pc.and_(pc.greater_equal(column, groups.first), pc.less_equal(column, groups.last))
            batches: list[pa.RecordBatch] = ordered.filter(mine).combine_chunks().to_batches()
            return batches

        payload = encode_report(task)
        reports = (run_keyed_task(payload, index, share(index)) for index in range(batch.parallelism))
        return checked(reports, batch.parallelism)
