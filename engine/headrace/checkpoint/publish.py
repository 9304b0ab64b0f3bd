"""Publishing a committed checkpoint's outputs to its sinks, idempotently.

Every publish carries the transaction (job and sink, checkpoint id), so publishing a checkpoint again
does nothing, and the checkpoint's id in the commit's information, so that a restore finds the version
that belongs to a checkpoint. Ids only ever grow: Delta skips, without a word, a transaction version at
or below the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from headrace import faults
from headrace.checkpoint._delta import (
    CHECKPOINT_METADATA,
    Options,
    create_table,
    open_table,
    properties,
    storage_errors,
)
from headrace.checkpoint.checkpoint import Checkpoint, Kind, OutputFile
from headrace.checkpoint.files import StagedFile, read_parquet
from headrace.checkpoint.sink_position import app_id, published_id
from headrace.config import JobConfig, SinkConfig
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.plan.columns import ROW_KIND


class SparkMerge(Protocol):
    """Publishes a large merge through Spark (the driver has a session, the command line has none)."""

    def __call__(self, uri: str, files: Sequence[str], keys: Sequence[str], *, app_id: str, version: int) -> None:
        """Merge the staged `files` into the table, under the given transaction."""
        ...


class Publisher:
    """The sinks of one job."""

    def __init__(
        self,
        config: JobConfig,
        schemas: dict[str, tuple[pa.Schema, tuple[str, ...]]],
        spark_merge: SparkMerge | None = None,
    ) -> None:
        """`schemas` has the Arrow schema and the primary key of each sink."""
        self._config = config
        self._schemas = schemas
        self._spark_merge = spark_merge
        self._storage: Options = config.storage_options

    def check_columns(self) -> None:
        """Raise `ConfigError` for sinks whose tables are there with other columns than the pipeline writes."""
        if problems := [*self.column_problems()]:
            raise ConfigError("\n".join(problems))

    def column_problems(self) -> Iterator[str]:
        """Return a sentence for each sink whose table is there with other columns than the pipeline writes."""
        for name, (schema, _) in self._schemas.items():
            uri = self._config.sinks[name].path
            try:
                table = pa.schema(open_table(uri, storage=self._storage).schema())
            except TableNotFoundError:
                continue
            if {*table.names} != {*schema.names}:
                yield (
                    f"sink '{name}' at {uri} has the columns {', '.join(sorted(table.names))}; the pipeline writes "
                    f"{', '.join(schema.names)}. Give the sink another path, or move the old table away."
                )
            else:
                yield from _nested_problems(f"sink '{name}' at {uri}", table, schema)

    def create_sinks(self) -> None:
        """Make the sink tables that are missing."""
        for name, (schema, _) in self._schemas.items():
            create_table(self._config.sinks[name].path, schema, storage=self._storage)

    def publish(self, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
        """Bring all sinks up to `checkpoint`; return how many had to be written.

        `lineage` has all checkpoints by id. Raises `StorageError` when a sink refuses.
        """
        written = 0
        for position, name in enumerate(sorted(self._schemas)):
            if position == 1:
                faults.reached("publish.half")
            written += self._publish_sink(name, self._config.sinks[name], checkpoint, lineage)
        return written

    def _publish_sink(self, name: str, sink: SinkConfig, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
        files = checkpoint.outputs.get(name, [])
        restored = checkpoint.kind is Kind.RESTORE
        if not files and not restored:
            return 0
        table = self._open(name, sink)
        if self._has(table, name, checkpoint):
            return 0
        try:
            with storage_errors(f"checkpoint {checkpoint.checkpoint_id} in sink '{name}' at {sink.path}"):
                if restored:
                    self._restore(table, name, checkpoint, lineage)
                elif sink.mode == "append":
                    self._append(table, name, checkpoint, files)
                else:
                    self._merge(table, name, checkpoint, files)
                table.update_incremental()
                if not self._has(table, name, checkpoint):
                    self._record(table, name, checkpoint)
        except CommitFailedError as error:
            # Another run may have published the very same checkpoint meanwhile.
            if not self._has(self._open(name, sink), name, checkpoint):
                msg = f"sink '{name}' at {sink.path} refused checkpoint {checkpoint.checkpoint_id}: {error}"
                raise StorageError(msg) from error
        return 1

    def _open(self, name: str, sink: SinkConfig) -> DeltaTable:
        try:
            return open_table(sink.path, storage=self._storage)
        except TableNotFoundError as error:
            msg = f"the table of sink '{name}' at {sink.path} is gone since the job was opened. Bring it back, then run again."
            raise SinkMismatchError(msg) from error

    def _has(self, table: DeltaTable, name: str, checkpoint: Checkpoint) -> bool:
        return published_id(table, self._config, name) >= checkpoint.checkpoint_id

    def _record(self, table: DeltaTable, name: str, checkpoint: Checkpoint) -> None:
        """Commit the transaction alone.

        deltalake's MERGE makes no commit when it changes nothing (Spark's does), so its transaction is lost. That happens
        when a key came and went within a micro-batch, or when somebody has removed the row that is to be deleted.
        """
        commit = self._properties(name, checkpoint)
        table.create_write_transaction([], mode="append", schema=table.schema(), commit_properties=commit)

    def _properties(self, name: str, checkpoint: Checkpoint) -> Any:
        return properties(
            app_id=app_id(self._config, name),
            app_version=checkpoint.checkpoint_id,
            metadata={CHECKPOINT_METADATA: str(checkpoint.checkpoint_id)},
        )

    def _append(self, table: DeltaTable, name: str, checkpoint: Checkpoint, files: Sequence[OutputFile]) -> None:
        from deltalake.transaction import AddAction

        actions = [
            AddAction(
                file.path,
                file.size,
                {},
                checkpoint.committed_at,
                True,
                StagedFile(file.path, file.rows, file.size).statistics(),
            )
            for file in files
        ]
        table.create_write_transaction(
            actions,  # type: ignore[arg-type]  # a list of AddAction; the stub wants the union invariantly
            mode="append",
            schema=self._schemas[name][0],
            commit_properties=self._properties(name, checkpoint),
        )

    def _merge(self, table: DeltaTable, name: str, checkpoint: Checkpoint, files: Sequence[OutputFile]) -> None:
        schema, keys = self._schemas[name]
        paths = [f"{self._config.job_folder}/{file.path}" for file in files]
        rows = sum(file.rows for file in files)
        if self._spark_merge is not None and rows > self._config.publish.spark_above_rows:
            uri = self._config.sinks[name].path
            transaction = app_id(self._config, name)
            self._spark_merge(uri, paths, keys, app_id=transaction, version=checkpoint.checkpoint_id)
            return
        source = pa.concat_tables([read_parquet(path, self._storage) for path in paths])
        on = " AND ".join(f'target."{key}" = source."{key}"' for key in keys)
        columns = {f'"{column}"': f'source."{column}"' for column in schema.names}
        merge = table.merge(
            source,
            predicate=on,
            source_alias="source",
            target_alias="target",
            streamed_exec=False,
            commit_properties=self._properties(name, checkpoint),
        )
        merge = merge.when_matched_delete(predicate=f"source.{ROW_KIND} = '-D'")
        merge = merge.when_matched_update(columns, predicate=f"source.{ROW_KIND} <> '-D'")
        merge.when_not_matched_insert(columns, predicate=f"source.{ROW_KIND} <> '-D'").execute()

    def _restore(self, table: DeltaTable, name: str, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> None:
        target = version_of(table, name, checkpoint, lineage)
        if target != table.version():  # Delta refuses to restore the version that is there already
            table.restore(target, commit_properties=self._properties(name, checkpoint))


def version_of(table: DeltaTable, sink: str, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
    """Return the version of a sink that belongs to a checkpoint: what it, or its nearest ancestor, published.

    Raises `SinkMismatchError` when that was never published, and `StorageError` when the table's history does not
    reach back that far.
    """
    history = table.history()
    published = {
        published_for: int(commit["version"])
        for commit in history
        if (published_for := _checkpoint_of(commit)) is not None
    }
    ancestor: Checkpoint | None = checkpoint
    while ancestor is not None:
        if ancestor.checkpoint_id in published:
            return published[ancestor.checkpoint_id]
        if ancestor.outputs.get(sink) and not _was_passed(ancestor, published, lineage):
            msg = (
                f"what checkpoint {ancestor.checkpoint_id} wrote never reached sink '{sink}' at {table.table_uri}, so the "
                "sink cannot be brought there. Nothing was committed: restore a checkpoint before it, and run again."
            )
            raise SinkMismatchError(msg)
        ancestor = _before(ancestor, lineage)
    if history[-1]["version"] != 0:
        msg = (
            f"the history of sink '{sink}' at {table.table_uri} begins at version {history[-1]['version']}, after "
            f"what belongs to checkpoint {checkpoint.checkpoint_id}. Nothing was committed: restore a later checkpoint."
        )
        raise StorageError(msg)
    return 0


def _was_passed(checkpoint: Checkpoint, published: Mapping[int, int], lineage: dict[int, Checkpoint]) -> bool:
    """Return whether a sink has something that was published on top of a checkpoint.

    Then that checkpoint's MERGE changed nothing: earlier releases made no commit for it. Otherwise its rows are lost.
    """
    later = min((i for i in published if i > checkpoint.checkpoint_id), default=None)
    above = None if later is None else lineage.get(later)
    while above is not None and above.checkpoint_id > checkpoint.checkpoint_id:
        above = _before(above, lineage)
    return above == checkpoint


def _before(checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint that this one continues from: what follows a restore continues from its target."""
    before = checkpoint.restored_from if checkpoint.kind is Kind.RESTORE else checkpoint.parent_id
    return None if before is None else lineage.get(before)


def _checkpoint_of(commit: dict[str, Any]) -> int | None:
    """The checkpoint that a commit of a sink was published for; Spark keeps it in `userMetadata`."""
    if CHECKPOINT_METADATA in commit:
        return int(commit[CHECKPOINT_METADATA])
    try:
        metadata = msgspec.json.decode(commit.get("userMetadata") or "{}")
    except msgspec.DecodeError:
        return None  # somebody else's text
    return metadata.get(CHECKPOINT_METADATA) if isinstance(metadata, dict) else None


def _nested_problems(sink: str, table: pa.Schema, schema: pa.Schema) -> Iterator[str]:
    for field in schema:
        kind = table.field(field.name).type
        if kind != field.type and (pa.types.is_nested(kind) or pa.types.is_nested(field.type)):
            yield (
                f"column '{field.name}' of {sink} is {kind}; the pipeline writes {field.type}. Nothing was written: "
                "give the sink another path, or move the old table away."
            )
