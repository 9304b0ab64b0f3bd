"""Apache Kafka topic as a sink: rows are sent as messages, at least once.

The sink has an outbox: a Delta table in append mode, which gets each checkpoint's rows exactly once. Then the rows are sent,
checkpoint by checkpoint, and the outbox records the last checkpoint that was sent (transaction `JOB/SINK/sent`):

    commit of the checkpoint -> rows in the outbox -> messages -> "sent up to 7" in the outbox

If a process dies between the last two steps, the next one sends the checkpoint again. Messages cannot be undone: a restore
changes only the outbox, and a checkpoint that the restore undoes is sent all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from headrace import crash_points
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.layout import PARTITION_TYPES
from headrace.sinks.sink import NEVER, Deliveries, Delivery
from headrace.storage.table import CommitInfo, Snapshot, Transaction, VersionTakenError

JOB: Final = "headrace_job"
INCARNATION: Final = "headrace_incarnation"
CHECKPOINT: Final = "headrace_checkpoint"
ROW: Final = "headrace_row"
"""Headers of a message. Two messages with equal headers are the same row."""


class KafkaSink(DeltaTableSink):
    """Sink that is a Kafka topic. `store` is the outbox."""

    def column_problems(self, before: Collection[str] = ()) -> Iterator[str]:
        """Yield a sentence for each reason why the pipeline's columns do not fit the outbox, or the key of messages."""
        key = self.message_key
        if key is not None and key not in self.schema.names:
            yield f"sinks.{self.name}.key: there is no column {key} (the sink has: {', '.join(self.schema.names)})"
        elif key is not None and (kind := self.schema.field(key).type) not in PARTITION_TYPES:
            yield f"sinks.{self.name}.key: {key} is {kind}; keys of messages are texts, whole numbers or truth values"
        yield from super().column_problems(before)

    def sent(self, table: Snapshot, /) -> int:
        """Return the id of the last checkpoint that was sent; `NEVER` without one."""
        version = table.transaction(self._sent_id)
        return NEVER if version is None else version

    def deliver(self, deliveries: Deliveries) -> None:
        """Send all checkpoints that were not sent yet. Without Spark, leave them to the next run."""
        send, table = self.writers.send, self.latest()
        if send is None:
            return
        published = self.published(table)
        for delivery in deliveries(self.sent(table)):
            if delivery.publication.checkpoint_id > published:
                return
            if self._is_to_send(delivery):
                send(self.name, [f"{self.store.uri}/{file.path}" for file in delivery.files], self._headers(delivery))
            crash_points.reached("deliver.half")
            self._record_sent(delivery.publication.checkpoint_id)

    def _is_to_send(self, delivery: Delivery) -> bool:
        """Return whether to send a checkpoint: always a current one; one undone by a restore only if its files exist."""
        if delivery.is_current:
            self._check_staged(delivery.files, delivery.publication.checkpoint_id)
            return True
        return not self.lost_files(delivery.files)

    def _headers(self, delivery: Delivery) -> dict[str, str]:
        number, incarnation = delivery.publication[:2]
        job = self.app_id.rpartition("/")[0]
        return {JOB: job, INCARNATION: "" if incarnation is None else f"{incarnation:x}", CHECKPOINT: str(number)}

    def _record_sent(self, checkpoint_id: int) -> None:
        while True:
            table = self.latest()
            if self.sent(table) >= checkpoint_id:  # another publisher has sent it as well
                return
            incarnation = self.incarnation(table)  # identifies the writer of the commit
            info = CommitInfo(
                published_by=() if incarnation is None else (incarnation,),
                transaction=Transaction(self._sent_id, checkpoint_id),
            )
            try:
                self.store.append(table.version, table.schema, [], info)
            except VersionTakenError:
                continue
            return

    @property
    def _sent_id(self) -> str:
        return f"{self.app_id}/sent"

    @property
    def _app_ids(self) -> tuple[str, ...]:
        return self.app_id, self._incarnation_id, self._sent_id
