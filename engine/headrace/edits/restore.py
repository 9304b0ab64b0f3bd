"""Restore to a checkpoint, and savepoints: checkpoints that retention keeps."""

from __future__ import annotations

from functools import partial

from headrace import crash_points
from headrace.commit.branch_code import refuse_without_state
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.commit.sink_position import check_sinks
from headrace.config import JobConfig, checked_name
from headrace.edits.rescale import rescale_in
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Restored
from headrace.log.marks import refuse_erased
from headrace.sinks.sink import Publication


def restore(
    config: JobConfig, target: int | str, why: str, run_id: str, *, brings_back_erased: bool = False
) -> Checkpoint:
    """Take a job back to a checkpoint, given by id or savepoint name. The next run continues from there.

    State tables and sinks go back by Delta RESTORE, which moves no data and deletes nothing. The restore is a
    separate checkpoint: to undo it, restore the checkpoint before it. Raises `ConfigError` for an unknown target, and
    for one that has rows of an erased key (unless `brings_back_erased`), `StorageError` when files of the target are
    gone, and `FencedError` while a run holds the job; then nothing has changed.
    """
    with open_job(config, run_id, sink_check=partial(check_sinks, restores=True), restores=True) as job:
        target_id = job.checkpoint(target).checkpoint_id
        return restore_in(job, target_id, why, brings_back_erased=brings_back_erased)


def restore_in(
    job: OpenJob,
    target_id: int,
    why: str,
    *,
    brings_back_erased: bool = False,
    above: Publication | None = None,
) -> Checkpoint:
    """Restore within an open job; then migrate the state to this program's format and the file's number of key groups.

    A reconciliation is a restore whose id and incarnation exceed those of all sinks (`above`): abandoned copies can
    no longer publish. Raises `StorageError` when files of the target are gone, and `ConfigError` when it has rows of
    an erased key, unless `brings_back_erased`.
    """
    target = job.checkpoint(target_id)
    refuse_without_state(job.config, target)
    refuse_erased(job.config.job, job.checkpoints, target_id, brings_back=brings_back_erased)
    RestoreCheck(job.config, job.checkpoints, job.sink_tables).refuse_unless_restorable(target)
    changed = {name: version for name, version in target.versions.items() if job.last.versions[name] != version}
    versions = job.restore_tables(changed)
    crash_points.reached("restore.prepared")
    restored = job.commit(
        Kind.RESTORE,
        versions=versions,
        restored_from=target_id,
        note=why,
        cause=Restored(),
        base=target,
        **({} if above is None else job.new_incarnation(above)),
    )
    # The target may be older than the last migration or rescaling.
    job.migrate_format()
    if restored.max_parallelism != job.config.max_parallelism:
        rescale_in(job, job.config.max_parallelism)
    return restored


def savepoint(config: JobConfig, name: str, why: str, run_id: str) -> Checkpoint:
    """Give the job's present state a name. Retention keeps it, and `restore` accepts the name.

    Raises `ConfigError` for a name that is no identifier.
    """
    checked_name(name)
    with open_job(config, run_id) as job:
        return job.commit(Kind.SAVEPOINT, versions=job.versions, name=name, note=why)


def drop_savepoint(config: JobConfig, name: str, why: str, run_id: str) -> Checkpoint:
    """Remove a name from all savepoints that have it. Retention no longer keeps them; no file is deleted now.

    Raises `ConfigError` when no savepoint has the name.
    """
    with open_job(config, run_id) as job:
        job.checkpoint(name)
        return job.commit(Kind.SAVEPOINT_DROP, versions=job.versions, name=name, note=why)
