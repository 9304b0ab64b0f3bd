"""Committed data survives a power failure, and a commit never names lost files."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, nullcontext

import pytest
from msgspec.structs import replace

from headrace.commit.protocol import open_job
from headrace.errors import SinkMismatchError, StorageError
from headrace.log.checkpoint import Kind
from headrace.sinks.sink import SparkWriters
from headrace.storage import schemes as durability
from headrace.storage.schemes import make_folder
from headrace.storage.storage import Storage
from headrace.storage.table import CommitInfo, VersionTakenError
from headrace.tables.schemas import KEYED_STATE
from tests.jobs.home import Home
from tests.unit.support.memory_job import (
    BOARD,
    REMINDERS,
    board,
    commit_batch,
    killed_at,
    reminder,
    state_row,
    unsynced,
)


@pytest.fixture
def quick_syncs():
    """Replace the fixture of all unit tests: here, files are synced in threads, and the disk has them."""


# -------------------------------------------------------------------------------------------- staged files that are gone


@contextmanager
def lost(disk, part):
    """Lose staged files between the commit of a checkpoint and its publication."""

    def lose(step, path):
        if (step, path) == ("sync", "state/purchases/checkpoints"):
            for name in [name for name in disk.files if part in name]:
                del disk.files[name]

    with disk.failing(lose):
        yield


@pytest.mark.parametrize(("sink", "part"), [(BOARD, "outputs/lines_by_item/2-"), (REMINDERS, "lake/reminders/2-")])
def test_publishing_without_staged_files_is_refused(memory_job, sink, part):
    job = memory_job
    job.run("ann")
    version = job.sink(sink).version
    with (
        lost(job.disk, part),
        pytest.raises(StorageError, match="is gone .1 of 1 file ") as error,
        job.open() as opened,
    ):
        commit_batch(opened, "bob")
    assert f"checkpoint 2 is committed, and cannot be published to sink '{sink}'" in str(error.value)
    assert "'headrace reconcile purchases'" in str(error.value)
    assert job.sink(sink).version == version
    assert job.last.checkpoint_id == 2


@pytest.mark.parametrize("sink", [BOARD, REMINDERS])
def test_publishing_continues_when_files_return(memory_job, sink):
    job = memory_job
    job.run("ann")
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        commit_batch(opened, "bob")
    files = dict(job.disk.files)
    for name in [name for name in files if "2-bob" in name and KEYED_STATE not in name and "timers" not in name]:
        del job.disk.files[name]
    with pytest.raises(SinkMismatchError, match="is gone"):
        job.run()
    job.disk.files.update(files)
    job.run()
    assert (job.published(BOARD), job.published(REMINDERS)) == (2, 2)


def test_cut_off_file_is_not_published(memory_job):
    job = memory_job
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        outputs = reminder(opened, "ann")
        opened.commit(Kind.BATCH, outputs=outputs)
    (file,) = outputs[REMINDERS]
    path = f"lake/reminders/{file.path}"
    job.disk.files[path].content = b""
    with pytest.raises(SinkMismatchError, match=f"has 0 of {file.size:,} bytes"):
        job.run()


# ------------------------------------------------------------------------------------------------- Spark syncs nothing


@pytest.fixture
def spark_job(memory_job):
    """A job whose merges go through another program, which syncs nothing."""
    memory_job.config = replace(memory_job.config, publish=replace(memory_job.config.publish, spark_above_rows=0))

    def merge(rows):
        store = Storage(rows.uri).table()
        info = CommitInfo(checkpoint_id=rows.transaction.version, transaction=rows.transaction)
        with unsynced(memory_job.disk):
            store.merge(store.latest().version, Storage(rows.files[0]).parquet(), rows.keys, info)

    memory_job.merge = merge
    return memory_job


def test_merge_through_spark_survives(spark_job):
    job = spark_job
    with job.open(writers=SparkWriters(write=job.merge)) as opened:
        commit_batch(opened, "ann")
    job.disk.lose_power()
    assert job.published(BOARD) == 1
    assert job.sink_rows(BOARD, "customer") == ["ann"]


def test_next_run_syncs_merge_of_dead_run(spark_job):
    job = spark_job
    with killed_at(job.disk, "sync lake/lines_by_item", 3), job.open(writers=SparkWriters(write=job.merge)) as opened:
        commit_batch(opened, "ann")
    assert job.published(BOARD) == 1
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))  # from now on nobody would publish 1 again
    job.disk.lose_power()
    job.run()
    assert job.sink_rows(BOARD, "customer") == ["ann"]


def test_commit_of_another_program_hides_no_merge(spark_job):
    job = spark_job
    with killed_at(job.disk, "sync lake/lines_by_item", 3), job.open(writers=SparkWriters(write=job.merge)) as opened:
        commit_batch(opened, "ann")
    with unsynced(job.disk):
        store = Storage(job.config.sinks[BOARD].path).table()
        store.append(store.latest().version, store.latest().schema, [])
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))
    job.disk.lose_power()
    job.run()
    assert job.sink_rows(BOARD, "customer") == ["ann"]


def test_commits_of_other_programs_take_no_publication_along(memory_job):
    job = memory_job
    with job.open() as opened:
        commit_batch(opened, "ann")
    with job.open() as opened:
        with unsynced(job.disk):
            store = Storage(job.config.sinks[BOARD].path).table()
            for _ in range(2):  # a publication syncs the last commit before it anyway
                store.append(store.latest().version, store.latest().schema, [])
        commit_batch(opened, "bob")
    job.disk.lose_power()
    assert job.published(BOARD) == 2
    assert job.sink_rows(BOARD, "customer") == ["bob"]


@contextmanager
def unheard(disk, table):
    """Let the first commit of a table succeed, but tell its writer that another writer was first."""
    is_told = False

    def acknowledge(step, path):
        nonlocal is_told
        if path == table and not is_told:
            is_told = True
            raise VersionTakenError(path)

    before, disk.acknowledge = disk.acknowledge, acknowledge
    yield
    disk.acknowledge = before


def test_unacknowledged_merge_survives(memory_job):
    job = memory_job
    with job.open() as opened:
        with unheard(job.disk, "lake/lines_by_item"):
            commit_batch(opened, "ann")
        opened.commit(Kind.BATCH, outputs=reminder(opened, "bob"))  # from now on nobody would publish 1 again
    job.disk.lose_power()
    job.run()
    assert job.sink_rows(BOARD, "customer") == ["ann"]


# ------------------------------------------------------------------------------------------------------- on a local disk


@pytest.fixture
def synced(monkeypatch):
    """The paths that are synced, in order."""
    paths = []
    real = durability.sync_path

    def sync_path(path):
        real(path)
        paths.append(str(path))

    monkeypatch.setattr(durability, "sync_path", sync_path)
    return paths


@pytest.fixture
def disk_config(tmp_path):
    return Home(tmp_path).config()


def test_all_files_of_a_job_are_synced(disk_config, synced):
    with open_job(disk_config, "run", create=True) as job:
        commit_batch(job, "ann")
    for folder in (disk_config.job_folder, *(sink.path for sink in disk_config.sinks.values())):
        files = {f"{folder}/{name}" for name in Storage(str(folder)).files()}
        assert files <= {*synced}
        assert {file.rpartition("/")[0] for file in files} <= {*synced}


def test_commits_are_synced_in_order(disk_config, synced):
    with open_job(disk_config, "run", create=True) as job:
        job.commit(Kind.BATCH)
        synced.clear()
        files, outputs = {KEYED_STATE: [state_row(job, "ann")]}, {**board(job, "ann"), **reminder(job, "ann")}
        job.commit(Kind.BATCH, files=files, outputs=outputs)
        folder, sinks = job.config.job_folder, job.config.sinks
    steps = [
        f"{folder}/{KEYED_STATE}/{files[KEYED_STATE][0].path}",
        f"{folder}/{KEYED_STATE}/_delta_log/{1:020d}.json",
        f"{folder}/checkpoints/_delta_log/{4:020d}.json",
        f"{sinks[BOARD].path}/_delta_log/{1:020d}.json",
    ]
    places = [synced.index(step) for step in steps]
    assert places == sorted(places)
    merged = next(iter(Storage(sinks[BOARD].path).table().latest().files()))
    assert synced.index(f"{sinks[BOARD].path}/{merged}") < places[-1]
    row = next(path for path in synced if path.startswith(f"{folder}/checkpoints/part-"))
    assert synced.index(row) < places[2]


def test_new_folders_are_synced_in_parent_folders(tmp_path, synced):
    make_folder(f"{tmp_path}/a/b")
    assert {*synced} == {str(tmp_path), f"{tmp_path}/a"}
    make_folder(f"{tmp_path}/a/b")
    assert len(synced) == 2


def test_folders_are_synced_once_for_many_files(tmp_path, synced):
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    Storage(str(tmp_path)).sync(["one", "two"])
    assert sorted(synced) == [str(tmp_path), f"{tmp_path}/one", f"{tmp_path}/two"]


def test_missing_file_cannot_be_synced(tmp_path):
    with pytest.raises(FileNotFoundError):
        Storage(str(tmp_path)).sync(["none"])
    with pytest.raises(FileNotFoundError):
        Storage(f"memory://{tmp_path.name}").sync(["none"])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_file_system_may_refuse_to_sync_folders(tmp_path, monkeypatch, number):
    def refuse(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, "refused")

    (tmp_path / "one").write_text("1")
    monkeypatch.setattr(os, "fsync", refuse)
    with nullcontext() if number == errno.EINVAL else pytest.raises(OSError, match="refused"):
        Storage(str(tmp_path)).sync(["one"])


def test_failing_disk_stops_the_commit(disk_config, monkeypatch):
    """A file that the disk could not sync counts as lost: no commit builds on it."""
    with open_job(disk_config, "run", create=True) as job:
        commit_batch(job, "ann")

    def fail(descriptor):
        raise OSError(errno.EIO, "the disk is dying")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError, match="the disk is dying"), open_job(disk_config, "run"):
        raise AssertionError("the job is open")


def test_object_stores_sync_by_themselves(synced):
    Storage("s3://bucket/folder").sync(["file"])
    make_folder("s3://bucket/folder")
    assert synced == []
