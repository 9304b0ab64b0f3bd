"""Both ends of a transform's Spark job, in Python on executors: read files of a source, and land the transform's rows of each file.

The transform runs between them, in the JVM. A partition has one file from end to end, so rows keep their order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import pyarrow as pa

from headrace.config import PipelineCode
from headrace.errors import StorageError
from headrace.plan.loader import plan_of
from headrace.sources.folder.format import UNREADABLE, DamagedFileError, is_damage, is_tried_again
from headrace.sources.kafka.landed import temporary_name
from headrace.sources.registry import read_rows_of
from headrace.sources.source import InputFile
from headrace.sources.transformed.rows import Refused, columns_of_rows, refused_rows, transform_input
from headrace.sources.transformed.source import Origin, write_derived
from headrace.spark.tasks import Partition
from headrace.storage.refusals import reason_of
from headrace.storage.storage import Storage

LANDED_DDL = "report binary"
_ROWS_AT_ONCE = 8192


class TransformTask(msgspec.Struct, frozen=True):
    """Input of both ends: the job's code, the source, its files in the order of partitions, and the folder to land rows in."""

    code: PipelineCode
    source: str
    files: tuple[InputFile, ...]
    on_bad_file: str
    folder: Storage
    origin: Origin
    allows_whole: bool = False
    """True: all rows of a file may go to the quarantine."""


class LandedFile(msgspec.Struct, frozen=True):
    """Report of a task: the number of the file, and its temporary name. `error` says why storage, or reading the file, failed."""

    number: int
    file: str = ""
    error: str | None = None
    is_bad_file: bool = False


def reading_partition(payload: bytes) -> Partition:
    """Return a function that yields the good rows of the partition's file.

    It yields none for an unreadable file, which the other end reports.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = msgspec.json.decode(payload, type=TransformTask)
        for batch in batches:
            for number in batch["id"].to_pylist():
                try:
                    rows, _, _ = _read(task, task.files[number])
                except UNREADABLE:
                    rows = None
                if rows is not None:
                    yield from rows.to_batches(_ROWS_AT_ONCE)

    return run


def landing_partition(payload: bytes, schema: pa.Schema) -> Partition:
    """Return a function that writes the transform's rows of a file, and rows refused before the transform, to a file of its own."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # noqa: S101 - Spark runs this in a task
        task = msgspec.json.decode(payload, type=TransformTask)
        yield _as_batch(_landed(task, context.partitionId(), batches, schema))

    return run


def landing_nothing(payload: bytes, schema: pa.Schema) -> Partition:
    """Return a function that lands files for which the transform returned no rows; its rows are the files' numbers."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = msgspec.json.decode(payload, type=TransformTask)
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield _as_batch(_landed(task, number, (), schema))

    return run


def _landed(task: TransformTask, number: int, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> LandedFile:
    file, name = task.files[number], temporary_name()
    try:
        _, refused, doubtful = _read(task, file)
    except UNREADABLE as error:
        if is_tried_again(error):
            return LandedFile(number, error=f"could not read {file.path}: {error}")
        return LandedFile(number, error=f"{error}", is_bad_file=True)
    place = task.folder.below(name)
    try:
        write_derived(place, batches, schema, refused=refused, doubtful=doubtful, origin=task.origin)
    except StorageError as error:  # an error raised here would make Spark retry
        return LandedFile(number, error=f"could not write {place.uri}: {reason_of(error)}")
    return LandedFile(number, name)


def _read(task: TransformTask, file: InputFile) -> tuple[pa.Table | None, Sequence[Refused], int]:
    """Return the good rows of a file, the refused ones, and the number of doubtful times. An unreadable file counts as refused, or raises, as configured."""
    node = next(source for source in plan_of(task.code).sources if source.name == task.source).stored
    try:
        rows = read_rows_of(file, node, task.folder)
        checked = columns_of_rows(node, rows)
        is_whole = len(checked.bad) == rows.table.num_rows and not rows.is_refused_by_folder
        if checked.bad and is_whole and not task.allows_whole:
            first = min(checked.bad, key=lambda row: row.position)
            msg = f"none of its rows fits; row {first.position}: {first.error}"
            raise DamagedFileError(msg)
    except UNREADABLE as error:
        if task.on_bad_file == "fail" or not is_damage(error):
            raise
        return None, [Refused(f"{file.name}: cannot read it: {error}", file.path)], 0
    good = transform_input(checked.columns, checked.kinds, node)
    return good, refused_rows(rows, checked.bad, file.name), checked.doubtful


def _as_batch(report: LandedFile) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([msgspec.json.encode(report)], pa.binary())], names=["report"])
