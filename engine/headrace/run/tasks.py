"""Tasks of a stage: the protocol that runs them, and the entrance of each.

Tasks of a stage: each runs user code in one process, and returns a report.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import msgspec

from headrace import clock, logs
from headrace.errors import EngineBug, HeadraceError, UserFunctionError
from headrace.interrupts import is_interrupt
from headrace.names import counted
from headrace.plan.loader import plan_of
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile
from headrace.run.transit import read_share

_Task = TypeVar("_Task", SourceTask, KeyedTask)


class StageTasks(Protocol):
    """Runner of a micro-batch's tasks, such as `SparkTasks` and the harness of pipelines.

    Methods that run tasks return one report for each task, in the order of tasks, and raise the error that a task reported:
    `UserFunctionError`, `ServiceError`, `SourceError`, `StorageError`, `StateSchemaError`.
    """

    def start(self) -> None:
        """Prepare to run tasks. Called before each micro-batch, outside of its measured time.

        Raises `ConfigError` and `ClusterError` if tasks cannot run.
        """
        ...

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks that read sources."""
        ...

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage over the files in `transit`: a task for each share of the key groups, even without files."""
        ...


def checked(reports: Iterable[TaskReport], expected: int) -> list[TaskReport]:
    """Return the reports of `expected` tasks in their order.

    Raises the error that a task reported, and `EngineBug` unless each task reported once.
    """
    sorted_reports = sorted(reports, key=lambda report: report.task)
    for report in sorted_reports:
        if report.error is not None:
            raise _as_raised(report.error_class or "", report.error)
    if [report.task for report in sorted_reports] != list(range(expected)):
        msg = f"{counted(expected, 'task')} ran, but reports came from {[report.task for report in sorted_reports]}"
        raise EngineBug(msg)
    return sorted_reports


def _as_raised(name: str, message: str) -> HeadraceError:
    classes = {cls.__name__: cls for cls in HeadraceError.__subclasses__()}
    return classes.get(name, EngineBug).told(message)


def run_source_task(payload: bytes, number: int) -> TaskReport:
    """Run a source's stage over the files of one task; an error of Headrace is in the report."""
    from headrace.run.source_stage import run_source

    return _guarded(lambda: run_source(_decoded(payload, SourceTask)), number)


def run_idle_task(payload: bytes, number: int) -> TaskReport:
    """Only load the pipeline and the modules of keyed tasks, so that a keyed task starts sooner in this process.

    `payload` is any task of a source.
    """

    def load() -> TaskReport:
        import headrace.run.keyed_stage  # noqa: F401  later tasks have it then

        plan_of(_decoded(payload, SourceTask).batch.code)
        return TaskReport()

    return _guarded(load, number)


def run_keyed_task(payload: bytes, index: int, transit: Sequence[TransitFile]) -> TaskReport:
    """Run a keyed stage over the share of one task; an error of Headrace is in the report."""
    from headrace.run.keyed_stage import run_keyed

    def run() -> TaskReport:
        task = _decoded(payload, KeyedTask)
        takes = plan_of(task.batch.code).keyed[task.stage].takes
        return run_keyed(task, index, read_share(transit, index, takes, task.batch.folder, task.batch.memory_for(1)))

    return _guarded(run, index)


def _decoded(payload: bytes, kind: type[_Task]) -> _Task:
    """Return a task; log lines of this process are then of its run and checkpoint."""
    task = msgspec.json.decode(payload, type=kind)
    logs.move_to(task.batch.position)
    return task


@contextmanager
def without_collector() -> Iterator[None]:
    """Switch off Python's cycle collector in the block: it visits every live record again and again.

    It takes a third of the CPU of a keyed count (`make bench-engine`), and frees almost nothing: records, elements and coroutines
    are freed by reference count. Cycles that user code makes are collected when the task ends. That collection visits only the
    objects that the task has made: with all modules it takes 40 ms, before the task can report.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.collect(0)


@contextmanager
def in_reused_worker() -> Iterator[None]:
    """Run a task in a worker process of Spark, which runs others later. The collector never visits what the task leaves behind.

    pyspark collects all garbage of a worker behind each task. Modules, plans and open tables are no garbage, and visiting them
    takes 95 ms of CPU: a tenth of that of the flights. The task's own garbage is collected before.
    """
    with without_collector():
        yield
    gc.freeze()


def of_task(error: BaseException) -> HeadraceError:
    """Return the error that a task reports. An exception that is no `Exception`, such as `SystemExit`, is always one of user code's."""
    if isinstance(error, HeadraceError):
        return error
    return UserFunctionError("unknown", None, "unknown", "".join(traceback.format_exception(error)))


def _guarded(work: Callable[[], TaskReport], index: int) -> TaskReport:
    """Return the report of the work. It includes Headrace's own errors, so that Spark does not retry."""
    began_at, begun = clock.now(), clock.monotonic()
    try:
        report = work()
    except BaseException as error:
        if is_interrupt(error) or (isinstance(error, Exception) and not isinstance(error, HeadraceError)):
            raise
        ours = of_task(error)
        report = TaskReport(error=str(ours), error_class=type(ours).__name__)
    report.task = index
    if (trace := report.trace) is not None:
        trace.began_at, trace.begun, trace.ended = began_at, begun, clock.monotonic()
    return report
