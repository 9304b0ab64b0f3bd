"""A restore checks the files of its target before it commits (in memory, and with a Delta log)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.commit.protocol import open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.edits.compact import compact
from headrace.edits.restore import restore, restore_in, savepoint
from headrace.errors import StorageError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.testing._memory_disk import forget_disk
from tests.jobs.home import Home
from tests.unit.support.memory_job import memory_config
from tests.unit.support.purchase_job import SINK, commit_purchase, put_on_object_store
from tests.unit.support.s3 import BUCKET

CUSTOMERS = ("ann", "bob", "cyd", "dee")


@pytest.fixture
def config():
    yield job_of_four(memory_config("restore"))
    forget_disk("restore")


@pytest.fixture
def on_disk(tmp_path):
    return job_of_four(Home(tmp_path).config())


def job_of_four(config):
    """A job with checkpoints 0 to 4, each of which replaces the one row of its sink."""
    with open_job(config, "first", create=True) as job:
        for customer in CUSTOMERS:
            commit_purchase(job, customer)
    return config


def sink_of(config):
    return DeltaTable(config.sinks[SINK].path)


def in_sink(config):
    sink = Storage(config.sinks[SINK].path).table().latest()
    return sink.read(sink.schema)["customer"].to_pylist()


def lose(config, *files):
    """Delete files of the keyed state."""
    Storage(config.job_folder).below(KEYED_STATE).delete(files)


def checkpoints(config):
    return CheckpointLog(JobFolder(config.job_folder)).checkpoints


def table_versions(config):
    return {name: Storage(config.job_folder).table(name).latest().version for name in STATE_TABLES}


def refusal(config, target):
    """Return the message of a refused restore, which must not change tables and sinks; the next run continues."""
    before = (len(checkpoints(config)), in_sink(config), table_versions(config))
    with pytest.raises(StorageError) as refused:
        restore(config, target, "why not", "somebody")
    assert (len(checkpoints(config)), in_sink(config), table_versions(config)) == before
    with open_job(config, "next") as job:
        assert job.versions == job.last.versions
    return str(refused.value)


def test_restore_brings_state_and_sink_back(config):
    assert in_sink(config) == ["dee"]
    restored = restore(config, 2, "why not", "somebody")
    assert (restored.kind, restored.checkpoint_id, restored.restored_from) == (Kind.RESTORE, 5, 2)
    assert in_sink(config) == ["bob"]


def test_restore_refuses_a_vacuumed_sink(on_disk):
    config = on_disk
    lost = Storage(config.sinks[SINK].path).table().at(2).files()
    sink_of(config).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    message = refusal(config, 2)
    assert f"1 of 1 file of version 2 of sink '{SINK}' at {config.sinks[SINK].path} are gone" in message
    assert lost.pop() in message
    assert "Nothing was changed. Checkpoint 0 can be restored, and the next run takes in all input again; " in message
    assert restore(config, 0, "all is read again", "somebody").restored_from == 0


def test_restore_refuses_lost_state_files(config):
    folder = f"{config.job_folder}/{KEYED_STATE}"
    lose(config, "1-ann.parquet")
    message = refusal(config, 3)
    assert f"1 of 3 files of version 3 of state table {KEYED_STATE} at {folder} are gone" in message
    assert "such as 1-ann.parquet" in message
    assert restore(config, 0, "no file is needed", "somebody").restored_from == 0


def test_last_whole_checkpoint_before_damage_is_offered(config):
    lose(config, "3-cyd.parquet")
    message = refusal(config, 3)
    assert "Checkpoint 2 can be restored, and the next run takes in what came since again; " in message
    assert restore(config, 2, "as it says", "somebody").restored_from == 2


def test_restore_within_a_run_is_checked(config):
    lose(config, "1-ann.parquet")
    with open_job(config, "a replay") as job:
        with pytest.raises(StorageError, match="checkpoint 3 cannot be restored"):
            restore_in(job, 3, "an interval is run again")
        assert job.last.checkpoint_id == 4


def test_refusal_names_the_next_restorable_checkpoint(config):
    path = config.sinks[SINK].path
    for version in (1, 2):
        Storage(str(path)).delete(Storage(str(path)).table().at(version).files())
    assert "Checkpoint 3 can be restored; 'headrace checkpoints purchases' lists all" in refusal(config, 1)
    restore(config, 3, "as it says", "somebody")
    assert in_sink(config) == ["cyd"]


def test_restore_refuses_a_sink_with_cleaned_log(on_disk):
    config = on_disk
    path = config.sinks[SINK].path
    sink_of(config).create_checkpoint()
    for version in range(3):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    message = refusal(config, 1)
    assert f"the history of sink '{SINK}' at" in message
    assert "begins at version 3, after what belongs to checkpoint 1" in message


def test_restore_to_the_present_needs_its_files(config):
    """The next run would end on the file that is gone."""
    savepoint(config, "here", "", "somebody")
    lose(config, "1-ann.parquet")
    assert "such as 1-ann.parquet" in refusal(config, "here")


@pytest.mark.slow
def test_restore_looks_at_sinks_on_object_stores(tmp_path, storage, monkeypatch):
    home = Home(tmp_path)
    put_on_object_store(home, storage, monkeypatch)
    config = job_of_four(home.config())
    assert restore(config, 3, "all is there", "somebody").restored_from == 3
    path = config.sinks[SINK].path
    place = JobFolder.of(config).at(path)
    place.delete(place.table().at(1).files())
    with pytest.raises(StorageError, match=f"1 of 1 file of version 1 of sink '{SINK}' at {path} are gone"):
        restore(config, 1, "its file is not", "somebody")


@pytest.mark.parametrize("place", ["disk", "object store"])
def test_files_of_partitions_are_found_under_their_names(request, tmp_path, place):
    rows = pa.table({"p": ["a b", "ü/%", "x=y", "plain"], "n": [1, 2, 3, 4]})
    if place == "disk":
        check_partitions(f"{tmp_path}/a folder/t", rows, None)
    else:
        storage = request.getfixturevalue("storage")
        check_partitions(f"s3://{BUCKET}/{tmp_path.name}/a folder/t", rows, storage)


def check_partitions(uri, rows, storage):
    place = Storage(uri, storage)
    write_deltalake(uri, rows.slice(0, 0), partition_by=["p"], storage_options=storage)
    assert place.table().latest().files() == set()
    write_deltalake(uri, rows, mode="append", storage_options=storage)
    files = place.table().latest().files()
    assert len(files) == rows.num_rows
    assert files < place.files()
    assert place.files("nowhere") == set()


def lost(config):
    listed = CheckpointLog(JobFolder(config.job_folder)).checkpoints
    return RestoreCheck(config, listed, [SINK]).lost(listed)


def test_check_knows_the_lost_checkpoints(config):
    assert lost(config) == []
    compact(config, "compacts")
    with open_job(config, "more") as job:
        commit_purchase(job, "eve")
    lose(config, "1-ann.parquet")
    assert lost(config) == [1, 2, 3, 4]


def test_silent_store_loses_no_checkpoint(config, monkeypatch):
    def refused(*_):
        raise StorageError("503: slow down")

    monkeypatch.setattr(RestoreCheck, "_logged", refused)
    with pytest.raises(StorageError, match="slow down"):
        lost(config)
