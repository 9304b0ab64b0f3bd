"""Progress of a job's sinks that send messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from headrace.commit.checkpoint import Checkpoint
from headrace.config import JobConfig
from headrace.sinks.kafka import KafkaSink
from headrace.sinks.kinds import sink_of
from headrace.sinks.sink import NEVER
from headrace.tables.store import TableMissingError, storage_errors


@dataclass(frozen=True, slots=True)
class SentMessages:
    """Last checkpoint that a sink has sent, and last one with rows for it; `NEVER` for none."""

    sink: str
    place: str
    sent: int
    last: int

    @property
    def is_behind(self) -> bool:
        """Return whether rows wait to be sent."""
        return self.sent < self.last

    def __str__(self) -> str:
        """Return the progress as text for people."""
        if not self.is_behind:
            return "all is sent" if self.sent > NEVER else "nothing was to be sent yet"
        sent = f"sent up to checkpoint {self.sent} of {self.last}" if self.sent > NEVER else "nothing is sent"
        return f"{sent}; the next run sends the rest"


def sent_messages(config: JobConfig, checkpoints: Sequence[Checkpoint]) -> Iterator[SentMessages]:
    """Yield the progress of each sink of the format kafka. Raises `StorageError` when an outbox cannot be read."""
    for name in sorted(config.sinks):
        sink = sink_of(config, name)
        if isinstance(sink, KafkaSink):
            with storage_errors(f"to open sink '{name}' at {sink.uri}"):
                try:
                    sent = sink.sent(sink.latest())
                except TableMissingError:
                    sent = NEVER
            last = max(
                (checkpoint.checkpoint_id for checkpoint in checkpoints if checkpoint.outputs.get(name)), default=NEVER
            )
            yield SentMessages(name, config.sinks[name].place, sent, last)
