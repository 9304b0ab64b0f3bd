"""The fence: tables return to the versions that the last checkpoint names (in memory)."""

from __future__ import annotations

from functools import partial

import pytest

from headrace.commit.job_tables import JobTables
from headrace.commit.sink_position import check_sinks
from headrace.errors import FencedError, SinkMismatchError, StorageError
from headrace.storage.storage import Storage
from headrace.storage.table import CommitInfo
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE, STATE_TABLES, TIMERS
from tests.unit.support.memory_job import BOARD, commit_batch, killed_at, state_row


@pytest.fixture
def job(memory_job):
    """A job with one checkpoint."""
    memory_job.run("ann")
    return memory_job


@pytest.fixture
def half_prepared(job):
    """A job whose next checkpoint died between two tables."""
    with killed_at(job.disk, "prepare.half"), job.open() as opened:
        commit_batch(opened, "bob")
    return job


def table_of(job, name):
    return job.disk.tables[f"state/purchases/{name}"]


def test_fence_undoes_uncommitted_table_versions(half_prepared):
    job, events = half_prepared, []
    before = job.entries()
    assert job.version(KEYED_STATE) == 2
    with job.open(notify=lambda *event: events.append(event)) as opened:
        assert opened.versions == {**opened.last.versions, KEYED_STATE: 3}
        assert opened.view(KEYED_STATE).live_rows(["key"]) == [{"key": '"ann"'}]
    assert events == [("fenced", f"undid what an earlier attempt left in {KEYED_STATE}")]
    assert job.entries() == before


def test_next_checkpoint_builds_on_the_fence(half_prepared):
    half_prepared.run("cyd")
    assert half_prepared.last.versions[KEYED_STATE] == 4
    assert [row.count("ann") + row.count("cyd") for row in half_prepared.entries()[KEYED_STATE]] == [1, 1]


def test_fence_leaves_whole_tables_alone(job):
    events = []
    with job.open(notify=lambda *event: events.append(event)) as opened:
        assert opened.versions == opened.last.versions
    assert events == []
    assert {name: job.version(name) for name in STATE_TABLES} == job.last.versions


def test_table_behind_its_checkpoint_is_refused(job):
    table_of(job, KEYED_STATE).pop()
    with pytest.raises(StorageError, match=rf"{KEYED_STATE} is at version 0, but checkpoints name 1"):
        job.run("bob")
    assert (job.version(KEYED_STATE), job.last.checkpoint_id) == (0, 1)


def test_missing_state_table_is_refused(job):
    del job.disk.tables[f"state/purchases/{TIMERS}"]
    with pytest.raises(StorageError, match=rf"{TIMERS} is gone, but checkpoints name its version 1"):
        job.run("bob")


def test_fence_fails_if_another_writer_commits(half_prepared):
    job = half_prepared
    store = Storage(job.config.job_folder).table(KEYED_STATE)

    def overtake(step, path):
        if (step, path) == ("commit", f"state/purchases/{KEYED_STATE}"):
            job.disk.fault = lambda *_: None
            store.append(2, STATE_TABLES[KEYED_STATE].schema, [], CommitInfo(run_id="thief", attempt_id="7"))

    job.disk.fault = overtake
    with pytest.raises(FencedError, match=r"took version 3 of .*\(run thief, attempt 7\)"):
        job.run("cyd")


def test_files_of_a_lost_version_stop_the_fence(half_prepared):
    job = half_prepared
    (lost,) = Storage(job.config.job_folder).table(KEYED_STATE).at(1).files()
    del job.disk.files[f"state/purchases/{KEYED_STATE}/{lost}"]
    with pytest.raises(StorageError, match=lost):
        job.run("cyd")


def test_fence_publishes_the_last_checkpoint(job):
    events = []
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        commit_batch(opened, "bob")
    assert (job.published(), job.last.checkpoint_id) == (1, 2)
    with job.open(notify=lambda *event: events.append(event)):
        assert job.sink_rows(BOARD, "customer") == ["bob"]
    assert events == [("published", "published checkpoint 2 to 2 sinks")]


def test_fence_before_a_restore_may_publish_nothing(job):
    with killed_at(job.disk, "commit.after"), job.open() as opened:
        commit_batch(opened, "bob")
    Storage(job.config.job_folder).delete([file.path for file in job.last.outputs[BOARD]])
    with pytest.raises(SinkMismatchError, match="lacks checkpoint 2, which is not published"):
        job.run("cyd")
    with job.open(sink_check=partial(check_sinks, restores=True)) as opened:
        assert (opened.last.checkpoint_id, job.published()) == (2, 1)


def test_state_without_checkpoints_is_refused(job):
    del job.disk.tables[f"state/purchases/{CHECKPOINTS}"]
    job.disk.tables.pop("lake/lines_by_item")
    job.disk.tables.pop("lake/reminders")
    with pytest.raises(StorageError, match="holds state, but the job's checkpoints are gone"):
        job.run("bob")


def test_half_created_tables_are_completed(memory_job):
    with killed_at(memory_job.disk, "create.half"), memory_job.open():
        pass
    assert memory_job.log.last is None
    memory_job.run("ann")
    assert memory_job.last.checkpoint_id == 1


def test_fence_restores_several_tables_at_once(job):
    tables = JobTables(JobFolder(job.config.job_folder), "other", "attempt")
    with job.open() as opened:
        staged = state_row(opened, "bob")
        tables.prepare({KEYED_STATE: [staged], TIMERS: [staged]}, opened.versions)
        fenced = tables.fence(opened.last.versions)
    assert {name: fenced[name] for name in (KEYED_STATE, TIMERS)} == {KEYED_STATE: 3, TIMERS: 3}
