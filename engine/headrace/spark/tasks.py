"""The functions that Spark runs on executors. They take and give Arrow batches, nothing pickled."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport, encode_report
from headrace.tables.files import Storage, read_parquet

Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

REPORT_DDL = "report binary"


def source_partition(payloads: Sequence[bytes]) -> Partition:
    """Run source task number `id` for each row of the partition."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                with _without_collector():
                    report = run_source_task(payloads[number], number)
                yield _as_batch(report)

    return run


def keyed_partition(payload: bytes, *, idle: bool = False) -> Partition:
    """Run a keyed stage for the partition, whose number is the task's; `idle`: its rows are no elements."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        index = context.partitionId()
        elements = (batch.slice(0, 0) for batch in batches) if idle else batches
        with _without_collector():
            report = run_keyed_task(payload, index, elements)
        yield _as_batch(report)

    return run


def transit_partition(storage: Storage) -> Partition:
    """Read the transit files whose paths are the partition's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield from read_parquet(path, storage).to_batches()

    return run


def run_source_task(payload: bytes, number: int) -> TaskReport:
    """Run a source's stage over the files of one task; an error of Headrace is in the report."""
    from headrace.spark.source_task import run_source

    return _guarded(lambda: run_source(msgspec.json.decode(payload, type=SourceTask)), number)


def run_keyed_task(payload: bytes, index: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Run a keyed stage over the batches of one task; an error of Headrace is in the report."""
    from headrace.spark.keyed_task import run_keyed

    return _guarded(lambda: run_keyed(msgspec.json.decode(payload, type=KeyedTask), index, batches), index)


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


def _guarded(work: Callable[[], TaskReport], index: int) -> TaskReport:
    """Answer with the report. Headrace's own errors travel in it, so that Spark won't try again."""
    try:
        report = work()
    except HeadraceError as error:
        report = TaskReport(error=str(error), error_class=type(error).__name__)
    report.task = index
    return report


def _as_batch(report: TaskReport) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([encode_report(report)], pa.binary())], names=["report"])
