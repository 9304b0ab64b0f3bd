"""Restore to a checkpoint, and savepoints: checkpoints that retention keeps."""

from __future__ import annotations

from functools import partial

from headrace import crash_points
from headrace.commit.branch_code import refuse_without_state
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.commit.sink_position import check_sinks
from headrace.config import JobConfig, checked_name
from headrace.edits.edit import carry_out
from headrace.edits.rescale import Rescale
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import Restored
from headrace.log.marks import live_savepoints, refuse_erased
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
        carry_out(job, Rescale(job.config.max_parallelism, is_of_restore=True))
    return restored


def savepoint(config: JobConfig, name: str, why: str, run_id: str) -> Checkpoint:
    """Give the job's present state a name. Retention keeps it, and `restore` accepts the name.

    Raises `ConfigError` for a name that is no identifier, or that a savepoint has.
    """
    checked_name(name)
    with open_job(config, run_id) as job:
        return _named(job, name) or job.commit(Kind.SAVEPOINT, versions=job.versions, name=name, note=why)


def _named(job: OpenJob, name: str) -> Checkpoint | None:
    """Return the savepoint with this name if this run has made it, as a task that is tried again; None without one.

    Raises `ConfigError` for a savepoint of another run.
    """
    present = next((savepoint for savepoint in live_savepoints(job.checkpoints) if savepoint.name == name), None)
    if present is not None and present.run_id != job.run_id:
        msg = (
            f"savepoint '{name}' of job '{job.config.job}' exists: it is checkpoint {present.checkpoint_id}. Nothing was changed. Choose "
            f"another name, or drop it first: headrace savepoint {job.config.job} {name} --drop --why ..."
        )
        raise ConfigError(msg)
    return present


def drop_savepoint(config: JobConfig, name: str, why: str, run_id: str) -> Checkpoint:
    """Remove a name from all savepoints that have it. Retention no longer keeps them; no file is deleted now.

    Raises `ConfigError` when no savepoint has the name.
    """
    with open_job(config, run_id) as job:
        job.checkpoint(name)
        return job.commit(Kind.SAVEPOINT_DROP, versions=job.versions, name=name, note=why)
