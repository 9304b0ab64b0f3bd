"""Tasks of a stage as a Spark job, each in a partition of its own.

Spark runs two kinds of functions on executors. Functions for the number of a task return the encoded report. Functions
for the rows of a partition take and yield Arrow batches; Spark Connect runs no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

import msgspec
import pyarrow as pa

from headrace import logs
from headrace.plan.loader import plan_of
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, TransitFile, decode_report, encode_report
from headrace.run.tasks import checked, in_reused_worker, run_idle_task, run_keyed_task, run_source_task
from headrace.storage.pandas import without_pandas
from headrace.storage.refusals import doing
from headrace.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark import SparkContext

NumberedTask = Callable[[int], bytes]

Parts = Callable[[], Sequence[bytes]]
"""Description of the tasks of a stage, as their Python workers get it: a function that returns its parts."""


def source_task(payloads: Sequence[bytes]) -> NumberedTask:
    """Return a function that runs the source task with the given number. For numbers beyond the payloads it runs an idle task."""

    def run(number: int) -> TaskReport:
        if number < len(payloads):
            return run_source_task(payloads[number], number)
        return run_idle_task(payloads[0], number)

    return lambda number: _encoded(lambda: run(number))


def keyed_task(payload: bytes, transit: Sequence[TransitFile]) -> NumberedTask:
    """Return a function that runs the keyed task with the given number. The task reads its rows itself."""
    return lambda number: _encoded(lambda: run_keyed_task(payload, number, transit))


class _InTransit(msgspec.Struct):
    transit: Sequence[TransitFile]


def transit_part(transit: Sequence[TransitFile]) -> bytes:
    """Return the files in transit as the second part of a description, behind the task."""
    return msgspec.json.encode(_InTransit(transit))


def described_keyed_task(parts: Sequence[bytes]) -> NumberedTask:
    """Return `keyed_task` of a task and its `transit_part`."""
    payload, transit = parts
    return keyed_task(payload, msgspec.json.decode(transit, type=_InTransit).transit)


def _encoded(task: Callable[[], TaskReport]) -> bytes:
    _prepare_worker()
    with in_reused_worker():
        report = task()
    return encode_report(report)


@cache
def _prepare_worker() -> None:
    """Show this worker's log lines, and make pyarrow work without pandas, which saves 0.7 s of CPU in the first task."""
    without_pandas()
    logs.set_up_worker()


Partition = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

REPORT_DDL = "report binary"


def numbered_partition(task_of: Callable[[Sequence[bytes]], NumberedTask], parts: Parts) -> Partition:
    """Return a function that runs the tasks whose numbers are the partition's rows; `task_of` makes them of their description."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = task_of(parts())
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield _as_batch(task(number))

    return run


def _as_batch(report: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([report], pa.binary())], names=["report"])


def inline_parts(parts: Sequence[bytes]) -> Parts:
    """Return a description that holds its parts itself."""
    return lambda: parts


_SHARED: Final = ("batch", "async_io")
"""Fields that all tasks of a stage have with the same value. They may hold secrets: credentials of a store, addresses of services."""


def stored_parts(parts: Sequence[bytes], folder: Storage, file: str) -> Parts:
    """Write a description to a file of `folder`, but for what may be secret; return a function that reads it again."""
    plain = [msgspec.json.decode(part, type=dict[str, msgspec.Raw]) for part in parts]
    taken = [{name: bytes(part.pop(name)) for name in _SHARED if name in part} for part in plain]
    shared = taken[0]
    folder.write(file, msgspec.json.encode(plain))

    def read() -> list[bytes]:
        own = {name: msgspec.Raw(value) for name, value in shared.items()}
        rest = msgspec.json.decode(folder.read(file), type=list[dict[str, msgspec.Raw]])
        return [msgspec.json.encode({**part, **own}) for part in rest]

    return read


_with_workers: WeakSet[SparkContext] = WeakSet()
"""Contexts that have run tasks of sources."""


@dataclass(slots=True)
class SparkTasks:
    """Tasks on Spark, for `SparkOnDemand`: one Spark job for each stage, one Spark task for each task."""

    context: SparkContext

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources as a Spark job.

        The first one of a context has idle tasks as well, which prepare workers for the keyed stages behind it.
        """
        if not tasks:
            return []
        count = len(tasks) if self.context in _with_workers else max(len(tasks), self._workers_of(tasks[0]))
        with self._translated(", ".join(dict.fromkeys(task.source for task in tasks))):
            reports = self._numbered(source_task([encode_report(task) for task in tasks]), count)
        _with_workers.add(self.context)
        return reports[: len(tasks)]

    def _workers_of(self, task: SourceTask) -> int:
        """Return the number of Python workers that keyed stages will need and Spark can start now.

        It is 0 with speculation: beside idle tasks, Spark takes a task of a source for a slow one, and runs it twice.
        """
        speculates = self.context.getConf().get("spark.speculation", "false") == "true"
        if speculates or not plan_of(task.batch.code).keyed:
            return 0
        return min(task.batch.parallelism, self.context.defaultParallelism)

    def keyed(self, task: KeyedTask, transit: Sequence[TransitFile]) -> list[TaskReport]:
        """Run a keyed stage as a Spark job."""
        with self._translated(plan_of(task.batch.code).keyed[task.stage].name):
            return self._numbered(keyed_task(encode_report(task), transit), task.batch.parallelism)

    def _numbered(self, task: NumberedTask, count: int) -> list[TaskReport]:
        """Run `task` for the numbers below `count`, as a job of Spark's core: its first SQL job takes 4 s more, and later ones 40 ms."""
        numbers = self.context.parallelize(range(count), count)
        return decoded(numbers.map(task).collect(), count)

    @contextmanager
    def _translated(self, stage: str) -> Iterator[None]:
        """Translate Spark's errors into errors of Headrace. Nothing is committed while tasks run."""
        from headrace.spark.errors import spark_errors

        with tasks_of(stage), spark_errors(f"in the tasks of '{stage}'", self._is_alive):
            yield

    def _is_alive(self) -> bool:
        from headrace.spark.errors import jvm_answers

        return jvm_answers(self.context)


def tasks_of(stage: str) -> AbstractContextManager[None]:
    """Let errors of the storage in the block name the stage."""
    return doing(f"tasks of '{stage}'")


def decoded(reports: Iterable[bytes], expected: int) -> list[TaskReport]:
    """Return the reports of `expected` tasks in their order. Raises the error that a task reported."""
    return checked(map(decode_report, reports), expected)
