"""Which files of a job vacuum removes: on disk, on an object store, in memory. No run is needed: checkpoints are enough."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import StorageError
from headrace.storage.table import LOG
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from tests.unit.support.memory_job import BOARD, RETENTION
from tests.unit.support.purchase_job import after_retention

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture
def config(new_job):
    """A job that has its first checkpoint."""
    with open_job(new_job, "first", create=True):
        return new_job


@pytest.fixture
def stray(config):
    """Files that no checkpoint names: state of an attempt that never committed, and its files between stages."""
    places = [(f"{config.job_folder}/{folder}", "0.parquet") for folder in (KEYED_STATE, "transit/a1", "outputs/lines")]
    for folder, name in places:
        JobFolder.of(config).at(folder).stage(name, ROWS)
    streams = [(f"{config.job_folder}/transit/a1", name) for name in ("0.arrows", "tasks-1")]
    for folder, name in streams:
        JobFolder.of(config).at(folder).write(name, b"rows")
    return {f"{folder}/{name}" for folder, name in places + streams}


@pytest.fixture
def much_later(config):
    with after_retention(config):
        yield


def exists(config, uri):
    store, path = JobFolder.of(config).at(uri).file_system()
    return store.get_file_info(path).is_file


@pytest.mark.slow
def test_old_files_without_checkpoint_are_removed(config, stray, much_later):
    def data_files(uris):
        """Return the files that are not log entries."""
        return {uri for uri in uris if LOG not in uri}

    assert data_files(vacuum(config, "look")) == stray
    assert all(exists(config, file) for file in stray)
    assert data_files(vacuum(config, "remove", dry_run=False)) == stray
    assert not any(exists(config, file) for file in stray)
    assert data_files(vacuum(config, "again")) == set()
    assert savepoint(config, "after", "", "somebody").checkpoint_id > 0


@pytest.mark.slow
def test_vacuum_keeps_all_files_within_retention(config, stray):
    assert vacuum(config, "remove", dry_run=False) == []
    assert all(exists(config, file) for file in stray)


# ------------------------------------------------------------------------------------------------- what is kept


HOUR = 3_600_000


@pytest.fixture
def job(memory_job):
    """Two checkpoints, whose files no later one needs after a compaction."""
    memory_job.run("ann", "bob")
    return memory_job


def compacted(job):
    compact(job.config, "nightly")
    return job.config


def removed(job, folder):
    """Return the files of the job's folder that a vacuum deletes; a dry run must list the same files."""
    planned, files = vacuum(job.config, "look"), job.files(folder)
    deleted = vacuum(job.config, "remove", dry_run=False)
    assert {*deleted} >= {*planned}
    return files - job.files(folder)


def test_vacuum_keeps_files_of_the_last_checkpoint(job, clock):
    clock.advance(RETENTION)
    before = job.content()
    assert removed(job, KEYED_STATE) == set()
    compacted(job)
    clock.advance(RETENTION)
    assert len(removed(job, KEYED_STATE)) == 2
    assert job.content() == before


def test_vacuum_keeps_checkpoints_within_retention(job, clock):
    clock.advance(job.config.retention.hours * HOUR)
    job.run("cyd")
    files = job.files(KEYED_STATE)
    clock.advance(HOUR)
    compacted(job)
    assert removed(job, KEYED_STATE) == set()
    clock.advance((job.config.retention.hours - 1) * HOUR)
    assert removed(job, KEYED_STATE) == set()
    clock.advance(HOUR)
    assert removed(job, KEYED_STATE) == set()
    clock.advance(1)  # now a reader that began within the retention has opened the compaction
    assert removed(job, KEYED_STATE) == files


def test_vacuum_keeps_files_of_savepoints(job, clock):
    savepoint(job.config, "for_ever", "", "somebody")
    at_savepoint, files = job.content(), job.files(KEYED_STATE)
    job.run("cyd")
    compacted(job)
    clock.advance(RETENTION)
    assert removed(job, KEYED_STATE).isdisjoint(files)
    restore(job.config, "for_ever", "", "somebody")
    assert job.content() == at_savepoint


def test_vacuum_removes_files_undone_by_a_restore(job, clock):
    job.run("cyd")
    restore(job.config, 2, "", "somebody")
    clock.advance(RETENTION)
    (lost,) = removed(job, KEYED_STATE)
    assert lost.startswith("3-cyd")
    job.run("dee")


def test_vacuum_keeps_unpublished_outputs(job, clock):
    def refuse(step, path):
        if (step, path) == ("commit", f"lake/{BOARD}"):
            raise OSError("read-only")

    with job.disk.failing(refuse), pytest.raises(StorageError):
        job.run("cyd")
    clock.advance(RETENTION)
    (unpublished,) = job.last.outputs[BOARD]
    with job.disk.failing(refuse):
        planned = vacuum(job.config, "look")
        with pytest.raises(StorageError, match="read-only"):
            vacuum(job.config, "remove", dry_run=False)
    assert [path for path in planned if path.endswith(unpublished.path)] == []
    assert unpublished.path.removeprefix("outputs/") in job.files("outputs")
    job.run()
    assert job.sink_rows(BOARD, "customer") == ["cyd"]


def test_vacuum_removes_published_outputs(job, clock):
    job.run("cyd")
    clock.advance(RETENTION)
    lost = removed(job, "outputs")
    assert {file.rpartition("/")[2].partition("-")[0] for file in lost} == {"1", "2"}  # 3 is the last checkpoint
    clock.advance(1)
    assert len(removed(job, "outputs")) == 1


def test_vacuum_leaves_sinks_alone(job, clock):
    compacted(job)
    before = {path for path in job.disk.files if path.startswith("lake/")}
    clock.advance(RETENTION)
    vacuum(job.config, "remove", dry_run=False)
    assert {path for path in job.disk.files if path.startswith("lake/")} == before
