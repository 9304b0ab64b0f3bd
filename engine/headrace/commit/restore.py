"""Going back: restore to a checkpoint, and savepoints, which retention spares."""

from __future__ import annotations

from headrace import faults
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.protocol import OF_STATE, OpenJob, open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.config import JobConfig, checked_name


def restore(config: JobConfig, target: int | str, why: str, run_id: str) -> Checkpoint:
    """Make a checkpoint, by id or savepoint name, the one that the next run continues from.

    State tables and sinks go back by Delta RESTORE, which moves no data; nothing is deleted. The
    restore is a checkpoint of its own, so it can be undone by restoring the one before it. Raises
    `ConfigError` for an unknown target, `StorageError` when files of the target are gone, and
    `FencedError` while a run holds the job; then nothing has changed.
    """
    with open_job(config, run_id, restores=True) as job:
        return restore_in(job, job.checkpoint(target).checkpoint_id, why)


def restore_in(job: OpenJob, target_id: int, why: str) -> Checkpoint:
    """Restore within a job that is open already. Raises `StorageError` when files of the target are gone."""
    target = job.checkpoint(target_id)
    RestoreCheck(job).refuse_unless_restorable(target)
    changed = {name: version for name, version in target.versions.items() if job.last.versions[name] != version}
    versions = job.restore_tables(changed)
    faults.reached("restore.prepared")
    restored = job.commit(
        Kind.RESTORE,
        versions=versions,
        restored_from=target_id,
        note=why,
        **{name: getattr(target, name) for name in OF_STATE},
    )
    job.migrate_format()  # the target may be older than the last migration
    return restored


def savepoint(config: JobConfig, name: str, why: str, run_id: str) -> Checkpoint:
    """Give the job's present state a name; retention spares it, and `restore` takes the name.

    Raises `ConfigError` for a name that is no identifier.
    """
    checked_name(name)
    with open_job(config, run_id) as job:
        return job.commit(Kind.SAVEPOINT, versions=job.versions, name=name, note=why)
