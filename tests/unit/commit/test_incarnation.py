"""A job and its sinks know their incarnation of the job: each incarnation restarts the ids of checkpoints (in memory)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from headrace.commit.verify import verify
from headrace.edits.restore import restore
from headrace.errors import SinkMismatchError
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import SparkWriters
from headrace.storage.storage import Storage
from headrace.storage.table import CommitInfo
from tests.unit.support.memory_job import BOARD, MemoryJob, commit_batch, killed_at


def incarnation(job, sink=BOARD):
    target = sink_of(job.config, sink)
    return target.incarnation(target.latest())


def move(job, folder, to):
    """Rename a folder on the disk, with all files and tables below it."""
    for kept in (job.disk.files, job.disk.tables):
        for path in [path for path in kept if path.startswith(f"{folder}/")]:
            kept[to + path.removeprefix(folder)] = kept.pop(path)


@pytest.fixture
def begun_anew(memory_job):
    """A job whose folder and sinks were moved away and started anew; then the sinks of the first incarnation came back."""
    job = memory_job
    job.run("ann", "bob")
    move(job, "state", "old state")
    move(job, "lake", "old lake")
    job.run("cyd", "dee")
    move(job, "lake", "new lake")
    move(job, "old lake", "lake")
    return job


def test_sinks_record_the_incarnation_that_wrote_them(memory_job):
    job = memory_job
    job.run("ann")
    own = job.last.incarnation
    assert own is not None
    assert incarnation(job) == own
    restore(job.config, 0, "", "somebody")
    job.run("bob")
    assert {checkpoint.incarnation for checkpoint in job.log.checkpoints} == {own}
    assert incarnation(job) == own


def test_incarnations_have_different_numbers(begun_anew):
    job = begun_anew
    assert job.published() == job.last.checkpoint_id == 2
    assert incarnation(job) != job.last.incarnation


def test_sink_of_another_incarnation_is_refused(begun_anew):
    job = begun_anew
    before = job.copy()
    for act in (job.run, lambda: restore(job.config, 1, "", "somebody")):
        with pytest.raises(SinkMismatchError, match="was written by another incarnation of job 'purchases'") as error:
            act()
        assert f"incarnation {job.last.incarnation:x} and ends at checkpoint 2" in str(error.value)
    assert job.last.checkpoint_id == 2
    assert {path: len(versions) for path, versions in job.disk.tables.items() if "lake" in path} == {
        path: len(versions) for path, versions in before._tables.items() if "lake" in path
    }
    assert any("another incarnation" in finding.detail for finding in verify(job.config) if not finding.ok)


def test_matching_folder_and_sinks_continue(begun_anew):
    job = begun_anew
    move(job, "state", "new state")
    move(job, "old state", "state")
    job.run("eve")
    assert job.sink_rows("reminders", "customer") == ["ann", "bob", "eve"]


def test_unpublished_checkpoint_does_not_enter_a_foreign_sink(memory_job):
    job = memory_job
    job.run("ann")
    move(job, "state", "old state")
    move(job, "lake", "old lake")
    job.run("bob")
    with killed_at(job.disk, "commit.after"):
        job.run("cyd")
    move(job, "lake", "new lake")
    move(job, "old lake", "lake")
    with pytest.raises(SinkMismatchError, match="another incarnation"):
        job.run()
    assert job.sink_rows(BOARD, "customer") == ["ann"]


def test_merge_through_spark_records_incarnation_later(memory_job):
    """Spark's MERGE has room for one transaction: a second commit records both, once per incarnation."""
    job = memory_job
    job.config = replace(job.config, publish=replace(job.config.publish, spark_above_rows=0))
    spark = SparkMerges(job)
    with job.open(writers=SparkWriters(write=spark)) as opened:
        commit_batch(opened, "ann")
        assert incarnation(job) == job.last.incarnation
        commit_batch(opened, "bob")
    assert spark.merges == 2
    assert job.published() == 2
    assert job.sink().version == 3  # two merges, and one commit for the number


class SparkMerges:
    """Merges as Spark does: with one transaction."""

    def __init__(self, job: MemoryJob) -> None:
        self.job, self.merges = job, 0

    def __call__(self, rows):
        self.merges += 1
        store = Storage(rows.uri).table()
        info = CommitInfo(checkpoint_id=rows.transaction.version, transaction=rows.transaction)
        store.merge(store.latest().version, Storage(rows.files[0]).parquet(), rows.keys, info)
