"""A job that is open for writing: what it builds on, and how it commits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace import clock, faults
from headrace.checkpoint._log import CheckpointLog
from headrace.checkpoint.checkpoint import Checkpoint, Kind
from headrace.checkpoint.files import StagedFile
from headrace.checkpoint.job_tables import JobTables, Versions
from headrace.checkpoint.lease import JobLease
from headrace.checkpoint.publish import Publisher
from headrace.checkpoint.sink_tables import SinkTables
from headrace.checkpoint.state_schemas import StateSchemas
from headrace.config import JobConfig

Notify = Callable[[str, str], None]
"""Told what happens: a kind of event and a sentence."""


def silent(kind: str, message: str) -> None:
    """Tell nobody."""
    del kind, message


OF_STATE = (
    "offsets",
    "numbers",
    "watermark",
    "lines",
    "local_copies",
    "state_ttl",
    "schemas_of",
    "sinks_of",
    "timers_fired",
    "interval_start",
    "interval_end",
    "format_version",
)
"""Fields of a checkpoint that describe the state: a checkpoint has them of its parent, and a restore of its target."""


class OpenJob:
    """A claimed and fenced job. `last` is the checkpoint to build on, `versions` the tables' versions."""

    def __init__(
        self,
        config: JobConfig,
        log: CheckpointLog,
        lease: JobLease,
        tables: JobTables,
        *,
        publisher: Publisher,
        sink_tables: SinkTables,
        notify: Notify = silent,
    ) -> None:
        """Use `opening.open_job`."""
        self.sink_tables = sink_tables
        """The tables of the sinks as this run writes them. Recorded with its first micro-batch."""
        self.config, self.tables, self.lease = config, tables, lease
        self._log = log
        self._publisher = publisher
        self.notify = notify
        self.versions: Versions = {}
        self.declared_schemas: StateSchemas | None = None
        """What the code of this run says of its states; None for whoever runs no code. Recorded with the next micro-batch."""

    @property
    def last(self) -> Checkpoint:
        """The last committed checkpoint."""
        last = self._log.last
        assert last is not None  # noqa: S101 - open_job has made the initial one
        return last

    @property
    def log(self) -> CheckpointLog:
        """All checkpoints."""
        return self._log

    @property
    def next_id(self) -> int:
        """The id that the next checkpoint gets. Ids only ever grow."""
        return self.last.checkpoint_id + 1

    @property
    def state_schemas(self) -> StateSchemas | None:
        """See `CheckpointLog.state_schemas`."""
        return self._log.state_schemas(self.last)

    def commit(
        self,
        kind: Kind,
        *,
        files: Mapping[str, Sequence[StagedFile]] | None = None,
        versions: Versions | None = None,
        **fields: Any,
    ) -> Checkpoint:
        """Prepare, commit and publish a checkpoint on top of `last`.

        `files` are added to their tables; `versions` says that the tables were already brought
        there. Other `fields` are as in `Checkpoint`; what describes the state (offsets, watermark, interval, local copies,
        schemas, ...) is the parent's unless given. Raises `FencedError` when the job was lost, `StorageError`
        when a sink refuses (the checkpoint is committed then, and published by the next run).
        """
        self.lease.check()
        prepared = versions if versions is not None else self.tables.prepare(files or {}, self.versions)
        parent = self.last
        inherited = {name: getattr(parent, name) for name in OF_STATE}
        if kind is Kind.BATCH and self.declared_schemas not in (None, self.state_schemas):
            fields["state_schemas"] = self.declared_schemas
        if "state_schemas" in fields:
            fields["schemas_of"] = self.next_id
        if kind is Kind.BATCH and self.sink_tables != self._log.sink_tables(parent):
            fields |= {"sink_tables": self.sink_tables, "sinks_of": self.next_id}
        checkpoint = Checkpoint(
            checkpoint_id=self.next_id,
            parent_id=parent.checkpoint_id,
            kind=kind,
            run_id=self.lease.run_id,
            attempt_id=self.lease.attempt_id,
            max_parallelism=parent.max_parallelism,
            versions=prepared,
            committed_at=clock.now(),
            **{**inherited, **fields},
        )
        faults.reached("commit.before")
        self.lease.append(checkpoint)
        faults.reached("commit.after")
        self.versions = prepared
        self.publish()
        faults.reached("publish.after")
        return checkpoint

    def publish(self) -> int:
        """Publish the last checkpoint if it is not published; return how many sinks were written."""
        lineage = {checkpoint.checkpoint_id: checkpoint for checkpoint in self._log.checkpoints}
        return self._publisher.publish(self.last, lineage)

    def fence(self, *, publishes: bool = True) -> None:
        """Undo what no checkpoint names, and publish the last checkpoint, unless a restore is to replace it."""
        committed = self.last.versions
        self.versions = self.tables.fence(committed)
        faults.reached("fence.after")
        undone = sorted(name for name, version in self.versions.items() if version != committed[name])
        if undone:
            self.notify("fenced", f"undid what an earlier attempt left in {', '.join(undone)}")
        published = self.publish() if publishes else 0
        if published:
            self.notify("published", f"published checkpoint {self.last.checkpoint_id} to {published} sink(s)")


def metrics_of(counted: Mapping[str, int], durations: Mapping[str, float]) -> dict[str, Any]:
    """The metrics of a checkpoint: counts, and seconds by phase, rounded to milliseconds."""
    return {**dict(sorted(counted.items())), "seconds": {k: round(v, 3) for k, v in durations.items()}}
