"""State and sinks on an S3 server, with three workers: an executor is lost, and the result is the same.

Spark reads the data between two stages through Hadoop's S3 client, whose jars `headrace setup --s3` fetches (690 MB).
"""

from __future__ import annotations

import pytest

from headrace.provision.jars import S3, jars_folder
from tests.cluster.conftest import DAYS, ROWS, asleep, ended, executor_of, run, sleeping_at, start, write_profile
from tests.jobs.home import JARS, PROJECT
from tests.jobs.outcome import assert_well_formed
from tests.jobs.purchase_files import purchases_of
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.unit.support.s3 import BUCKET, object_store

SECRETS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")

pytestmark = pytest.mark.skipif(
    bool(absent := S3.missing(jars_folder(PROJECT))), reason=f"{', '.join(absent)}: 'headrace setup --s3' fetches them"
)


@pytest.fixture
def stored_home(cluster_home, monkeypatch):
    """The job of `cluster_home` with its state and its sinks on an object store."""
    with object_store() as storage:
        for name in SECRETS:
            monkeypatch.setenv(name, storage[name])
        cluster_home.configure(
            {
                "cluster": "standalone",
                "state": {"root": f"s3://{BUCKET}/state"},
                "sources": {"purchases": {"max_files_per_batch": 1}},
                "sinks": {name: {"path": f"s3://{BUCKET}/lake/{name}"} for name in ("lines_by_item", "reminders")},
            }
        )
        cluster_home.storage = storage
        yield cluster_home


def write_stored_profile(home, master, settings=None) -> None:
    endpoint = home.storage["AWS_ENDPOINT_URL"]
    hadoop = {
        "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "spark.hadoop.fs.s3a.endpoint": endpoint,
        "spark.hadoop.fs.s3a.path.style.access": True,
    }
    storage = {name.upper(): value for name, value in home.storage.items()} | {name: f"${{{name}}}" for name in SECRETS}
    jars = [*JARS, *S3.digests()]
    write_profile(home, master, hadoop | (settings or {}), storage=storage, jars=jars)


def assert_right(home) -> None:
    assert_as_by_hand(home.config(), by_hand(purchases_of(day, rows=ROWS) for day in range(DAYS)))
    assert_well_formed(home.config())


def test_object_store_job_equals_plain_loop(stored_home, master):
    write_stored_profile(stored_home, master)
    ran = run(stored_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert_right(stored_home)


def test_lost_executor_leaves_no_trace_on_object_stores(stored_home, master, tmp_path):
    once = tmp_path / "asleep"
    write_stored_profile(stored_home, master, sleeping_at("task.half:2", once))
    running = start(stored_home, PROJECT)
    executor = executor_of(asleep(once, running))
    for process in (*executor.children(recursive=True), executor):
        process.kill()
    ran = ended(running)
    assert ran.returncode == 0, ran.stderr
    assert_right(stored_home)
