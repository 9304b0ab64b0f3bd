"""Publishing a committed checkpoint's outputs to its sinks, idempotently.

Every publish carries the transaction (job and sink, checkpoint id), so publishing a checkpoint again
does nothing, and the checkpoint's id in the commit's information, so that a restore finds the version
that belongs to a checkpoint. Ids only ever grow: Delta skips, without a word, a transaction version at
or below the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from engine import faults
from engine.checkpoint._delta import (
    CHECKPOINT_METADATA,
    Options,
    create_table,
    open_table,
    properties,
    storage_errors,
)
from engine.checkpoint.checkpoint import Checkpoint, Kind, OutputFile
from engine.checkpoint.files import StagedFile, read_parquet
from engine.config import JobConfig, SinkConfig
from engine.errors import ConfigError, StorageError
from engine.plan.columns import ROW_KIND


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

    def create_sinks(self) -> None:
        """Make the sink tables that are missing.

        Raises `ConfigError` when a table is there with other columns.
        """
        for name, (schema, _) in self._schemas.items():
            uri = self._config.sinks[name].path
            create_table(uri, schema, storage=self._storage)
            found = {field.name for field in open_table(uri, storage=self._storage).schema().fields}
            if found != set(schema.names):
                msg = (
                    f"sink '{name}' at {uri} has the columns {', '.join(sorted(found))}; the pipeline writes "
                    f"{', '.join(schema.names)}. Give the sink another path, or move the old table away."
                )
                raise ConfigError(msg)

    def check_new(self) -> None:
        """Refuse sinks that an earlier life of this job has written, when the job starts from nothing.

        Checkpoint ids would start over, and Delta skips a transaction at or below the last one
        without a word: rows would be lost. Raises `StorageError`.
        """
        for name, sink in self._config.sinks.items():
            published = self._open(name, sink).transaction_version(f"{self._config.job}/{name}")
            if published is not None:
                msg = (
                    f"sink '{name}' at {sink.path} was written by this job up to checkpoint {published}, but the job "
                    f"has no checkpoints in {self._config.job_folder}. Bring that folder back, or move the sink's "
                    "table away to start anew."
                )
                raise StorageError(msg)

    def check_present(self, line: Sequence[Checkpoint]) -> None:
        """Refuse a sink that lacks what all checkpoints but the last have published, which comes only once.

        Such a table was lost, or is an old backup: going on would leave a hole in it for good. Raises
        `StorageError`.
        """
        for name, sink in self._config.sinks.items():
            written = [c.checkpoint_id for c in line if c.outputs.get(name)]
            if not written:
                continue
            published = self._open(name, sink).transaction_version(f"{self._config.job}/{name}") or -1
            # A restore is published to every sink that had been written by then.
            restores = [c.checkpoint_id for c in line if c.kind is Kind.RESTORE and c.checkpoint_id > written[0]]
            due = max((i for i in (*written, *restores) if i != line[-1].checkpoint_id), default=-1)
            if published < due:
                msg = (
                    f"sink '{name}' at {sink.path} has what was published up to checkpoint {max(published, 0)}, but "
                    f"checkpoint {due} was published as well. Bring back a copy that is not older than that; or, to "
                    f"start anew, move the job's sinks and {self._config.job_folder} away."
                )
                raise StorageError(msg)

    def publish(self, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
        """Bring all sinks up to `checkpoint`; return how many had to be written.

        `lineage` has all checkpoints by id. Raises `StorageError` when a sink refuses.
        """
        written = 0
        for position, (name, sink) in enumerate(sorted(self._config.sinks.items())):
            if position == 1:
                faults.reached("publish.half")
            written += self._publish_sink(name, sink, checkpoint, lineage)
        return written

    def _publish_sink(self, name: str, sink: SinkConfig, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
        files = checkpoint.outputs.get(name, [])
        restored = checkpoint.kind is Kind.RESTORE
        if not files and not restored:
            return 0
        table = self._open(name, sink)
        app_id = f"{self._config.job}/{name}"
        if (table.transaction_version(app_id) or -1) >= checkpoint.checkpoint_id:
            return 0
        try:
            with storage_errors(f"checkpoint {checkpoint.checkpoint_id} in sink '{name}' at {sink.path}"):
                if restored:
                    self._restore(table, app_id, checkpoint, lineage)
                elif sink.mode == "append":
                    self._append(table, name, app_id, checkpoint, files)
                else:
                    self._merge(table, name, app_id, checkpoint, files)
        except CommitFailedError as error:
            # Another run may have published the very same checkpoint meanwhile.
            if (self._open(name, sink).transaction_version(app_id) or -1) < checkpoint.checkpoint_id:
                msg = f"sink '{name}' at {sink.path} refused checkpoint {checkpoint.checkpoint_id}: {error}"
                raise StorageError(msg) from error
        return 1

    def _open(self, name: str, sink: SinkConfig) -> DeltaTable:
        try:
            return open_table(sink.path, storage=self._storage)
        except TableNotFoundError as error:
            msg = (
                f"the table of sink '{name}' at {sink.path} is gone. Bring it back from a backup; or, to start anew, "
                f"move the job's other sinks and {self._config.job_folder} away."
            )
            raise StorageError(msg) from error

    def _properties(self, app_id: str, checkpoint: Checkpoint) -> Any:
        return properties(
            app_id=app_id,
            app_version=checkpoint.checkpoint_id,
            metadata={CHECKPOINT_METADATA: str(checkpoint.checkpoint_id)},
        )

    def _append(
        self, table: DeltaTable, name: str, app_id: str, checkpoint: Checkpoint, files: Sequence[OutputFile]
    ) -> None:
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
            commit_properties=self._properties(app_id, checkpoint),
        )

    def _merge(
        self, table: DeltaTable, name: str, app_id: str, checkpoint: Checkpoint, files: Sequence[OutputFile]
    ) -> None:
        schema, keys = self._schemas[name]
        paths = [f"{self._config.job_folder}/{file.path}" for file in files]
        rows = sum(file.rows for file in files)
        if self._spark_merge is not None and rows > self._config.publish.spark_above_rows:
            uri = self._config.sinks[name].path
            self._spark_merge(uri, paths, keys, app_id=app_id, version=checkpoint.checkpoint_id)
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
            commit_properties=self._properties(app_id, checkpoint),
        )
        merge = merge.when_matched_delete(predicate=f"source.{ROW_KIND} = '-D'")
        merge = merge.when_matched_update(columns, predicate=f"source.{ROW_KIND} <> '-D'")
        merge.when_not_matched_insert(columns, predicate=f"source.{ROW_KIND} <> '-D'").execute()

    def _restore(self, table: DeltaTable, app_id: str, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> None:
        target = version_of(table, checkpoint, lineage)
        commit = self._properties(app_id, checkpoint)
        if target == table.version():
            # Delta refuses to restore what is there already; the transaction must be noted all the same.
            table.create_write_transaction([], mode="append", schema=table.schema(), commit_properties=commit)
        else:
            table.restore(target, commit_properties=commit)


def version_of(table: DeltaTable, checkpoint: Checkpoint, lineage: dict[int, Checkpoint]) -> int:
    """The version of a sink table that belongs to a checkpoint: what it, or its nearest ancestor, published.

    Raises `StorageError` when the table's history does not reach back that far.
    """
    published = {
        published_for: int(commit["version"])
        for commit in table.history()
        if (published_for := _checkpoint_of(commit)) is not None
    }
    ancestor: Checkpoint | None = checkpoint
    while ancestor is not None:
        if ancestor.checkpoint_id in published:
            return published[ancestor.checkpoint_id]
        # What follows a restore continues from the checkpoint that was restored.
        before = ancestor.restored_from if ancestor.kind is Kind.RESTORE else ancestor.parent_id
        ancestor = None if before is None else lineage.get(before)
    return 0


def _checkpoint_of(commit: dict[str, Any]) -> int | None:
    """The checkpoint that a commit of a sink was published for; Spark keeps it in `userMetadata`."""
    if CHECKPOINT_METADATA in commit:
        return int(commit[CHECKPOINT_METADATA])
    try:
        metadata = msgspec.json.decode(commit.get("userMetadata") or "{}")
    except msgspec.DecodeError:
        return None  # somebody else's text
    return metadata.get(CHECKPOINT_METADATA) if isinstance(metadata, dict) else None
