"""Logs and `checkpoints` stay small: a vacuum removes entries and files that no kept checkpoint needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import StorageError
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.storage.table import LOG
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE
from tests.jobs.home import Home
from tests.unit.support.memory_job import RETENTION, killed_at
from tests.unit.support.purchase_job import after_retention, commit_purchase

HOUR = 3_600_000


def versions(job, table):
    return {*Storage(job.config.job_folder).table(table).log_as_of(0).entries.values()}


def restorable(job, checkpoint_id):
    """Whether all versions of a checkpoint can be opened."""
    try:
        job.entries(job.log.get(checkpoint_id))
    except StorageError:
        return False
    return True


def vacuumed(job):
    vacuum(job.config, "weekly", dry_run=False)


def assert_goes_on(job):
    job.run("zoe")
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def test_vacuum_truncates_logs(memory_job, clock):
    job = memory_job
    job.run("ann", "bob", "cyd")
    compact(job.config, "nightly")
    content = job.content()
    clock.advance(RETENTION)
    vacuumed(job)
    assert versions(job, KEYED_STATE) == {4}
    assert min(versions(job, CHECKPOINTS)) > 4
    assert job.content() == content
    assert [checkpoint.checkpoint_id for checkpoint in job.log.checkpoints] == [0, 1, 2, 3, 4, 5]
    assert_goes_on(job)


def test_versions_within_retention_stay(memory_job, clock):
    job = memory_job
    job.run("ann", "bob")
    clock.advance(job.config.retention.hours * HOUR)
    job.run("cyd", "dee")
    clock.advance(HOUR)
    vacuumed(job)
    assert versions(job, KEYED_STATE) == {2, 3, 4}  # 2 was the last one when the retention began
    assert [restorable(job, number) for number in range(5)] == [False, False, True, True, True]
    restore(job.config, 2, "", "somebody")
    assert_goes_on(job)


def test_savepoints_keep_their_versions(memory_job, clock):
    job = memory_job
    job.run("ann", "bob")
    content = job.content()
    savepoint(job.config, "for_ever", "", "somebody")
    job.run("cyd", "dee")
    compact(job.config, "nightly")
    clock.advance(RETENTION)
    vacuumed(job)
    assert versions(job, KEYED_STATE) == {2, 5}
    vacuumed(job)
    restore(job.config, "for_ever", "", "somebody")
    assert job.content() == content
    assert_goes_on(job)


def test_reader_of_a_compacted_log_continues(memory_job, clock):
    job = memory_job
    job.run("ann")
    clock.advance(RETENTION)
    job.run("bob")
    table = Storage(job.config.job_folder).table(CHECKPOINTS).latest()
    compact(job.config, "nightly")
    vacuumed(job)
    assert table.files() <= job.files(CHECKPOINTS)
    clock.advance(RETENTION)
    vacuumed(job)
    assert not table.files() & job.files(CHECKPOINTS)
    assert_goes_on(job)


def test_restore_refuses_version_that_vacuum_deletes(memory_job, clock):
    job = memory_job
    job.run("ann", "bob")
    clock.advance(RETENTION)
    job.run("cyd")
    clock.advance(RETENTION)
    with killed_at(job.disk, "vacuum.committed"):
        vacuumed(job)
    assert restorable(job, 1)
    with pytest.raises(StorageError, match="its Delta log is being cut off"):
        restore(job.config, 1, "", "too late")
    vacuumed(job)
    assert not restorable(job, 1)
    with pytest.raises(StorageError, match="no longer reaches back that far"):
        restore(job.config, 1, "", "too late")
    assert_goes_on(job)


def test_overtaken_vacuum_truncates_no_log(memory_job, clock):
    job = memory_job
    job.run("ann", "bob")
    clock.advance(RETENTION)
    before = versions(job, KEYED_STATE)
    with killed_at(job.disk, "vacuum.listed"):
        vacuumed(job)
    assert versions(job, KEYED_STATE) == before
    assert restorable(job, 1)


# -------------------------------------------------------------------------------------------- Delta, on disk and elsewhere


@pytest.fixture
def config(new_job):
    return new_job


def log_size(config, table):
    return len(JobFolder.of(config).files(f"{table}/{LOG}"))


def commit_purchases(config, *customers):
    with open_job(config, "run", create=True) as job:
        for customer in customers:
            commit_purchase(job, customer)


@pytest.mark.slow
def test_delta_logs_are_truncated(config):
    commit_purchases(config, "ann", "bob")
    savepoint(config, "for_ever", "", "somebody")
    commit_purchases(config, "cyd", "dee")
    compact(config, "nightly")
    at_savepoint = JobFolder.of(config).table(KEYED_STATE).at(2).files()
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    store = JobFolder.of(config).table(KEYED_STATE)
    assert store.at(2).files() == at_savepoint
    for version in (0, 1, 3, 4):
        with pytest.raises(StorageError):
            store.at(version)
    assert log_size(config, KEYED_STATE) == 4  # commit 5, its log checkpoint and that of the savepoint, the hint
    restore(config, "for_ever", "", "somebody")
    commit_purchases(config, "eve")
    assert [finding for finding in verify(config) if not finding.ok] == []
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    assert CheckpointLog(JobFolder.of(config)).savepoint("for_ever").checkpoint_id == 3
    assert restore(config, "for_ever", "", "somebody").restored_from == 3


def test_damaged_delta_checkpoint_file_is_skipped(tmp_path):
    """The power failed before a log checkpoint was synced: its name and the hint to it exist, but no content."""
    config = Home(tmp_path).config()
    commit_purchases(config, "ann", "bob")
    folder = f"{config.job_folder}/{KEYED_STATE}/{LOG}"
    Storage(config.job_folder).table(KEYED_STATE).keep_versions([2])
    (torn,) = [name for name in Storage(str(folder)).files() if name.endswith(".parquet")]
    Path(folder, torn).write_bytes(b"")
    commit_purchases(config, "cyd")
    assert [finding for finding in verify(config) if not finding.ok] == []
    assert torn not in Storage(str(folder)).files()
