"""Functions that Spark runs on executors for the number of a task. They return the encoded report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

from headrace.spark.reports import TaskReport, encode_report
from headrace.spark.tasks import in_reused_worker, run_idle_task, run_reading_task, run_source_task
from headrace.tables.late_pandas import without_pandas

NumberedTask = Callable[[int], bytes]


def source_task(payloads: Sequence[bytes]) -> NumberedTask:
    """Return a function that runs the source task with the given number. For numbers beyond the payloads it runs an idle task."""

    def run(number: int) -> TaskReport:
        if number < len(payloads):
            return run_source_task(payloads[number], number)
        return run_idle_task(payloads[0], number)

    return lambda number: _encoded(lambda: run(number))


def reading_task(payload: bytes, transit: Sequence[str]) -> NumberedTask:
    """Return a function that runs the keyed task with the given number. The task reads its rows itself."""
    return lambda number: _encoded(lambda: run_reading_task(payload, number, transit))


def _encoded(task: Callable[[], TaskReport]) -> bytes:
    _without_pandas()
    with in_reused_worker():
        report = task()
    return encode_report(report)


@cache
def _without_pandas() -> None:
    """Make pyarrow work without pandas in this worker, which saves 0.7 s of CPU in its first task."""
    without_pandas()
