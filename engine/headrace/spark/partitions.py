"""Functions that Spark runs on executors. They take and yield Arrow batches, nothing pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from headrace.spark.reports import TaskReport, encode_report
from headrace.spark.tasks import run_keyed_task, run_reading_task, run_source_task, without_collector
from headrace.tables.files import Storage, read_parquet

Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

REPORT_DDL = "report binary"


def source_partition(payloads: Sequence[bytes]) -> Partition:
    """Return a function that runs the source task with number `id` for each row of the partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                with without_collector():
                    report = run_source_task(payloads[number], number)
                yield _as_batch(report)

    return run


def keyed_partition(payload: bytes) -> Partition:
    """Return a function that runs a keyed stage over the rows of the partition; its number is the task's."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        with without_collector():
            report = run_keyed_task(payload, context.partitionId(), batches)
        yield _as_batch(report)

    return run


def reading_partition(payload: bytes, transit: Sequence[str]) -> Partition:
    """Return a function that runs the keyed task with number `id` for each row of the partition. The task reads its rows itself."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                with without_collector():
                    report = run_reading_task(payload, number, transit)
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
