"""`headrace check` looks at sources on an object store as it does on a disk."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from headrace.storage.storage import Storage
from tests.unit.support.s3 import BUCKET


@pytest.fixture
def place(home, storage, monkeypatch):
    """The place of the source `events` on an object store, as the job's file says."""
    place = f"s3://{BUCKET}/{home.name}/events"
    job = home / "conf/jobs/demo.yaml"
    job.write_text(job.read_text().replace("{path: events}", f"{{path: '{place}'}}"))
    secrets = {name: value for name, value in storage.items() if name.endswith(("KEY", "KEY_ID"))}
    for name, value in secrets.items():
        monkeypatch.setenv(name, value)
    cluster = yaml.safe_load((home / "conf/clusters/local.yaml").read_text())
    cluster["storage"] = storage | {name: f"${{{name}}}" for name in secrets}
    (home / "conf/clusters/local.yaml").write_text(yaml.safe_dump(cluster))
    return place


def put(place, storage, table):
    store, path = Storage(f"{place}/2013-01-31.parquet", storage).file_system()
    with store.open_output_stream(path) as stream:
        pq.write_table(table, stream)


@pytest.mark.slow
def test_newest_object_is_read(headrace, place, storage):
    put(place, storage, pa.table({"tail": ["N1"], "at": pa.array([1], pa.int64())}))
    assert f"{place}: 1 file" in headrace("check demo").output
    put(place, storage, pa.table({"TAIL": ["N1"], "at": pa.array([1], pa.int64())}))
    answer = headrace("check demo")
    assert (answer.exit_code, "'TAIL'" in answer.output) == (1, True)


def test_place_without_objects_is_named(headrace, place):
    answer = headrace("check demo")
    assert (answer.exit_code, f"there is no folder {place}" in answer.output) == (1, True)
