"""Publishing a committed checkpoint's outputs to its sinks, idempotently.

Every publish carries the transaction (job and sink, checkpoint id), so publishing a checkpoint again
does nothing, and the checkpoint's id in the commit's information, so that a restore finds the version
that belongs to a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from headrace import faults
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.lineage import Lineage
from headrace.commit.sink_tables import SinkSchemas
from headrace.config import JobConfig
from headrace.errors import ConfigError, SinkMismatchError, StorageError
from headrace.sinks.delta_table import delta_table_sink
from headrace.sinks.sink import Publication, Sink, SparkMerge
from headrace.tables.store import Snapshot, TableMissingError, VersionTakenError, storage_errors


class Publisher:
    """The sinks of one job."""

    def __init__(self, config: JobConfig, schemas: SinkSchemas, spark_merge: SparkMerge | None = None) -> None:
        """`schemas` has the Arrow schema and the primary key of each sink."""
        self._sinks: Mapping[str, Sink] = {
            name: delta_table_sink(config, name, schema, keys, spark_merge)
            for name, (schema, keys) in sorted(schemas.items())
        }

    def check_columns(self) -> None:
        """Raise `ConfigError` for sinks whose tables are there with other columns than the pipeline writes."""
        if problems := [*self.column_problems()]:
            raise ConfigError("\n".join(problems))

    def column_problems(self) -> Iterator[str]:
        """Yield a sentence for each sink whose table is there with other columns than the pipeline writes."""
        for sink in self._sinks.values():
            yield from sink.column_problems()

    def create_sinks(self) -> None:
        """Make the sinks that are missing. Raises `StorageError` when one cannot be made, or cannot be read."""
        for sink in self._sinks.values():
            with storage_errors(f"to open sink '{sink.name}' at {sink.uri}"):
                sink.create()

    def publish(self, checkpoint: Checkpoint, lineage: Lineage) -> int:
        """Bring all sinks up to `checkpoint`, the head of `lineage`; return how many had to be written.

        Raises `StorageError` when a sink refuses.
        """
        written = 0
        for position, sink in enumerate(self._sinks.values()):
            if position == 1:
                faults.reached("publish.half")
            written += _publish(sink, checkpoint, lineage)
        return written


def _publish(sink: Sink, checkpoint: Checkpoint, lineage: Lineage) -> bool:
    """Bring a sink up to a checkpoint; return whether it had to be written."""
    number = checkpoint.checkpoint_id
    publication = Publication(number, checkpoint.incarnation)
    if not checkpoint.outputs.get(sink.name) and checkpoint.kind is not Kind.RESTORE:
        return False
    table = _open(sink)
    if sink.published(table) >= number:
        with storage_errors(f"to sync sink '{sink.name}' at {sink.uri}"):
            sink.sync(table)
        return False
    try:
        with storage_errors(f"checkpoint {number} in sink '{sink.name}' at {sink.uri}"):
            if checkpoint.kind is Kind.RESTORE:
                sink.restore(table, version_of(table, sink.name, lineage), publication)
            else:
                sink.write(table, checkpoint.outputs[sink.name], publication)
            table = sink.latest()
            # A MERGE that changes nothing records nothing, and Spark's has room for one transaction.
            if Publication(sink.published(table), sink.incarnation(table)) != publication:
                sink.record(table, publication)
    except VersionTakenError as error:
        # Another run may have published the very same checkpoint meanwhile.
        if sink.published(_open(sink)) < number:
            msg = (
                f"sink '{sink.name}' at {sink.uri} refused checkpoint {number}, since somebody else wrote to it meanwhile: {error}. "
                "The checkpoint is committed, and the next run publishes it first: run again when the other writer is done."
            )
            raise StorageError(msg) from error
    return True


def _open(sink: Sink) -> Snapshot:
    try:
        with storage_errors(f"to open sink '{sink.name}' at {sink.uri}"):
            return sink.latest()
    except TableMissingError as error:
        msg = f"the table of sink '{sink.name}' at {sink.uri} is gone since the job was opened. Bring it back, then run again."
        raise SinkMismatchError(msg) from error


def version_of(table: Snapshot, sink: str, lineage: Lineage) -> int:
    """Return the version of a sink that belongs to the head of a line: what it, or its nearest ancestor, published.

    Raises `SinkMismatchError` when that was never published, and `StorageError` when the table's history does not
    reach back that far.
    """
    history = table.history()
    published = {
        commit.info.checkpoint_id: commit.version for commit in history if commit.info.checkpoint_id is not None
    }
    for checkpoint in lineage.newest_first():
        number = checkpoint.checkpoint_id
        if number in published:
            return published[number]
        if checkpoint.outputs.get(sink) and not lineage.was_published(checkpoint, published):
            msg = (
                f"what checkpoint {number} wrote never reached sink '{sink}' at {table.uri}, so the "
                "sink cannot be brought there. Nothing was committed: restore a checkpoint before it, and run again."
            )
            raise SinkMismatchError(msg)
    if history[-1].version != 0:
        msg = (
            f"the history of sink '{sink}' at {table.uri} begins at version {history[-1].version}, after "
            f"what belongs to checkpoint {lineage.head.checkpoint_id if lineage.head else 0}. Nothing was committed: "
            "restore a later checkpoint."
        )
        raise StorageError(msg)
    return 0
