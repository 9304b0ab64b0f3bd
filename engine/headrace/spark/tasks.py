"""The functions that Spark runs on executors. They take and give Arrow batches, nothing pickled."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from headrace.checkpoint.files import Storage, read_parquet
from headrace.errors import HeadraceError
from headrace.spark.reports import IngestTask, KeyedTask, TaskReport, encode

Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

REPORT_DDL = "report binary"


def ingest_partition(payloads: Sequence[bytes]) -> Partition:
    """Run ingest task number `id` for each row of the partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from headrace.spark.ingest_task import run_ingest

        for batch in batches:
            for index in batch["id"].to_pylist():
                task = msgspec.json.decode(payloads[index], type=IngestTask)
                yield _guarded(lambda task=task, index=index: run_ingest(task, index), index)  # type: ignore[misc]

    return run


def keyed_partition(payload: bytes, *, idle: bool = False) -> Partition:
    """Run a keyed stage for the partition, whose number is the task's; `idle`: its rows are no elements."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        from headrace.spark.keyed_task import run_keyed

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        index = context.partitionId()
        task = msgspec.json.decode(payload, type=KeyedTask)
        elements = (batch.slice(0, 0) for batch in batches) if idle else batches
        yield _guarded(lambda: run_keyed(task, index, elements), index)

    return run


def transit_partition(storage: Storage) -> Partition:
    """Read the transit files whose paths are the partition's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield from read_parquet(path, storage).to_batches()

    return run


@contextmanager
def _without_collector() -> Iterator[None]:
    """Keep Python's cycle collector out of a task: it walks over every live record again and again.

    That costs a third of the CPU of a keyed count (`make bench-engine`), and finds next to nothing:
    records, elements and coroutines die by reference count. What cycles user code makes are
    collected when the task ends.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


def _guarded(work: Callable[[], TaskReport], index: int) -> pa.RecordBatch:
    """Answer with the report. Headrace's own errors travel in it, so that Spark won't try again."""
    try:
        with _without_collector():
            report = work()
    except HeadraceError as error:
        report = TaskReport(error=str(error), error_class=type(error).__name__)
    report.task = index
    return pa.RecordBatch.from_arrays([pa.array([encode(report)], pa.binary())], names=["report"])
