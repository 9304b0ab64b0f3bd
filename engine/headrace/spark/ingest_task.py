"""The first stage in one task: read files, check rows, make the async calls, stage the results."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import SourceNode
from headrace.checkpoint.files import read_parquet
from headrace.errors import SourceError
from headrace.execution.element import Emitted
from headrace.plan.columns import RecordReader
from headrace.plan.order import record_order
from headrace.plan.pipelines import plan_of
from headrace.plan.stages import Ingest
from headrace.sources.parquet_folder import unreadable
from headrace.sources.source import InputFile
from headrace.spark.async_stage import AsyncStage
from headrace.spark.reports import IngestTask, TaskReport
from headrace.spark.stop_sign import StopSign
from headrace.spark.task_output import QuarantineRow, TaskOutput
from headrace.state.key_groups import key_group_range


def run_ingest(task: IngestTask, index: int) -> TaskReport:
    """Run the first stage over the task's files."""
    stage = plan_of(task.place.code).ingest
    output = TaskOutput(task.place, stage.source.name, f"t{index}")
    emitted = _read_all(task, stage, output)
    groups = key_group_range(index, task.place.max_parallelism, task.tasks)
    waits = AsyncStage(task.place, task.async_io, groups, output, StopSign(task))
    output.transit(waits.run(stage.waits, emitted), stage.key)
    return output.report


def _read_all(task: IngestTask, stage: Ingest, output: TaskOutput) -> list[Emitted]:
    reader = _FileReader(task, stage.source, output)
    emitted: list[Emitted] = []
    for file in task.files:
        emitted += reader.read(file)
    output.quarantine(reader.quarantined)
    output.count(rows_in=reader.rows)
    return emitted


class _FileReader:
    """Reads files of one source; collects what has to go to quarantine."""

    def __init__(self, task: IngestTask, source: SourceNode, output: TaskOutput) -> None:
        self.quarantined: list[QuarantineRow] = []
        self.rows = 0
        self._task = task
        self._source = source
        self._buckets = output.report.buckets
        self._reader = RecordReader(source.record, source.row_kind)

    def read(self, file: InputFile) -> list[Emitted]:
        """The good rows of a file in arrival order.

        Raises `SourceError` for a file or row that must not be passed over, as configured.
        """
        table = self._table(file)
        if table is None:
            return []
        try:
            order = self._arrival_order(table)
            order = _taken_part(order, table.num_rows, file)
            ordered = table.take(order) if order is not None else table
            records, kinds, bad = self._reader.read(ordered)
        except (pa.ArrowException, UnicodeDecodeError) as error:  # columns without an order, text that is no UTF-8
            self._refuse_file(file, unreadable(self._source.name, file.path, error))
            return []
        self.rows += file.taken
        for row in bad:
            position = row.position if order is None else order[row.position].as_py()
            self._refuse_row(file, ordered, row.position, position, row.error)
        return self._emit(file, records, kinds)

    def _table(self, file: InputFile) -> pa.Table | None:
        try:
            table = read_parquet(file.path, self._task.place.storage)
        except (OSError, pa.ArrowException) as error:
            self._refuse_file(file, unreadable(self._source.name, file.path, error))
            return None
        fault = self._fault(file, table)
        if fault is not None:
            self._refuse_file(file, unreadable(self._source.name, file.path, SourceError(fault)))
            return None
        return table

    def _fault(self, file: InputFile, table: pa.Table) -> str | None:
        names = table.schema.names
        missing = self._reader.missing(names)
        if missing:
            return f"no column {', '.join(missing)}"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return f"more than one column {', '.join(twice)}"
        # Others' places in the order of arrival rest on this number.
        return f"{table.num_rows} rows, {file.rows} when the run began" if table.num_rows != file.rows else None

    def _arrival_order(self, table: pa.Table) -> pa.Array | None:
        if not self._source.order_by:
            return None
        return pc.sort_indices(table, [(name, "ascending") for name in self._source.order_by])

    def _emit(self, file: InputFile, records: Sequence[msgspec.Struct | None], kinds: Sequence[int]) -> list[Emitted]:
        event_time, bucket, buckets = self._source.event_time, self._task.bucket, self._buckets
        emitted = []
        for ordinal, record, kind in zip(self._ordinals(file), records, kinds, strict=True):
            if record is None:
                continue
            timestamp = getattr(record, event_time)
            number = ordinal // bucket
            if timestamp > buckets.get(number, timestamp - 1):
                buckets[number] = timestamp
            emitted.append(Emitted(record_order(ordinal), timestamp, kind, record))
        return emitted

    def _ordinals(self, file: InputFile) -> Sequence[int]:
        if file.ordinals is None:
            return range(file.first_ordinal, file.first_ordinal + file.taken)
        ordinals: list[int] = read_parquet(file.ordinals, self._task.place.storage).column(0).to_pylist()
        return ordinals

    def _refuse_row(self, file: InputFile, table: pa.Table, row: int, position: int, error: str) -> None:
        if self._task.on_bad_row == "fail":
            msg = (
                f"source '{self._source.name}': row {position} of {file.path}: {error}. Repair the file, or "
                f"set 'sources.{self._source.name}.on_bad_row: quarantine' to go on without such rows."
            )
            raise SourceError(msg)
        raw = msgspec.json.encode(table.slice(row, 1).to_pylist()[0], enc_hook=str).decode()
        self.quarantined.append((self._source.name, f"{file.name}:{position}", "null", raw, error))

    def _refuse_file(self, file: InputFile, error: SourceError) -> None:
        if self._task.on_bad_file == "fail":
            raise error
        self.quarantined.append((self._source.name, file.name, "null", file.path, str(error)))


def _taken_part(order: pa.Array | None, rows: int, file: InputFile) -> pa.Array | None:
    """Return the positions of the rows that are taken in, in arrival order; None: all, as they stand in the file."""
    if file.taken == rows:
        return order
    positions = pa.array(range(rows), pa.int64()) if order is None else order
    return positions[file.first_row : file.first_row + file.taken]
