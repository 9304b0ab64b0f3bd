"""Output of a task: staged files with names unique to the attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.api.graph import NULL_KEY, KeyBy
from headrace.async_io.traced_calls import TracedCalls
from headrace.errors import EngineBug
from headrace.execution.element import Emitted
from headrace.metrics import METRICS
from headrace.plan.loader import plan_of
from headrace.plan.stages import SinkPlan, ToStage
from headrace.records.column_types import columns_of
from headrace.records.columns import sink_schema, to_columns
from headrace.records.keys import key_reader
from headrace.records.source_columns import EventTimeLimit
from headrace.records.value_arrays import UnfitRecord
from headrace.run.messages import BatchSettings, TaskReport, TaskTrace
from headrace.run.rows import ColumnarRows, Outlet, Rows, as_records
from headrace.run.transforms import called, failed, refusing_unfit
from headrace.run.transit import block_limit, blocks, transit_table, write_transit
from headrace.sinks.sink import OutputFile
from headrace.sinks.staged_rows import StagedRows, changed_schema
from headrace.state.backend import EntryChange
from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.codec import encode
from headrace.state.key_columns import key_json_column
from headrace.storage.files import ParquetLayout
from headrace.storage.storage import Storage
from headrace.tables.changelog import Changelog, KeyedState, QuarantineRow, parts, stage_state
from headrace.tables.schemas import KEYED_STATE, QUARANTINE

TRANSIT = "transit"
_LARGE = 32 << 20
"""Bytes of values from which on they are copied in parts: that takes 0.4 us a value more."""
_WAITING: Final = 8
"""Part of a task's memory, one of so many, for rows that wait until they are a file's worth."""
_LONGEST: Final = 1 << 30
"""Bytes of rows that wait at most, whatever the limit: a column holds 2 GiB of text."""
_NULL_KEY = encode(NULL_KEY)
_TRIED_TWICE = 16
"""Number of records of a task for which a key function is called twice."""


def transit_folder(attempt_id: str) -> str:
    """Return the folder of the files that an attempt's tasks pass to each other."""
    return f"{TRANSIT}/{attempt_id}"


class TaskOutput:
    """Collector of one task's staged files, for its report."""

    def __init__(self, batch: BatchSettings, operator: str, label: str) -> None:
        """Prepare an empty report. `label` distinguishes the operator's tasks in file names."""
        self.report = TaskReport(trace=TaskTrace(calls=TracedCalls()) if batch.is_traced else None)
        self._batch = batch
        self._changelog = Changelog(operator, batch.checkpoint_id, batch.max_parallelism)
        self._operator = operator
        self.tried_keys: set[int] = set()
        """Keys, by identity, whose functions were called twice for some records."""
        self._rooms: dict[str, _Room] = {}
        self._prefix = f"{batch.checkpoint_id:010d}-{operator}-{label}-{batch.attempt_id[:12]}"

    @property
    def operator(self) -> str:
        """Return the stage's operator, or source."""
        return self._operator

    @property
    def limit(self) -> EventTimeLimit | None:
        """Return the latest event time that records of the stage may get; None: any."""
        return self._batch.limits.get(self._operator)

    @property
    def batch(self) -> BatchSettings:
        """Return the settings of the micro-batch."""
        return self._batch

    @property
    def changelog(self) -> Changelog:
        """Return the maker of this operator's rows."""
        return self._changelog

    def state(self, table: str, rows: pa.Table) -> None:
        """Stage rows of a state table. Writes no file without rows."""
        for part in parts(table, rows):
            staged = stage_state(self._batch.folder, table, self._file_name(), part)
            self.report.state_files.setdefault(table, []).append(staged)

    def values(self, store: KeyedState, changes: Sequence[EntryChange]) -> None:
        """Stage changes of keyed state. Large values become columns one row group at a time, to need less memory."""
        raws = [change.raw for change in changes]
        if sum(len(raw) for raw in raws if raw is not None) < _LARGE:
            self.state(KEYED_STATE, self._changelog.values(store, changes))
            return
        rows = self._changelog.values(store, changes, without_values=True)
        staged = stage_state(self._batch.folder, KEYED_STATE, self._file_name(), rows, values=raws)
        self.report.state_files.setdefault(KEYED_STATE, []).append(staged)

    def quarantine(self, rows: Sequence[QuarantineRow]) -> None:
        """Stage rows of the quarantine."""
        self.state(QUARANTINE, self._changelog.quarantine(rows))
        self.count(quarantined=len(rows))

    def transit(self, stage_name: str, table: pa.Table, *, is_broadcast: bool) -> None:
        """Stage rows, at least one, for the tasks of a keyed stage."""
        if is_broadcast:
            self.report.broadcast.setdefault(stage_name, []).append(self._for_all(table))
            return
        self._stage(f"stage {stage_name}", table, partial(self._stage_transit, stage_name))

    def _stage_transit(self, stage_name: str, table: pa.Table) -> None:
        stage = plan_of(self._batch.code).stage(stage_name)
        for block in blocks(table, block_limit(self._batch, len(stage.sources) + len(stage.after))):
            file = write_transit(self._transit, f"{self._name()}.arrows", block, self._batch)
            self.report.transit.setdefault(stage_name, []).append(file)

    def _stage(self, room: str, rows: pa.Table, stage: Callable[[pa.Table], None]) -> None:
        """Stage rows: at once, or where memory has a limit when all rows that wait take more than their part of it."""
        limit = self._batch.memory_for(_WAITING)
        if limit is None:
            stage(rows)
            return
        rooms = self._rooms
        rooms.setdefault(room, _Room(stage)).take(rows)
        while sum(waiting.size for waiting in rooms.values()) > min(limit, _LONGEST):
            max(rooms.values(), key=lambda waiting: waiting.size).end()

    def end(self) -> None:
        """Stage all rows that wait. Called at the end of each way."""
        for room in self._rooms.values():
            room.end()

    def for_calls(self, wait: str, table: pa.Table) -> None:
        """Stage rows, at least one, for a later task that makes the calls of an async wait."""
        self.report.calls.setdefault(wait, []).append(self._for_all(table))
        self.report.calls_rows += table.num_rows

    @property
    def _transit(self) -> Storage:
        return self._batch.folder.below(transit_folder(self._batch.attempt_id))

    def _for_all(self, table: pa.Table) -> str:
        """Stage rows that whole tasks read; return the path of their file."""
        name = self._file_name()
        self._transit.stage(name, table, layout=_WHOLE_LAYOUT, survives=False)
        return self._transit.within(name)

    def append_table(self, sink: str, rows: pa.Table) -> None:
        """Stage rows, at least one, with the columns of an append-only sink.

        Raises `UnfitRecord` for a row that the sink's table cannot hold.
        """
        staged = self._rows_for(sink)
        self._stage(
            f"sink {sink}", staged.fitted(rows), lambda fitted: self._output(sink, staged.append_fitted(fitted))
        )

    def changes(self, sink: SinkPlan, emitted: Sequence[Emitted]) -> None:
        """Stage a materializer's changes: for a merge, or as a log of changes if the sink is append-only.

        Raises `UnfitRecord` for a record that columns cannot store.
        """
        self._output(sink.name, self._rows_for(sink.name).changes(sink, emitted))

    def changed_columns(self, sink: SinkPlan, rows: ColumnarRows) -> bool:
        """Stage a materializer's changes, as `changes` does; return False if records have to be made, also to name one that the sink refuses."""
        table = rows.sink_table(changed_schema(sink))
        if table is None:
            return not len(rows)
        orders = (order.as_py() for order in rows.orders)
        try:
            self._output(sink.name, self._rows_for(sink.name).change_table(table, rows.kinds, orders))
        except UnfitRecord:
            return False
        return True

    def merges_into(self, sink: str) -> bool:
        """Return whether a sink has one row for each primary key, and so takes one change for each key in a micro-batch."""
        return sink not in self._batch.appended

    def count(self, **metrics: int) -> None:
        """Add to the task's metrics. Raises `EngineBug` for a name that is not registered."""
        totals = self.report.metrics
        for name, value in metrics.items():
            if name not in METRICS:
                msg = f"metric '{name}' is not registered in headrace.metrics"
                raise EngineBug(msg)
            if value:
                totals[name] = METRICS[name].together(totals.get(name), value)

    def count_keyed(self, metrics: Mapping[str, int]) -> None:
        """Add the metrics of a keyed operator. Its `records` count as `keyed_records`."""
        self.count(**{("keyed_records" if name == "records" else name): value for name, value in metrics.items()})

    def _rows_for(self, sink: str) -> StagedRows:
        batch = self._batch
        merges, has_folders = self.merges_into(sink), sink in batch.folders
        return StagedRows(
            sink, batch.folder, batch.sinks[sink], batch.staging(sink), merges, has_folders, self._file_name
        )

    def _output(self, sink: str, files: Sequence[OutputFile]) -> None:
        if files:
            self.report.outputs.setdefault(sink, []).extend(files)
            self.count(rows_out=sum(file.rows for file in files))

    def _file_name(self) -> str:
        return f"{self._name()}.parquet"

    def _name(self) -> str:
        return f"{self._prefix}-{clock.unique_id()[:12]}"


@dataclass(slots=True)
class _Room:
    """Rows that wait until they are a file's worth; `stage` makes a file of them."""

    stage: Callable[[pa.Table], None]
    parts: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def take(self, rows: pa.Table) -> None:
        self.parts.append(rows)
        self.size += rows.nbytes

    def end(self) -> None:
        parts, self.parts, self.size = self.parts, [], 0
        if parts:
            self.stage(parts[0] if len(parts) == 1 else pa.concat_tables(parts).combine_chunks())


@dataclass(frozen=True, slots=True)
class _Staging(Outlet):
    """End of a way whose rows become files of a task."""

    output: TaskOutput

    def end(self) -> None:
        """Stage rows that wait for others."""
        self.output.end()


@dataclass(frozen=True, slots=True)
class SinkFiles(_Staging):
    """End of a way at an append-only sink. `maker` is the step or operator that made the records."""

    sink: str
    record: type[msgspec.Struct]
    maker: str

    def take(self, rows: Rows, /) -> None:
        """Stage rows in the sink's folder. Raises the errors of `refusing_unfit` for a record that the sink cannot store."""
        if not len(rows):
            return
        schema = sink_schema(self.record, names=plan_of(self.output.batch.code).sinks[self.sink].names)
        if isinstance(rows, ColumnarRows) and self._appends(rows, schema):
            return
        emitted = as_records(rows)
        with refusing_unfit(self.maker, emitted, self.sink):
            columns = to_columns([item.record for item in emitted], schema, self.record)
            self.output.append_table(self.sink, columns)

    def _appends(self, rows: ColumnarRows, schema: pa.Schema) -> bool:
        """Append rows as columns; return False if records have to be made, also to name the one that the sink refuses."""
        table = rows.sink_table(schema)
        if table is None:
            return False
        try:
            self.output.append_table(self.sink, table)
        except UnfitRecord:
            return False
        return True


@dataclass(frozen=True, slots=True)
class Transit(_Staging):
    """End of a way in a task, at a keyed stage. `maker` is the step or operator that made the records."""

    to: ToStage
    record: type[msgspec.Struct]
    maker: str

    def take(self, rows: Rows, /) -> None:
        """Stage rows with their keys; a row without a key goes to quarantine, unless the keyed stage takes such rows.

        Raises `UserFunctionError` for an invalid key, and for a record that columns cannot store.
        """
        if not len(rows):
            return
        columns = columnar(rows, self.record, self.maker)
        keys = self._keys(rows, columns)
        if keys.null_count and self.to.takes_null_keys:
            keys = keys.fill_null(_NULL_KEY)
        if keys.null_count:
            has_key = pc.is_valid(keys)
            self._refuse_without_key(columns.filter(pc.invert(has_key)))
            columns, keys = columns.filter(has_key), keys.filter(has_key)
        if len(columns):
            takes = plan_of(self.output.batch.code).stage(self.to.stage).takes
            table = transit_table(takes, self.to.number, columns, keys, self.output.batch.max_parallelism)
            self.output.transit(self.to.stage, table, is_broadcast=self.to.key is None)

    def _keys(self, rows: Rows, columns: ColumnarRows) -> pa.BinaryArray:
        key = self.to.key
        if key is None:
            return pa.repeat(pa.scalar(BROADCAST_KEY, pa.binary()), len(columns))
        if key.function is not None:
            return self._made_keys(key, [emitted.record for emitted in as_records(rows)])
        fields = {column.name: column.kind for column in columns_of(columns.record)}
        return key_json_column(*(fields[name].as_key(columns.columns.field(name)) for name in key.fields))

    def _made_keys(self, key: KeyBy, records: Sequence[msgspec.Struct]) -> pa.BinaryArray:
        read = key_reader(key)

        def made_key(record: msgspec.Struct) -> bytes | None:
            key = read(record)
            return None if key is None else encode(key)

        step = f"key_by {key}"
        keys = [called(step, made_key, record) for record in records]
        if id(key) not in self.output.tried_keys:  # the plan keeps it
            self.output.tried_keys.add(id(key))
            for record, key_json in zip(records[:_TRIED_TWICE], keys, strict=False):
                if (again := called(step, made_key, record)) != key_json:
                    raise failed(step, record, _not_the_same(key_json, again))
        return pa.array(keys, pa.binary())

    def _refuse_without_key(self, rows: ColumnarRows) -> None:
        operator = self.output.operator
        self.output.quarantine(
            [
                QuarantineRow.of_record(operator, row.order, row.record, "null", self._why_without_key(row.record))
                for row in rows.emitted()
            ]
        )

    def _why_without_key(self, record: msgspec.Struct) -> str:
        """Return the reason for which a record has no key, with the fields that are null where the key has several."""
        names = () if self.to.key is None else self.to.key.fields
        null = ", ".join(name for name in names if getattr(record, name) is None)
        return f"the key ({self.to.key}) is null{f' in {null}' if len(names) > 1 else ''}"


@dataclass(frozen=True, slots=True)
class ForCalls(Outlet):
    """End of a way at an async wait whose calls a later task makes. `maker` is the step or source that made the records."""

    output: TaskOutput
    wait: str
    record: type[msgspec.Struct]
    maker: str

    def take(self, rows: Rows, /) -> None:
        """Stage rows. Raises `UserFunctionError` for a record that columns cannot store."""
        if len(rows):
            self.output.for_calls(self.wait, columnar(rows, self.record, self.maker).table())


def _not_the_same(key: bytes | None, again: bytes | None) -> str:
    one, other = (b"null" if shown is None else shown for shown in (key, again))
    return (
        f"it gave this record the key {one.decode():.100}, and {other.decode():.100} when it was called again. A micro-batch may run "
        "again, and must give the same: make the key of the record alone, without random numbers, clocks and counters"
    )


def columnar(rows: Rows, record: type[msgspec.Struct], maker: str) -> ColumnarRows:
    """Return rows as columns. Raises `UserFunctionError` for a record that `maker` has made, and that columns cannot store."""
    if isinstance(rows, ColumnarRows):
        return rows
    with refusing_unfit(maker, rows):
        return ColumnarRows.of(rows, record)


_WHOLE_LAYOUT = ParquetLayout("lz4", dictionary=(), statistics=False)
