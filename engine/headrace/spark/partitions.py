"""Functions that Spark runs on executors for the rows of a partition. They take and yield Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from headrace.spark.reports import TaskReport, encode_report
from headrace.spark.tasks import in_reused_worker, run_keyed_task
from headrace.tables.files import Storage, read_parquet

Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

REPORT_DDL = "report binary"


def keyed_partition(payload: bytes) -> Partition:
    """Return a function that runs a keyed stage over the rows of the partition; its number is the task's."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        with in_reused_worker():
            report = run_keyed_task(payload, context.partitionId(), batches)
        yield _as_batch(report)

    return run


def transit_partition(storage: Storage) -> Partition:
    """Return a function that reads the transit files whose paths are the partition's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield from read_parquet(path, storage).to_batches()

    return run


def _as_batch(report: TaskReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode_report(report)], pa.binary())], names=["report"])
