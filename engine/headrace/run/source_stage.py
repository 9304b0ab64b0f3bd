"""Source's stage in one task: read files, check rows, run steps and calls on them, stage the results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from headrace.api.graph import SourceNode
from headrace.errors import SourceError
from headrace.log.progress import TaskProgress
from headrace.names import counted
from headrace.plan.loader import plan_of
from headrace.plan.stages import flows_into_waits
from headrace.records.columns import BadRow
from headrace.records.source_columns import arrival_order, order_column
from headrace.run.async_stage import AsyncStage
from headrace.run.flow import laid
from headrace.run.messages import SourceTask, TaskReport
from headrace.run.output import TaskOutput
from headrace.run.rows import ColumnarRows, Taker, handed_on, joined
from headrace.run.watch import CALLS, SOURCES, StopSign, TaskNotes
from headrace.sources.folder.format import UNREADABLE, FileRows, is_damage, unreadable, why_unreadable
from headrace.sources.position import rows_in
from headrace.sources.registry import read_parts_of, read_rows_of
from headrace.sources.row_check import CheckedRows, RefusedRows, RowCheck
from headrace.sources.source import InputFile
from headrace.state.key_groups import key_group_range
from headrace.tables.changelog import QuarantineRow

_PARTS: Final = 8
"""Part of a task's memory, one of so many, for the rows of a file that are read at once."""


def run_source(task: SourceTask) -> TaskReport:
    """Run a source's stage over the task's files; of a shared source all but the calls, or these alone."""
    plan = plan_of(task.batch.code)
    stage = next(stage for stage in plan.source_stages if stage.name == task.source)
    output = TaskOutput(task.batch, stage.name, f"t{task.index}")
    notes = TaskNotes(task.batch, SOURCES if task.calls is None else CALLS, f"{task.source}-{task.index}")
    if task.calls is None and plan.is_shared(stage):
        _read_all(task, stage.source, output, notes, laid(stage.flow, output))
        notes.end()
        return output.report
    groups = key_group_range(task.index, task.batch.max_parallelism, task.tasks)
    with AsyncStage(task.batch, task.async_io, groups, output, StopSign(task), notes) as waits:
        if task.calls is None:
            _read_all(task, stage.source, output, notes, laid(stage.flow, output, waits))
        else:
            for wait, flow in flows_into_waits(stage.flow):
                _take_staged(task, task.calls.get(wait.name, ()), flow.record, laid(flow, output, waits))
    notes.end()
    return output.report


def _take_staged(task: SourceTask, paths: Sequence[str], record: type[msgspec.Struct], pipe: Taker) -> None:
    """Pass on the records that a task which read the source has staged for a wait, and the end."""
    for path in paths:
        pipe.take(ColumnarRows.of_table(handed_on(task.batch.folder.at(path)), record))
    pipe.end()


def _read_all(task: SourceTask, source: SourceNode, output: TaskOutput, notes: TaskNotes, pipe: Taker) -> None:
    """Pass on all good rows of the task's files, and the end."""
    reader = _FileReader(task, source)
    of = sum(file.taken for file in task.files)
    notes.measured_by(lambda: TaskProgress(operator=source.name, rows=reader.rows, of=of))
    parts = []
    is_in_turn = task.batch.max_memory is not None and all(file.ordinals is None for file in task.files)
    for file in task.files:
        for rows in reader.read(file):
            if is_in_turn:
                pipe.take(rows)
            else:
                parts.append(rows)
            notes.note()
        notes.note()
    output.quarantine(reader.quarantined)
    output.count(rows_in=reader.rows, ahead=reader.ahead, doubtful_times=reader.doubtful)
    output.report.buckets = reader.buckets
    output.report.refused = reader.refused
    if parts:
        rows = joined(parts)
        parts.clear()  # else all rows are there twice, until the pipe has taken them
        pipe.take(rows)
    pipe.end()


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows of a file that the task takes, in arrival order. `positions` are their numbers in the file; None: in the file's order."""

    rows: FileRows
    table: pa.Table
    positions: pa.Array | None
    ordinals: pa.Array

    def position(self, file: InputFile, row: int) -> int:
        """Return the number in the file of a taken row."""
        return file.first_row + row if self.positions is None else int(self.positions[row].as_py())

    def raw(self, file: InputFile, row: int) -> str:
        """Return a taken row as the quarantine stores it."""
        return self.rows.raw(self.position(file, row) - self.rows.first)

    def problems(self, file: InputFile) -> dict[int, str]:
        """Return the reasons why rows cannot be read, by their index among the taken rows."""
        problems_by_row = self.rows.problems
        if not problems_by_row:
            return {}
        places = range(len(self.ordinals))
        return {
            row: problems_by_row[position]
            for row in places
            if (position := self.position(file, row)) in problems_by_row
        }


def _part_of(file: InputFile, rows: FileRows) -> InputFile:
    """Return the taken rows of a file that are among these."""
    first = max(file.first_row, rows.first)
    last = min(file.first_row + file.taken, rows.first + rows.table.num_rows)
    return replace(file, first_row=first, last_row=last, first_ordinal=file.first_ordinal + first - file.first_row)


class _FileReader:
    """Reader of one source's files. It collects the rows and files for the quarantine."""

    def __init__(self, task: SourceTask, source: SourceNode) -> None:
        self.quarantined: list[QuarantineRow] = []
        self.refused: list[RefusedRows] = []
        self.rows = self.ahead = self.doubtful = 0
        self.buckets: dict[int, int] = {}
        self._task = task
        self._source = source

    def read(self, file: InputFile) -> Iterator[ColumnarRows]:
        """Yield the good rows of a file in arrival order: at once, or in parts where memory has a limit and the file allows it.

        Raises `SourceError` for a bad file or row, unless the configuration puts it into quarantine.
        """
        if (limit := self._limit(file)) is None:
            rows = self._rows(file)
            if rows is not None and (good := self._taken(file, rows)) is not None:
                yield good
            return
        noted = len(self.refused)
        for rows in self._parts(file, limit):
            part = file if rows.of is None else _part_of(file, rows)
            if part.taken >= 0 and (good := self._taken(part, rows)) is not None:
                yield good
            if rows.of is not None:
                self._note_together(file, noted)

    def _limit(self, file: InputFile) -> int | None:
        """Return the bytes of a part of a file, if it may be read in parts; None otherwise.

        Whether a file goes to the quarantine, and which order its rows have, is known only when all of it has been read.
        """
        task = self._task
        is_plain = file.picked is None and file.ordinals is None and not self._source.order_by
        return task.batch.memory_for(_PARTS) if is_plain and task.on_bad_file == "fail" else None

    def _parts(self, file: InputFile, limit: int) -> Iterator[FileRows]:
        """Yield the rows of a file. Raises `SourceError` if it cannot be read as a whole."""
        try:
            for rows in read_parts_of(file, self._source, self._task.batch.folder, limit):
                if (problem := self._problem(file, rows)) is not None:
                    self._refuse_file(file, SourceError(problem), rows)
                yield rows
        except UNREADABLE as error:
            raise unreadable(self._source.name, file.path, error) from error

    def _note_together(self, file: InputFile, noted: int) -> None:
        """Join what was noted on the refused rows of the parts of a file, behind the first `noted` of all notes."""
        if parts := self.refused[noted:]:
            rows = sum(part.rows for part in parts)
            is_whole = rows == file.rows
            self.refused[noted:] = [RefusedRows(file.path, rows, is_whole=is_whole, error=parts[0].error)]

    def _taken(self, file: InputFile, rows: FileRows) -> ColumnarRows | None:
        """Return the good rows among those that are taken of a file; None if there are none."""
        check = self._check(rows)
        try:
            taken = self._slice(file, rows)
            checked = check.check(taken.table, taken.problems(file))
        except (pa.ArrowException, UnicodeDecodeError) as error:  # columns without an order, text that is no UTF-8
            self._refuse_file(file, error, rows)
            return None
        self.rows += len(taken.ordinals)
        self.ahead += checked.ahead
        # A Spark transform gives times a unit. They stay doubtful where it took numbers that are, and has not converted them.
        took_doubtful = rows.before is not None and rows.before.doubtful > 0
        self.doubtful += check.doubtful_times(checked.columns) if took_doubtful else checked.doubtful
        times = check.times(checked.columns)
        self._note_times(times, taken.ordinals)
        for row in checked.bad:
            self._refuse_row(file, taken, row.position, row.error)
        if checked.bad:
            self._note_refused(file, taken, checked.bad)
        return self._good_rows(checked, times, taken.ordinals)

    def _good_rows(self, checked: CheckedRows, times: pa.Array, ordinals: pa.Array) -> ColumnarRows | None:
        columns = checked.columns
        rows = ColumnarRows(self._source.record, order_column(ordinals), times, checked.kinds, columns)
        good = rows.filter(columns.is_valid()) if columns.null_count else rows
        return good if len(good) else None

    def _check(self, rows: FileRows) -> RowCheck:
        return RowCheck(self._source, rows.decoder, self._task.batch.limits.get(self._source.name))

    def _slice(self, file: InputFile, rows: FileRows) -> _Slice:
        taken, table = file.taken, rows.table
        if file.picked is not None:
            picked = pa.array(rows_in(file.picked), pa.int64())
            order = arrival_order(table.take(picked), self._source)
            positions = picked if order is None else picked.take(order)
            return _Slice(rows, table.take(positions), positions, self._ordinals(file, taken))
        order = arrival_order(table, self._source)
        if order is None:
            return _Slice(rows, table.slice(file.first_row - rows.first, taken), None, self._ordinals(file, taken))
        positions = order.slice(file.first_row, taken)
        return _Slice(rows, table.take(positions), positions, self._ordinals(file, taken))

    def _ordinals(self, file: InputFile, taken: int) -> pa.Array:
        if file.ordinals is None:
            return pa.array(np.arange(file.first_ordinal, file.first_ordinal + taken, dtype=np.int64))
        return handed_on(self._task.batch.folder.at(file.ordinals)).column(0).combine_chunks()

    def _note_times(self, times: pa.Int64Array, ordinals: pa.Int64Array) -> None:
        """Keep the latest event time of the good rows in each bucket of arrival order."""
        numbers = pc.divide(ordinals, self._task.bucket)
        latest = pa.table({"bucket": numbers, "time": times}).group_by("bucket").aggregate([("time", "max")])
        for number, time in zip(latest["bucket"].to_pylist(), latest["time_max"].to_pylist(), strict=True):
            if time is not None:
                self.buckets[number] = max(time, self.buckets.get(number, time))

    def _rows(self, file: InputFile) -> FileRows | None:
        try:
            rows = read_rows_of(file, self._source, self._task.batch.folder)
        except UNREADABLE as error:
            if not is_damage(error):
                raise unreadable(self._source.name, file.path, error) from error
            self._refuse_file(file, error)
            return None
        problem = self._problem(file, rows)
        if problem is not None:
            self._refuse_file(file, SourceError(problem), rows)
            return None
        return rows

    def _problem(self, file: InputFile, rows: FileRows) -> str | None:
        table = rows.table
        if (problem := self._check(rows).problem(table, rows.header)) is not None:
            return problem
        # The arrival order of other files depends on this number.
        count = table.num_rows if rows.of is None else rows.of
        return f"{counted(count, 'row')}, {file.rows} when the run began" if count != file.rows else None

    def _refuse_row(self, file: InputFile, taken: _Slice, row: int, error: str) -> None:
        position = taken.position(file, row)
        if self._task.on_bad_row == "fail":
            msg = (
                f"source '{self._source.name}': row {position} of {file.path}: {error}. Repair the file, or "
                f"set 'sources.{self._source.name}.on_bad_row: quarantine' to go on without such rows."
            )
            raise SourceError(msg)
        raw = taken.raw(file, row)
        self.quarantined.append(QuarantineRow.of_row(self._source.name, file.name, position, raw, error))

    def _note_refused(self, file: InputFile, taken: _Slice, bad: Sequence[BadRow]) -> None:
        """Note the refused rows of a file, for the driver. Rows that return from the quarantine were noted before."""
        if file.picked is not None:
            return
        before = taken.rows.before
        is_whole = (0 if before is None else before.refused) < len(
            bad
        ) == file.rows and not taken.rows.is_refused_by_folder
        path = file.path if before is None else before.file
        error = f"row {taken.position(file, bad[0].position)}: {bad[0].error}"
        self.refused.append(RefusedRows(path, len(bad), is_whole, error))

    def _refuse_file(self, file: InputFile, error: Exception, rows: FileRows | None = None) -> None:
        """Put a file, or the taken part of it, into quarantine. `rows` are those of the file; None if it cannot be read."""
        why = why_unreadable(self._source.name, file.path, error)
        if self._task.on_bad_file == "fail":
            raise unreadable(self._source.name, file.path, error) from error
        if file.picked is None:
            self.quarantined.append(self._refused_file(file, why))
            self.refused.append(RefusedRows(file.path, file.taken, is_whole=True, error=why))
            return
        # The rows were readable when they were requeued. So an unreadable file has changed, and must not be skipped.
        if rows is None or rows.table.num_rows != file.rows:
            raise unreadable(self._source.name, file.path, error) from error
        for row in rows_in(file.picked):
            self.quarantined.append(QuarantineRow.of_row(self._source.name, file.name, row, rows.raw(row), why))

    def _refused_file(self, file: InputFile, error: str) -> QuarantineRow:
        name = self._source.name
        if not file.is_part:
            return QuarantineRow.of_file(name, file.name, file.path, error)
        return QuarantineRow.of_part(name, file.name, (file.first_row, file.first_row + file.taken), file.path, error)
