"""A restore looks for the files of its target before it commits (deltalake, no JVM)."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.checkpoint import restore, restore_in, savepoint
from headrace.checkpoint._delta import data_files, open_table
from headrace.checkpoint._log import CheckpointLog
from headrace.checkpoint.checkpoint import Kind
from headrace.checkpoint.files import delete_files, list_files
from headrace.checkpoint.opening import open_job
from headrace.checkpoint.tables import KEYED_STATE
from headrace.errors import StorageError
from tests.jobs.home import Home
from tests.jobs.outcome import sink_rows
from tests.unit.support.purchase_job import SINK, commit_purchase, put_on_object_store
from tests.unit.support.s3 import BUCKET, object_store

CUSTOMERS = ("ann", "bob", "cyd", "dee")


@pytest.fixture
def config(tmp_path):
    return job_of_four(Home(tmp_path))


def job_of_four(home):
    """A job with checkpoints 0 to 4, each of which replaces the one row of its sink."""
    config = home.config()
    with open_job(config, "first", create=True) as job:
        for customer in CUSTOMERS:
            commit_purchase(job, customer)
    return config


def sink_of(config):
    return DeltaTable(config.sinks[SINK].path)


def in_sink(config):
    return [row[2] for row in sink_rows(config, SINK)]


def checkpoints(config):
    return CheckpointLog(config.job_folder).checkpoints


def table_versions(config):
    return {path.parent: len(list(path.glob("*.json"))) for path in Path(config.job_folder).glob("*_state/_delta_log")}


def refusal(config, target):
    """What a restore that is refused says; it must leave tables and sinks alone, and the next run goes on."""
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


def test_restore_refuses_a_vacuumed_sink(config):
    lost = data_files(open_table(config.sinks[SINK].path, version=2))
    sink_of(config).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    said = refusal(config, 2)
    assert f"1 of the 1 files of version 2 of sink '{SINK}' at {config.sinks[SINK].path} are gone" in said
    assert lost.pop() in said
    assert said.endswith("Nothing was changed. 'headrace checkpoints purchases' lists all.")


def test_restore_refuses_lost_state_files(config):
    folder = Path(config.job_folder) / KEYED_STATE
    (folder / "1-ann.parquet").unlink()
    said = refusal(config, 3)
    assert f"1 of the 3 files of version 3 of state table {KEYED_STATE} at {folder} are gone" in said
    assert "such as 1-ann.parquet" in said
    assert restore(config, 0, "no file is needed", "somebody").restored_from == 0


def test_restore_within_a_run_is_checked(config):
    (Path(config.job_folder) / KEYED_STATE / "1-ann.parquet").unlink()
    with open_job(config, "a replay") as job:
        with pytest.raises(StorageError, match="checkpoint 3 cannot be restored"):
            restore_in(job, 3, "an interval is run again")
        assert job.last.checkpoint_id == 4


def test_refusal_names_the_next_restorable_checkpoint(config):
    for version in (1, 2):
        for file in data_files(open_table(config.sinks[SINK].path, version=version)):
            (Path(config.sinks[SINK].path) / file).unlink()
    assert "Checkpoint 3 can be restored; 'headrace checkpoints purchases' lists all" in refusal(config, 1)
    restore(config, 3, "as it says", "somebody")
    assert in_sink(config) == ["cyd"]


def test_restore_refuses_a_sink_with_cleaned_log(config):
    path = config.sinks[SINK].path
    sink_of(config).create_checkpoint()
    for version in range(3):
        (Path(path) / "_delta_log" / f"{version:020d}.json").unlink()
    said = refusal(config, 1)
    assert f"the history of sink '{SINK}' at" in said
    assert "begins at version 3, after what belongs to checkpoint 1" in said


def test_restore_to_the_present_needs_no_files(config):
    saved = savepoint(config, "here", "", "somebody")
    (Path(config.job_folder) / KEYED_STATE / "1-ann.parquet").unlink()
    assert restore(config, "here", "", "somebody").restored_from == saved.checkpoint_id


@pytest.mark.slow
def test_restore_looks_at_sinks_on_object_stores(tmp_path, monkeypatch):
    home = Home(tmp_path)
    with object_store() as storage:
        put_on_object_store(home, storage, monkeypatch)
        config = job_of_four(home)
        assert restore(config, 3, "all is there", "somebody").restored_from == 3
        path = config.sinks[SINK].path
        delete_files(path, data_files(open_table(path, version=1, storage=config.storage_options)), storage)
        with pytest.raises(StorageError, match=f"1 of the 1 files of version 1 of sink '{SINK}' at {path} are gone"):
            restore(config, 1, "its file is not", "somebody")


@pytest.mark.parametrize("place", ["disk", "object store"])
def test_files_of_partitions_are_found_under_their_names(tmp_path, place):
    rows = pa.table({"p": ["a b", "ü/%", "x=y", "plain"], "n": [1, 2, 3, 4]})
    if place == "disk":
        check_partitions(f"{tmp_path}/a folder/t", rows, None)
    else:
        with object_store() as storage:
            check_partitions(f"s3://{BUCKET}/{tmp_path.name}/a folder/t", rows, storage)


def check_partitions(uri, rows, storage):
    write_deltalake(uri, rows.slice(0, 0), partition_by=["p"], storage_options=storage)
    assert data_files(open_table(uri, storage=storage)) == set()
    write_deltalake(uri, rows, mode="append", storage_options=storage)
    files = data_files(open_table(uri, storage=storage))
    assert len(files) == rows.num_rows
    assert files < list_files(uri, storage)
    assert list_files(f"{uri}/nowhere", storage) == set()
