"""Which files of a job vacuum removes, on disk and on an object store. No run is needed for that: checkpoints are enough."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.checkpoint import savepoint, vacuum
from headrace.checkpoint.files import file_system, stage
from headrace.checkpoint.opening import open_job
from headrace.checkpoint.tables import KEYED_STATE
from tests.jobs.home import Home
from tests.unit.support.purchase_job import after_retention, put_on_object_store
from tests.unit.support.s3 import object_store

ROWS = pa.table({"n": [1, 2, 3]})


@pytest.fixture(scope="module")
def storage():
    with object_store() as storage:
        yield storage


@pytest.fixture(params=["disk", "object store"])
def config(request, tmp_path, monkeypatch):
    """A job that has its first checkpoint."""
    home = Home(tmp_path)
    if request.param == "object store":
        put_on_object_store(home, request.getfixturevalue("storage"), monkeypatch)
    config = home.config()
    with open_job(config, "first", create=True):
        return config


@pytest.fixture
def stray(config):
    """Files that no checkpoint names: state of an attempt that never committed, and what it left between its stages."""
    places = [(f"{config.job_folder}/{folder}", "0.parquet") for folder in (KEYED_STATE, "transit/a1", "outputs/lines")]
    for folder, name in places:
        stage(folder, name, ROWS, config.storage_options)
    return {f"{folder}/{name}" for folder, name in places}


@pytest.fixture
def much_later(config):
    with after_retention(config):
        yield


def exists(config, uri):
    store, path = file_system(uri, config.storage_options)
    return store.get_file_info(path).is_file


def test_what_no_checkpoint_names_goes_when_it_is_old(config, stray, much_later):
    assert set(vacuum(config, "look")) == stray
    assert all(exists(config, file) for file in stray)
    assert set(vacuum(config, "remove", dry_run=False)) == stray
    assert not any(exists(config, file) for file in stray)
    assert vacuum(config, "again") == []
    assert savepoint(config, "after", "", "somebody").checkpoint_id > 0


def test_within_the_retention_everything_stays(config, stray):
    assert vacuum(config, "remove", dry_run=False) == []
    assert all(exists(config, file) for file in stray)
