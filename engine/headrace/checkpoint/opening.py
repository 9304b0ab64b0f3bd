"""Opening a job for writing: claim it, undo what never committed, publish what is not published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from headrace import clock, faults
from headrace.checkpoint._log import CheckpointLog
from headrace.checkpoint.checkpoint import Checkpoint, Kind
from headrace.checkpoint.job_tables import JobTables, Versions
from headrace.checkpoint.lease import JobLease
from headrace.checkpoint.migrations import migrate_format
from headrace.checkpoint.open_job import Notify, OpenJob, silent
from headrace.checkpoint.publish import Publisher, SparkMerge
from headrace.checkpoint.sink_position import check_sinks
from headrace.checkpoint.sink_tables import SinkTables, to_schemas, to_stored
from headrace.checkpoint.tables import FORMAT_VERSION
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.pipelines import plan_of, sink_schemas
from headrace.plan.stages import Plan


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
    notify: Notify = silent,
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
        check_key_groups(config, job.last)
        job.fence(publishes=publishes)
        migrate_format(job)
        yield job


def sinks_of(config: JobConfig, log: CheckpointLog, plan: Plan | None = None) -> SinkTables:
    """Return the tables of a job's sinks: as `plan` has them, else as stored, else as the job's pipeline has them."""
    stored = None if plan is not None or log.last is None else log.sink_tables(log.last)
    if stored is not None:
        return {name: table for name, table in stored.items() if name in config.sinks}
    return to_stored(sink_schemas(plan or plan_of(config.code), config.appended))


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


def check_key_groups(config: JobConfig, last: Checkpoint) -> None:
    """Raise `ConfigError` when the state has another number of key groups than the job's file says."""
    if last.max_parallelism != config.max_parallelism:
        msg = (
            f"{config.where('max_parallelism')}: the state has {last.max_parallelism} key groups, not "
            f"{config.max_parallelism}. The number is fixed with the first run: set it back."
        )
        raise ConfigError(msg)
