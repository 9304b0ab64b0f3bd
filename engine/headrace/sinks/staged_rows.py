"""Rows for a sink, staged as files that no commit names yet: rows to append, or changes of a materializer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.config import JobConfig
from headrace.execution.element import Emitted
from headrace.plan.stages import SinkPlan
from headrace.records.columns import changelog_schema, sink_schema, to_columns
from headrace.sinks.layout import by_partition, check_folder_names, check_partition_values, folders_of
from headrace.sinks.sink import OUTPUTS, OutputFile
from headrace.sinks.table_fit import Staging
from headrace.storage.table import ROW_KIND
from headrace.tables.changelog import SYMBOLS
from headrace.tables.folder import JobFolder


def changed_schema(sink: SinkPlan) -> pa.Schema:
    """Return the schema of the rows of a materializer's sink."""
    return sink_schema(sink.record, sink.primary_key, sink.names)


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Place and form of one sink's rows. Its methods raise `UnfitRecord` for a row that the sink's table cannot hold."""

    sink: str
    folder: JobFolder
    place: str
    """The sink's table, from the job's folder."""
    staging: Staging
    merges: bool
    """Whether the sink has one row for each primary key."""
    has_folders: bool
    """Whether readers see the partitions as folders."""
    new_name: Callable[[], str]
    """Returns a name for a file, unique to the attempt."""

    @classmethod
    def of(cls, config: JobConfig, sink: str, staging: Staging, new_name: Callable[[], str]) -> StagedRows:
        """Return what stages rows for a sink of a job."""
        own = config.sinks[sink]
        merges = sink not in config.appended
        return cls(sink, JobFolder.of(config), own.table_path, staging, merges, own.kind.has_folders, new_name)

    def append(self, rows: pa.Table) -> list[OutputFile]:
        """Stage rows, at least one, with the columns of an append-only sink."""
        return self.append_fitted(self.fitted(rows))

    def fitted(self, rows: pa.Table) -> pa.Table:
        """Return rows with the columns of an append-only sink as its table has them."""
        rows, columns = self.staging.fitted(rows), self.staging.partition_by
        if self.staging.in_table:
            check_folder_names(rows, columns, is_merged=not self.has_folders)
        else:
            check_partition_values(rows, columns)
        return rows

    def append_fitted(self, rows: pa.Table) -> list[OutputFile]:
        """Stage rows, at least one, that are `fitted`."""
        if not self.staging.in_table:
            return [self._apart(rows)]
        files = []
        for partition, part in by_partition(rows, self.staging.partition_by):
            name = f"{folders_of(partition)}{self.new_name()}"
            staged = self.folder.at(self.place).stage(name, part)
            files.append(OutputFile(staged.path, staged.rows, staged.size, partition, self.staging.form))
        return files

    def changes(self, sink: SinkPlan, emitted: Sequence[Emitted]) -> list[OutputFile]:
        """Stage a materializer's changes: for a merge, or as a log of changes if rows are only added."""
        if not emitted:
            return []
        rows = to_columns([item.record for item in emitted], changed_schema(sink), sink.record)
        orders, _, kinds, _ = zip(*emitted, strict=True)
        return self.change_table(rows, pa.array(map(int, kinds), pa.int32()), orders)

    def change_table(self, rows: pa.Table, kinds: pa.Int32Array, orders: Iterable[bytes]) -> list[OutputFile]:
        """Stage changes, at least one: rows of the sink, with their row kinds and their places in arrival order."""
        symbols = pa.array([*map(SYMBOLS.__getitem__, range(len(SYMBOLS)))], pa.string()).take(kinds)
        if not self.merges:
            places = pa.array([order.hex() for order in orders], pa.string())
            schema = changelog_schema(rows.schema)
            return self.append(pa.Table.from_arrays([*rows.columns, symbols, places], schema=schema))
        rows = self.staging.fitted(rows)
        check_partition_values(rows, self.staging.partition_by)
        check_folder_names(rows, self.staging.partition_by, is_merged=True)
        return [self._apart(rows.append_column(pa.field(ROW_KIND, pa.string(), nullable=False), symbols))]

    def _apart(self, rows: pa.Table) -> OutputFile:
        """Stage rows in the job's folder, for a writer of the sink's table."""
        staged = self.folder.stage(f"{OUTPUTS}/{self.sink}/{self.new_name()}", rows)
        return OutputFile(staged.path, staged.rows, staged.size, apart=not self.merges)
