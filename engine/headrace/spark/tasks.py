"""The tasks of a stage: each runs user code in one process, and answers with a report."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.spark.reports import KeyedTask, SourceTask, TaskReport


def run_source_task(payload: bytes, number: int) -> TaskReport:
    """Run a source's stage over the files of one task; an error of Headrace is in the report."""
    from headrace.spark.source_task import run_source

    return _guarded(lambda: run_source(msgspec.json.decode(payload, type=SourceTask)), number)


def run_keyed_task(payload: bytes, index: int, batches: Iterable[pa.RecordBatch]) -> TaskReport:
    """Run a keyed stage over the batches of one task; an error of Headrace is in the report."""
    from headrace.spark.keyed_task import run_keyed

    return _guarded(lambda: run_keyed(msgspec.json.decode(payload, type=KeyedTask), index, batches), index)


@contextmanager
def without_collector() -> Iterator[None]:
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
