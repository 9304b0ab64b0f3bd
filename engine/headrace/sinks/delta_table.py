"""A Delta table as a sink: rows are appended, or merged by primary key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

import pyarrow as pa
from pyarrow import fs

from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.sinks.partitions import layout_problems
from headrace.sinks.sink import NEVER, NO_WRITERS, Deliveries, OutputFile, Publication, SparkWriters
from headrace.tables.files import StagedFile, Storage, file_system, read_parquet
from headrace.tables.overlay import OverlaySnapshot, changes_of_branch, own_rows
from headrace.tables.store import CommitInfo, Snapshot, TableMissingError, TableStore, Transaction, storage_errors
from headrace.tables.stores import table_store


@dataclass(frozen=True, slots=True)
class DeltaTableSink:
    """See `Sink`."""

    name: str
    store: TableStore
    app_id: str
    """The application of the sink's transactions."""

    job_folder: str
    mode: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """The primary key; empty for a sink that rows are only appended to."""

    message_key: str | None = None
    """The column whose values are the keys of messages, for a sink that sends them."""

    spark_above_rows: int = 0
    writers: SparkWriters = field(default=NO_WRITERS, repr=False)
    storage: Storage = None

    @classmethod
    def of(
        cls,
        config: JobConfig,
        name: str,
        schema: pa.Schema | None = None,
        keys: tuple[str, ...] = (),
        writers: SparkWriters = NO_WRITERS,
    ) -> Self:
        """Return a sink of a job. Who only asks what was published needs no schema. Nothing is read."""
        sink = config.sinks[name]
        return cls(
            name=name,
            store=table_store(sink.table_path, config.storage_options),
            app_id=f"{config.stored_name}/{name}",
            job_folder=config.job_folder,
            mode=sink.mode,
            partition_by=sink.partition_by,
            cluster_by=sink.cluster_by,
            schema=schema or pa.schema([]),
            keys=keys,
            message_key=sink.key,
            spark_above_rows=config.publish.spark_above_rows,
            writers=writers,
            storage=config.storage_options,
        )

    @property
    def uri(self) -> str:
        """See `Sink.uri`."""
        return self.store.uri

    def create(self) -> None:
        """See `Sink.create`."""
        self.store.create(self.schema, self.partition_by)

    def column_problems(self) -> Iterator[str]:
        """See `Sink.column_problems`."""
        wrong = [*layout_problems(self.schema, self.partition_by, self.cluster_by)]
        yield from (f"sinks.{self.name}.{problem}" for problem in wrong)
        if wrong:
            return
        try:
            with storage_errors(f"to open sink '{self.name}' at {self.uri}"):
                latest = self.latest()
                table, partitions = latest.schema, latest.partition_columns
        except TableMissingError:
            return
        if partitions != self.partition_by and (self.partition_by or self.mode == "append"):
            yield (
                f"sink '{self.name}' at {self.uri} is partitioned by {', '.join(partitions) or 'nothing'}; the job's file says "
                f"partition_by: {list(self.partition_by)}. A table keeps the partitions that it was created with. Nothing was written: "
                f"change sinks.{self.name}.partition_by, give the sink another path, or move the old table away."
            )
            return
        if not {*table.names} <= {*self.schema.names}:
            yield (
                f"sink '{self.name}' at {self.uri} has the columns {', '.join(sorted(table.names))}; the pipeline writes "
                f"{', '.join(self.schema.names)}. Give the sink another path, or move the old table away."
            )
            return
        if new_keys := [key for key in self.keys if key not in table.names]:
            yield (
                f"sink '{self.name}' at {self.uri} has no column {', '.join(new_keys)}, which is of the primary key now: rows that "
                "are there would have none. Nothing was written: give the sink another path, or move the old table away."
            )
            return
        for column in self.schema:
            if column.name not in table.names:
                continue
            kind = table.field(column.name).type
            # A merge casts plain values. An append adds files as they are: a reader of the table would fail on them.
            is_cast = self.mode == "merge" and not (pa.types.is_nested(kind) or pa.types.is_nested(column.type))
            if kind != column.type and not is_cast:
                yield (
                    f"column '{column.name}' of sink '{self.name}' at {self.uri} is {kind}; the pipeline writes "
                    f"{column.type}. Nothing was written: give the sink another path, or move the old table away."
                )

    def new_columns(self) -> pa.Schema:
        """See `Sink.new_columns`."""
        try:
            with storage_errors(f"to open sink '{self.name}' at {self.uri}"):
                return self._missing_from(self.latest())
        except TableMissingError:
            return pa.schema([])

    def _missing_from(self, table: Snapshot) -> pa.Schema:
        """Return the columns that a table lacks. They may be null there, since the rows so far have none."""
        names = {*table.schema.names}
        return pa.schema([column.with_nullable(True) for column in self.schema if column.name not in names])

    def latest(self) -> Snapshot:
        """See `Sink.latest`."""
        return self.store.latest()

    def published(self, table: Snapshot, /) -> int:
        """See `Sink.published`."""
        version = table.transaction(self.app_id)
        return NEVER if version is None else version

    def incarnation(self, table: Snapshot, /) -> int | None:
        """See `Sink.incarnation`."""
        return table.transaction(self._incarnation_id)

    def write(self, table: Snapshot, files: Sequence[OutputFile], publication: Publication) -> None:
        """See `Sink.write`.

        deltalake's MERGE makes no commit when it changes nothing (Spark's does), so its transaction is lost. That happens
        when a key came and went within a micro-batch, or when somebody has removed the row that is to be deleted.
        """
        self._check_staged(files, publication.checkpoint_id)
        # At each write, since a restore of the table takes it back to the columns of its time.
        parent, names = self._with_columns(table)
        if self.only_appends:
            self.store.append(parent, self.schema, _staged(files), self._info(publication))
            return
        paths = [f"{self.job_folder}/{file.path}" for file in files]
        merge = None if isinstance(table, OverlaySnapshot) else self.writers.merge
        if merge is not None and sum(file.rows for file in files) > self.spark_above_rows:
            merge(self.uri, paths, self.keys, app_id=self.app_id, version=publication.checkpoint_id)
            for version in range(table.version, self.latest().version):
                self.store.sync(version + 1)
            return
        changes = pa.concat_tables([read_parquet(path, self.storage) for path in paths])
        for name in names:  # staged by a pipeline that did not have the column yet
            if name not in changes.schema.names:
                changes = changes.append_column(name, pa.nulls(len(changes), self.schema.field(name).type))
        self.store.merge(parent, changes_of_branch(table, changes), self.keys, self._info(publication))

    @property
    def only_appends(self) -> bool:
        """See `Sink.only_appends`."""
        return self.mode == "append"

    def rewind(self, table: Snapshot, version: int, files: Sequence[OutputFile], publication: Publication) -> None:
        """See `Sink.rewind`."""
        self._check_staged(files, publication.checkpoint_id)
        parent, _ = self._with_columns(table)
        self.store.rewind(parent, version, self.schema, _staged(files), self._info(publication))

    def _with_columns(self, table: Snapshot) -> tuple[int, list[str]]:
        """Add the columns that a table lacks; return its version then, and all its columns."""
        names = [*table.schema.names]
        missing = [*self._missing_from(table)]
        if not missing:
            return table.version, names
        return self.store.add_columns(table.version, missing), names + [column.name for column in missing]

    def record(self, table: Snapshot, publication: Publication) -> None:
        """See `Sink.record`."""
        self.store.append(table.version, own_rows(table).schema, [], self._info(publication))

    def sync(self, table: Snapshot) -> None:
        """See `Sink.sync`."""
        for version in range(_published_at(table), table.version + 1):
            self.store.sync(version)

    def lost_files(self, files: Sequence[OutputFile]) -> list[str]:
        """Return which staged files are gone or cut off, each with what it has become."""
        folder = self.store.uri if self.mode == "append" else self.job_folder
        store, path = file_system(folder, self.storage)
        found = store.get_file_info([f"{path}/{file.path}" for file in files])
        return [
            f"{there.path} {'is gone' if there.type is fs.FileType.NotFound else f'has {there.size:,} of {file.size:,} bytes'}"
            for there, file in zip(found, files, strict=True)
            if there.size != file.size
        ]

    def restore(self, table: Snapshot, version: int, publication: Publication) -> None:
        """See `Sink.restore`."""
        if version != table.version:  # Delta refuses to restore the version that is there already
            self.store.restore(table.version, version, self._info(publication))

    def deliver(self, deliveries: Deliveries) -> None:
        """See `Sink.deliver`."""

    def _check_staged(self, files: Sequence[OutputFile], checkpoint_id: int) -> None:
        """Raise `StorageError` when a staged file is gone or cut off: a commit that names it would ruin the sink."""
        if lost := self.lost_files(files):
            msg = (
                f"checkpoint {checkpoint_id} is committed, and cannot be published to sink '{self.name}' at {self.uri}: staged file "
                f"{lost[0]} ({len(lost)} of {len(files)} files are damaged). Nothing was written to this sink. Bring the files "
                "back and run again; or go back to before it with 'headrace reconcile JOB', and the next run takes in the same input again."
            )
            raise StorageError(msg)

    @property
    def _incarnation_id(self) -> str:
        return f"{self.app_id}/incarnation"

    def _info(self, publication: Publication) -> CommitInfo:
        number, incarnation, ancestors = publication
        return CommitInfo(
            checkpoint_id=number,
            published_by=() if incarnation is None else (incarnation, *ancestors),
            transaction=Transaction(self.app_id, number),
            incarnation=None if incarnation is None else Transaction(self._incarnation_id, incarnation),
        )


def _staged(files: Sequence[OutputFile]) -> list[StagedFile]:
    return [StagedFile(file.path, file.rows, file.size, partition=file.partition) for file in files]


def _published_at(table: Snapshot) -> int:
    """Return the version of the last commit that carries a checkpoint; that of the oldest commit in the log if none does."""
    limit = 1
    while True:
        commits = table.history(limit)
        found = next((commit.version for commit in commits if commit.info.checkpoint_id is not None), None)
        if found is not None or len(commits) < limit:
            return commits[-1].version if found is None else found
        limit *= 8
