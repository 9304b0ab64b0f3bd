"""Where a task puts what it made: staged files under names unique to the attempt."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headrace import clock
from headrace.api import RowKind
from headrace.checkpoint.changelog import Changelog
from headrace.checkpoint.checkpoint import OutputFile
from headrace.checkpoint.files import stage
from headrace.checkpoint.state_files import parts, stage_state
from headrace.checkpoint.tables import QUARANTINE
from headrace.execution.element import Element, Emitted
from headrace.execution.record_codec import RecordCodec
from headrace.plan.columns import ROW_KIND, changelog_schema, sink_schema, to_columns
from headrace.plan.stages import Plan, stage_key
from headrace.spark.reports import Place, TaskReport
from headrace.state.codec import encode
from headrace.state.key_groups import key_group

TRANSIT = "transit"
OUTPUTS = "outputs"

TRANSIT_SCHEMA = pa.schema(
    [
        pa.field("order", pa.binary()),
        pa.field("timestamp", pa.int64()),
        pa.field("kind", pa.int32()),
        pa.field("key_group", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("record", pa.binary()),
    ]
)
TRANSIT_DDL = "`order` binary, timestamp long, kind int, key_group int, key binary, record binary"

QuarantineRow = tuple[str, str, str, str | None, str]
"""source, position, key (JSON), raw, error."""

_TransitRow = tuple[bytes, int, int, bytes, bytes]
"""order, timestamp, kind, key (JSON), record (JSON)."""


class TaskOutput:
    """Collects one task's staged files in its report."""

    def __init__(self, place: Place, operator: str, label: str) -> None:
        """`label` tells tasks of the operator apart in file names."""
        self.report = TaskReport()
        self._place = place
        self._changelog = Changelog(operator, place.checkpoint_id, place.max_parallelism)
        self._operator = operator
        self._prefix = f"{place.checkpoint_id:010d}-{operator}-{label}-{place.attempt_id[:12]}"

    @property
    def changelog(self) -> Changelog:
        """Makes rows of this operator."""
        return self._changelog

    def state(self, table: str, rows: pa.Table) -> None:
        """Stage rows of a state table; nothing is written for none."""
        for part in parts(table, rows):
            staged = stage_state(self._place.job_folder, table, self._file_name(), part, self._place.storage)
            self.report.state_files.setdefault(table, []).append(staged)

    def quarantine(self, rows: Sequence[QuarantineRow]) -> None:
        """Stage rows of the quarantine."""
        self.state(QUARANTINE, self._changelog.quarantine(rows))
        self.count(quarantined=len(rows))

    def transit(self, emitted: Sequence[Emitted], key: tuple[str, ...]) -> None:
        """Stage records for the next keyed stage; a record without a key goes to quarantine."""
        rows: list[_TransitRow] = []
        homeless: list[QuarantineRow] = []
        for order, timestamp, kind, record in emitted:
            value = stage_key(record, key)
            raw = encode(record)
            if value is None:
                error = f"the key ({', '.join(key)}) is null"
                homeless.append((self._operator, order.hex(), "null", raw.decode(), error))
            else:
                rows.append((order, timestamp, kind, encode(value), raw))
        self.quarantine(homeless)
        if not rows:
            return
        table = _transit_table(rows, self._place.max_parallelism)
        folder = f"{self._place.job_folder}/{TRANSIT}/{self._place.attempt_id}"
        name = self._file_name()
        stage(folder, name, table, self._place.storage)
        self.report.transit.append(f"{folder}/{name}")

    def append_sink(self, sink: str, emitted: Sequence[Emitted], record: type) -> None:
        """Stage rows straight in the folder of an append-only sink."""
        if not emitted:
            return
        rows = to_columns([item.record for item in emitted], sink_schema(record))
        self._append(sink, rows)

    def changes(self, plan: Plan, emitted: Sequence[Emitted]) -> None:
        """Stage what a materializer sends on: for a merge, or as a log of changes where the sink is appended to."""
        if not emitted:
            return
        if plan.sink.name in self._place.appended:
            self._append_changes(plan, emitted)
        else:
            self._merge(plan, emitted)

    def merges_into(self, sink: str) -> bool:
        """Whether a sink has one row for each primary key, and so takes one change of it a micro-batch."""
        return sink not in self._place.appended

    def count(self, **metrics: int) -> None:
        """Add to the task's metrics."""
        for name, value in metrics.items():
            if value:
                self.report.metrics[name] = self.report.metrics.get(name, 0) + value

    def _append(self, sink: str, rows: pa.Table) -> None:
        staged = stage(self._place.sinks[sink], self._file_name(), rows, self._place.storage)
        self._output(sink, OutputFile(staged.path, staged.rows, staged.size))

    def _append_changes(self, plan: Plan, emitted: Sequence[Emitted]) -> None:
        schema = sink_schema(plan.sink_record, plan.primary_key)
        columns = to_columns([item.record for item in emitted], schema).columns
        kinds = pa.array([RowKind(item.kind).symbol for item in emitted], pa.string())
        orders = pa.array([item.order.hex() for item in emitted], pa.string())
        self._append(plan.sink.name, pa.Table.from_arrays([*columns, kinds, orders], schema=changelog_schema(schema)))

    def _merge(self, plan: Plan, emitted: Sequence[Emitted]) -> None:
        """Stage net changes for a merge: the sink's columns and the row kind."""
        schema = sink_schema(plan.sink_record, plan.primary_key)
        rows = to_columns([item.record for item in emitted], schema)
        kinds = pa.array([RowKind(item.kind).symbol for item in emitted], pa.string())
        rows = rows.append_column(pa.field(ROW_KIND, pa.string(), nullable=False), kinds)
        name = f"{OUTPUTS}/{plan.sink.name}/{self._file_name()}"
        staged = stage(self._place.job_folder, name, rows, self._place.storage)
        self._output(plan.sink.name, OutputFile(staged.path, staged.rows, staged.size))

    def _output(self, sink: str, file: OutputFile) -> None:
        self.report.outputs.setdefault(sink, []).append(file)
        self.count(rows_out=file.rows)

    def _file_name(self) -> str:
        return f"{self._prefix}-{clock.unique_id()[:12]}.parquet"


def _transit_table(rows: Sequence[_TransitRow], max_parallelism: int) -> pa.Table:
    orders, timestamps, kinds, keys, raws = zip(*rows, strict=True)
    groups = [key_group(key, max_parallelism) for key in keys]
    columns = (orders, timestamps, kinds, groups, keys, raws)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, TRANSIT_SCHEMA, strict=True)]
    return pa.Table.from_arrays(arrays, schema=TRANSIT_SCHEMA)


def elements_of(batch: pa.RecordBatch, codec: RecordCodec) -> list[Element]:
    """The elements in a batch that Spark hands to a keyed task."""
    orders, timestamps, kinds, keys, raws = (
        batch[name].to_pylist() for name in ("order", "timestamp", "kind", "key", "record")
    )
    records = map(codec.decode, keys, raws)
    return list(map(Element, orders, timestamps, kinds, keys, records))
