"""Opening a job for writing: claim it, undo what never committed, publish what is not published."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from engine import clock, faults
from engine.checkpoint._log import CheckpointLog
from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.checkpoint.files import StagedFile
from engine.checkpoint.job_tables import JobTables, Versions
from engine.checkpoint.lease import JobLease
from engine.checkpoint.migrations import migrate_format
from engine.checkpoint.publish import Publisher, SparkMerge
from engine.checkpoint.sink_position import check_sinks
from engine.checkpoint.sink_tables import SinkTables, to_schemas, to_stored
from engine.checkpoint.state_schemas import StateSchemas
from engine.checkpoint.tables import FORMAT_VERSION
from engine.config import JobConfig
from engine.errors import ConfigError
from engine.plan import Plan, plan_of, sink_schemas

Notify = Callable[[str, str], None]
"""Told what happens: a kind of event and a sentence."""


def _silent(kind: str, message: str) -> None:
    del kind, message


_INHERITED = (
    "offsets",
    "watermark",
    "local_copies",
    "state_ttl",
    "schemas_of",
    "sinks_of",
    "timers_fired",
    "interval_start",
    "interval_end",
    "format_version",
)


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
        notify: Notify = _silent,
    ) -> None:
        """Use `open_job`."""
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
        inherited = {name: getattr(parent, name) for name in _INHERITED}
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


@contextmanager
def open_job(
    config: JobConfig,
    run_id: str,
    *,
    create: bool = False,
    force: bool = False,
    restores: bool = False,
    plan: Plan | None = None,
    spark_merge: SparkMerge | None = None,
    notify: Notify = _silent,
) -> Iterator[OpenJob]:
    """Claim a job, fence it, and hold it for the length of the block.

    `create` makes a job's tables and its initial checkpoint the first time. `restores` also opens a job whose sinks have
    lost what was published to them, for a restore to what they still have. State in an older format is migrated first: a
    checkpoint for each step.

    `plan` is that of a run, which writes its sinks as today's code says. Without it no user code is loaded: the last
    checkpoint says what its sinks are, unless an earlier release wrote it.

    Raises `FencedError` when another run holds the job, `SinkMismatchError` when the job and a sink disagree on what was
    published, and `ConfigError` when the job was never run (without `create`), when the number of key groups differs from
    the stored one, or when the format is newer than this program.
    """
    attempt_id = clock.unique_id()
    storage = config.storage_options
    log = CheckpointLog(config.job_folder, storage)
    if not log.exists:
        if not create:
            msg = f"job '{config.job}' has no checkpoints in {config.job_folder}: run it first"
            raise ConfigError(msg)
        log.create()
    lease = JobLease(log, run_id, attempt_id, config.run.lease.total_seconds())
    tables = JobTables(config.job_folder, run_id, attempt_id, storage=storage)
    sinks = sinks_of(config, log, plan)
    publisher = Publisher(config, to_schemas(sinks), spark_merge)
    with lease.claimed(force=force):
        publisher.check_columns()
        # Not before the claim: as long as another run may publish, the log that was read is older than the sinks.
        publishes = check_sinks(config, log.checkpoints, restores=restores)
        publisher.create_sinks()
        if log.last is None:
            versions = tables.create()
            faults.reached("create.half")
            lease.append(_initial(config, run_id, attempt_id, versions, sinks))
        job = OpenJob(config, log, lease, tables, publisher=publisher, sink_tables=sinks, notify=notify)
        _check_fits(config, job.last)
        job.fence(publishes=publishes)
        migrate_format(job)
        yield job


def sinks_of(config: JobConfig, log: CheckpointLog, plan: Plan | None = None) -> SinkTables:
    """Return the tables of a job's sinks: as `plan` has them, else as stored, else as the job's pipeline has them."""
    stored = None if plan is not None or log.last is None else log.sink_tables(log.last)
    if stored is not None:
        return {name: table for name, table in stored.items() if name in config.sinks}
    return to_stored(sink_schemas(plan or plan_of(config.pipeline), config.appended))


def _initial(config: JobConfig, run_id: str, attempt_id: str, versions: Versions, sinks: SinkTables) -> Checkpoint:
    return Checkpoint(
        checkpoint_id=0,
        kind=Kind.INITIAL,
        run_id=run_id,
        attempt_id=attempt_id,
        max_parallelism=config.max_parallelism,
        versions=versions,
        committed_at=clock.now(),
        sink_tables=sinks,
        sinks_of=0,
        format_version=FORMAT_VERSION,
    )


def _check_fits(config: JobConfig, last: Checkpoint) -> None:
    if last.max_parallelism != config.max_parallelism:
        msg = (
            f"{config.where('max_parallelism')}: the state has {last.max_parallelism} key groups, not "
            f"{config.max_parallelism}. The number is fixed with the first run: set it back."
        )
        raise ConfigError(msg)


def metrics_of(counted: Mapping[str, int], durations: Mapping[str, float]) -> dict[str, Any]:
    """The metrics of a checkpoint: counts, and seconds by phase, rounded to milliseconds."""
    return {**dict(sorted(counted.items())), "seconds": {k: round(v, 3) for k, v in durations.items()}}
