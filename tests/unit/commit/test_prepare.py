"""Preparing a checkpoint: staged files become versions of the state tables (in memory)."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.commit.job_tables import JobTables
from headrace.errors import FencedError, StorageError
from headrace.storage.storage import Storage
from headrace.storage.table import CommitInfo
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from headrace.testing._memory_disk import disk_and_path, forget_disk
from tests.unit.support.memory_job import commit_batch

JOB = "memory://prepared/job"
NOTE = pa.field("note", pa.string())


@pytest.fixture
def tables(clock):
    tables = JobTables(JobFolder(str(JOB)), "run", "attempt")
    tables.create()
    yield tables
    forget_disk("prepared")


def staged(table, name="1.parquet"):
    return Storage(f"{JOB}/{table}").stage(name, STATE_TABLES[table].schema.empty_table())


def latest():
    return {name: Storage(f"{JOB}/{name}").table().latest() for name in STATE_TABLES}


def versions():
    return {name: table.version for name, table in latest().items()}


NOTHING = dict.fromkeys(STATE_TABLES, 0)


def test_tables_are_created_once(tables):
    assert tables.create() == versions() == NOTHING


def test_each_changed_table_gets_a_version(tables):
    files = {KEYED_STATE: [staged(KEYED_STATE), staged(KEYED_STATE, "2.parquet")], TIMERS: [staged(TIMERS)]}
    assert tables.prepare(files, NOTHING) == versions() == {**NOTHING, KEYED_STATE: 1, TIMERS: 1}
    assert latest()[KEYED_STATE].files() == {"1.parquet", "2.parquet"}


def test_tables_without_files_keep_their_versions(tables):
    assert tables.prepare({KEYED_STATE: []}, NOTHING) == versions() == NOTHING


def test_versions_name_the_preparing_run(tables):
    tables.prepare({TIMERS: [staged(TIMERS)]}, NOTHING)
    assert latest()[TIMERS].history(1)[0].info == CommitInfo(run_id="run", attempt_id="attempt")


def test_version_of_another_writer_is_never_built_on(tables):
    other = JobTables(JobFolder(str(JOB)), "other", "its attempt")
    other.prepare({TIMERS: [staged(TIMERS)]}, NOTHING)
    with pytest.raises(FencedError, match=r"attempt attempt lost.*version 1 .*\(run other, attempt its attempt\)"):
        tables.prepare({TIMERS: [staged(TIMERS, "2.parquet")]}, NOTHING)
    assert latest()[TIMERS].files() == {"1.parquet"}


def test_error_names_version_of_unknown_writer(tables):
    Storage(f"{JOB}/{TIMERS}").table().append(0, STATE_TABLES[TIMERS].schema, [])
    with pytest.raises(FencedError, match="not a run of Headrace"):
        tables.prepare({TIMERS: [staged(TIMERS)]}, NOTHING)


def test_storage_that_refuses_names_the_version(tables):
    def fail(step, path):
        if (step, path) == ("commit", f"job/{TIMERS}"):
            raise OSError("no space left")

    files = {KEYED_STATE: [staged(KEYED_STATE)], TIMERS: [staged(TIMERS)]}
    with (
        disk_and_path(JOB)[0].failing(fail),
        pytest.raises(StorageError, match=f"version 1 of {JOB}/{TIMERS}: no space left"),
    ):
        tables.prepare(files, NOTHING)
    assert tables.fence(NOTHING) == versions() == {**NOTHING, KEYED_STATE: 2}
    assert latest()[KEYED_STATE].files() == set()


def test_replaced_table_has_the_new_files_only(tables):
    tables.prepare({TIMERS: [staged(TIMERS)]}, NOTHING)
    assert tables.replace(TIMERS, [staged(TIMERS, "2.parquet")], 1) == 2
    assert latest()[TIMERS].files() == {"2.parquet"}


def test_columns_are_added_once(tables):
    assert tables.add_columns(TIMERS, [NOTE], 0) == 1
    assert tables.add_columns(TIMERS, [NOTE, STATE_TABLES[TIMERS].schema.field(0)], 1) == 1
    assert latest()[TIMERS].schema.names[-1] == "note"


def test_restored_tables_are_new_versions(tables):
    prepared = tables.prepare({KEYED_STATE: [staged(KEYED_STATE)], TIMERS: [staged(TIMERS)]}, NOTHING)
    assert tables.restore({KEYED_STATE: 0, TIMERS: 0}, prepared) == {KEYED_STATE: 2, TIMERS: 2}
    assert latest()[TIMERS].files() == set()
    assert tables.restore({}, prepared) == {}


def test_commit_refuses_a_lost_lease(memory_job):
    with memory_job.open("former") as former:
        with memory_job.open("winner", force=True) as winner:
            commit_batch(winner, "ann")
        with pytest.raises(FencedError, match="former"):
            commit_batch(former, "bob")
    memory_job.run("cyd")
    assert memory_job.sink_rows("reminders", "customer") == ["ann", "cyd"]
