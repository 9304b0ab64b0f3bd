"""Functions that Spark runs on executors. They take and yield Arrow batches, nothing pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow as pa

from headrace.spark.reports import KeyedTask, TaskReport, encode_report
from headrace.spark.tasks import run_keyed_task, run_source_task, without_collector
from headrace.spark.transit_shares import share_of_task
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
    """Return a function that runs a keyed stage for the rows of the partition, whose number is the task's."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with without_collector():
            report = run_keyed_task(payload, _partition(), batches)
        yield _as_batch(report)

    return run


def share_partition(payload: bytes, transit: Sequence[str]) -> Partition:
    """Return a function that runs the keyed task with number `id`, for each row of the partition, on its rows in files in transit."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = msgspec.json.decode(payload, type=KeyedTask)
        for batch in batches:
            for number in batch["id"].to_pylist():
                with without_collector():
                    rows = share_of_task(task, number, transit) if transit else ()
                    report = run_keyed_task(payload, number, rows)
                yield _as_batch(report)

    return run


def transit_partition(storage: Storage) -> Partition:
    """Return a function that reads the transit files whose paths are the partition's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield from read_parquet(path, storage).to_batches()

    return run


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None  # noqa: S101 - Spark runs this in a task
    return context.partitionId()


def _as_batch(report: TaskReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode_report(report)], pa.binary())], names=["report"])
