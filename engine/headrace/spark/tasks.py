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

import msgspec
import pyarrow as pa

from headrace import logs
from headrace.plan.loader import plan_of
from headrace.run.messages import KeyedTask, SourceTask, TaskReport, decode_report, encode_report
from headrace.run.rows import Takes, transit_ddl
from headrace.run.tasks import (
    checked,
    in_reused_worker,
    run_idle_task,
    run_keyed_task,
    run_reading_task,
    run_source_task,
)
from headrace.storage.pandas import without_pandas
from headrace.storage.refusals import doing
from headrace.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

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


def reading_task(payload: bytes, transit: Sequence[str]) -> NumberedTask:
    """Return a function that runs the keyed task with the given number. The task reads its rows itself."""
    return lambda number: _encoded(lambda: run_reading_task(payload, number, transit))


def transit_part(transit: Sequence[str]) -> bytes:
    """Return the files in transit as the second part of a description, behind the task."""
    return msgspec.json.encode({"transit": transit})


def described_reading_task(parts: Sequence[bytes]) -> NumberedTask:
    """Return `reading_task` of a task and its `transit_part`."""
    payload, transit = parts
    return reading_task(payload, msgspec.json.decode(transit)["transit"])


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


def keyed_partition(parts: Parts) -> Partition:
    """Return a function that runs a keyed stage over the rows of the partition; its number is the task's."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        (payload,) = parts()
        logs.set_up_worker()
        with in_reused_worker():
            report = run_keyed_task(payload, context.partitionId(), batches)
        yield _as_batch(encode_report(report))

    return run


def transit_partition(storage: Storage) -> Partition:
    """Return a function that reads the transit files whose paths are the partition's rows."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for path in batch["path"].to_pylist():
                yield from storage.at(path).parquet().to_batches()

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


ROWS_WORTH_A_SHUFFLE: Final = 4_000_000
"""Up to this number of rows that all tasks of a stage read together, each task reads all files in transit and keeps its share.

Spark's shuffle takes 0.09 s for one row, and more CPU than reading all of them in each of a few tasks, which is 0.15 us a row.
"""

BYTES_WORTH_A_SHUFFLE: Final = 64_000_000
"""The same for the size of the files in transit: a task has all their rows in memory."""

FILES_WORTH_A_SHUFFLE: Final = 64
"""The same for files that all tasks open together: each is a request on an object store."""


@dataclass(slots=True)
class SparkTasks:
    """Tasks on Spark, for `SparkOnDemand`: one Spark job for each stage, one Spark task for each task."""

    context: SparkContext
    _has_workers: bool = False

    def sources(self, tasks: Sequence[SourceTask]) -> list[TaskReport]:
        """Run tasks of sources as a Spark job. The first one has idle tasks as well, which prepare workers for the keyed stages behind it."""
        if not tasks:
            return []
        count = len(tasks) if self._has_workers else max(len(tasks), self._workers_of(tasks[0]))
        with self._translated(", ".join(dict.fromkeys(task.source for task in tasks))):
            reports = self._numbered(source_task([encode_report(task) for task in tasks]), count)
        self._has_workers = True
        return reports[: len(tasks)]

    def _workers_of(self, task: SourceTask) -> int:
        """Return the number of Python workers that keyed stages will need and Spark can start now.

        It is 0 with speculation: beside idle tasks, Spark takes a task of a source for a slow one, and runs it twice.
        """
        speculates = self.context.getConf().get("spark.speculation", "false") == "true"
        if speculates or not plan_of(task.batch.code).keyed:
            return 0
        return min(task.batch.parallelism, self.context.defaultParallelism)

    def keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        """Run a keyed stage as a Spark job."""
        with self._translated(plan_of(task.batch.code).keyed[task.stage].name):
            return self._keyed(task, takes, transit)

    def _keyed(self, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> list[TaskReport]:
        from headrace.spark.session import session_on

        count = task.batch.parallelism
        if is_small(task, transit):  # also without rows: timers may be due
            return self._numbered(reading_task(encode_report(task), transit), count)
        rows = shuffled_rows(session_on(self.context), task, takes, transit)
        reports = rows.mapInArrow(keyed_partition(inline_parts([encode_report(task)])), REPORT_DDL).collect()
        return decoded((bytes(row.report) for row in reports), count)

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


def shuffled_rows(spark: SparkSession, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> DataFrame:
    """Return the rows in transit: those of each task in the partition of its number, in arrival order."""
    count = task.batch.parallelism
    owner = f"cast(key_group * {count} div {task.batch.max_parallelism} as int)"
    rows = _read(spark, task, takes, transit).selectExpr("*", f"{owner} as task").repartitionById(count, "task")
    return rows.drop("task").sortWithinPartitions("order")


def _read(spark: SparkSession, task: KeyedTask, takes: Takes, transit: Sequence[str]) -> DataFrame:
    ddl = transit_ddl(takes)
    if task.batch.folder.is_on_local_disk:
        return spark.read.schema(ddl).parquet(*transit)
    # Executors read from the object store with Headrace's client, so Spark needs no S3 client.
    paths = spark.createDataFrame([(path,) for path in transit], "path string")
    spread = paths.repartition(min(len(transit), task.batch.parallelism))
    return spread.mapInArrow(transit_partition(task.batch.folder), ddl)


def decoded(reports: Iterable[bytes], expected: int) -> list[TaskReport]:
    """Return the reports of `expected` tasks in their order. Raises the error that a task reported."""
    return checked(map(decode_report, reports), expected)


def is_small(task: KeyedTask, transit: Sequence[str]) -> bool:
    """Return whether each task should read all rows in transit, and keep its share: always where Spark gives no rows to tasks by number (4.0)."""
    from pyspark.sql import DataFrame

    count = task.batch.parallelism
    return not hasattr(DataFrame, "repartitionById") or (
        count * task.rows <= ROWS_WORTH_A_SHUFFLE
        and task.transit_bytes <= BYTES_WORTH_A_SHUFFLE
        and count * len(transit) <= FILES_WORTH_A_SHUFFLE
    )
