"""After a purge no byte of the key is left below the job's folder."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.erase import erase, find_key
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import fork
from headrace.edits.restore import drop_savepoint, restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.readers import history as key_history
from headrace.readers import state as keyed_state
from headrace.readers.job_at import JobAtCheckpoint
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, QUARANTINE, TIMERS
from tests.jobs.home import Home
from tests.unit.support.erasure_job import (
    changes_of,
    commit_rows,
    places_with,
    quarantined,
    rows_of_all_tables,
    stage_rows,
    state,
    timer,
)
from tests.unit.support.purchase_job import after_retention, put_on_object_store

ANNA, WHY = ErasedKey("anna", with_mentions=True), "request 17"


def log_of(config):
    return CheckpointLog(JobFolder.of(config))


def commit(config, rows, **fields):
    with open_job(config, "run", create=True) as job:
        return commit_rows(job, rows, **fields)


def purge(config, key=ANNA):
    return erase(config, "dpo", key, why=WHY, purge=True)


def assert_erased(config, text="anna"):
    assert places_with(config, text) == set()
    assert all(finding.ok for finding in verify(config))
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    commit(config, {KEYED_STATE: [state("bob", "goes on")]})
    compact(config, "nightly")
    assert places_with(config, text) == set()


@pytest.fixture
def new_job(tmp_path):
    """A job that was never run, on a local disk."""
    return Home(tmp_path).config()


@pytest.fixture
def config(new_job):
    """A job with anna in all tables at checkpoints 2 to 4; 4 is a compaction."""
    return with_anna(new_job)


def with_anna(new_job):
    commit(new_job, rows_of_all_tables("bob", "bob"))
    commit(new_job, rows_of_all_tables("anna", "anna") | {QUARANTINE: [quarantined('{"by": "anna"}')]})
    commit(
        new_job, {KEYED_STATE: [state("zoe", '{"at": 1}'), state("anna", None)], TIMERS: [timer("anna", deleted=True)]}
    )
    compact(new_job, "nightly")
    return new_job


@pytest.mark.slow
def test_no_byte_of_the_key_is_left(config):
    assert len(places_with(config, "anna")) > 10
    others = {name: [row for row in rows if "anna" not in repr(row)] for name, rows in changes_of(config).items()}
    done = purge(config)
    assert done.files_deleted >= len(done.survey.files[KEYED_STATE])
    assert changes_of(config) == others
    assert_erased(config)


@pytest.mark.slow
def test_purge_can_follow_later(config):
    erase(config, "dpo", ANNA, why=WHY)
    commit(config, {KEYED_STATE: [state("bob", "3")]})
    assert places_with(config, "anna")
    done = purge(config)
    assert (done.checkpoint, bool(done.files_deleted)) == (None, True)
    assert restore(config, 6, "clean", "run").restored_from == 6
    assert_erased(config)


@pytest.mark.slow
def test_clean_checkpoints_stay_restorable(config):
    purge(config)
    assert restore(config, 1, "before her time", "run").restored_from == 1
    assert {row["key"] for rows in changes_of(config).values() for row in rows} == {'"bob"'}
    assert restore(config, 5, "after her time", "run").restored_from == 5
    assert_erased(config)


@pytest.mark.slow
def test_clean_versions_in_the_gap_stay(config):
    erase(config, "dpo", ANNA, why=WHY)
    clean = commit(config, {KEYED_STATE: [state("bob", "3")]}).checkpoint_id
    savepoint(config, "clean", "", "run")
    commit(config, rows_of_all_tables("anna", "anna"))
    purge(config)
    expected = {"anna": False, "bob": True}
    for at in (clean, "clean"):
        job = JobAtCheckpoint(config, at)
        assert {key: bool(keyed_state.get(job, key).rows) for key in expected} == expected
    restore(config, "clean", "it is clean", "run")
    assert_erased(config)


@pytest.mark.slow
def test_branch_before_the_key_does_not_disturb_vacuum(config):
    purge(config)
    fork(config, "before", 1, "run")
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    commit(config, {KEYED_STATE: [state("bob", "goes on")]})
    assert all(finding.ok for finding in verify(config))


@pytest.mark.slow
def test_old_checkpoint_errors_name_the_purge(config):
    purge(config)
    for read in (lambda: JobAtCheckpoint(config, 2), lambda: restore(config, 3, "oops", "run")):
        with pytest.raises(StorageError, match="its files had rows of an erased key, and checkpoint 6 deleted them"):
            read()
    assert key_history.key_history(JobAtCheckpoint(config), "anna").rows == []
    assert [row[0] for row in key_history.key_history(JobAtCheckpoint(config), "bob").rows]


@pytest.mark.slow
def test_savepoints_must_be_dropped_first(config):
    savepoint(config, "before_upgrade", "", "run")
    files = places_with(config, "anna")
    with pytest.raises(ConfigError, match="headrace savepoint purchases before_upgrade --drop --why"):
        purge(config)
    assert places_with(config, "anna") == files
    drop_savepoint(config, "before_upgrade", WHY, "run")
    with pytest.raises(ConfigError, match="'before_upgrade' was dropped with checkpoint 6"):
        restore(config, "before_upgrade", "oops", "run")
    purge(config)
    assert_erased(config)


@pytest.mark.slow
def test_leftovers_of_dead_attempts_go(config):
    with open_job(config, "dies") as job:
        stage_rows(job, KEYED_STATE, [state("anna", "orphan")])
        staged = stage_rows(job, KEYED_STATE, [state("anna", "4")])
        store = JobFolder.of(config).table(KEYED_STATE)
        parent = job.versions[KEYED_STATE]
        store.append(parent, store.at(parent).schema, [staged])  # prepared, and never committed
        for folder in ("transit/a1", "outputs/lines_by_item"):
            JobFolder.of(config).below(folder).stage("anna.parquet", pa.table({"key": ["anna"]}))
        JobFolder.of(config).write(f"{KEYED_STATE}/torn.parquet", b"")
    purge(config)
    assert_erased(config)


@pytest.mark.slow
def test_no_byte_is_left_on_an_object_store(tmp_path, storage, monkeypatch):
    home = Home(tmp_path)
    put_on_object_store(home, storage, monkeypatch)
    config = with_anna(home.config())
    purge(config)
    assert_erased(config)


@pytest.mark.slow
def test_log_checkpoints_with_the_key_go(config):
    with open_job(config, "run") as job:
        commit_rows(job, {KEYED_STATE: [state("anna", "4")]})
        store = JobFolder.of(config).table(KEYED_STATE)
        store.keep_versions(range(job.versions[KEYED_STATE] + 1))  # deltalake does so at each hundredth commit
    assert any(place.endswith(".checkpoint.parquet") for place in places_with(config, "anna"))
    purge(config)
    assert_erased(config)


@pytest.mark.slow
def test_overtaken_purge_deletes_nothing(config, monkeypatch):
    def overtake(place):
        if place == "purge.listed" and not taken:
            taken.append(place)
            with open_job(config, "winner", force=True) as job:
                commit_rows(job, {KEYED_STATE: [state("bob", "5")]})

    taken = []
    monkeypatch.setattr(crash_points, "reached", overtake)
    with pytest.raises(FencedError):
        purge(config)
    assert restore(config, 3, "still there", "run", brings_back_erased=True).restored_from == 3
    purge(config)
    assert_erased(config)


@pytest.mark.slow
def test_key_of_every_state_file_is_erased(new_job):
    keys = [f"user-{number:02}" for number in range(6)]
    for at in range(0, 6, 2):
        commit(new_job, {KEYED_STATE: [state(key, f'"of {key}"') for key in keys[at : at + 2]]})
    for key in keys[::-1]:
        purge(new_job, ErasedKey(key))
        assert places_with(new_job, key) == set()
    assert changes_of(new_job)[KEYED_STATE] == []


@pytest.mark.slow
def test_types_of_checkpoints_are_listed(config):
    purge(config)
    kinds = [checkpoint.kind for checkpoint in log_of(config).checkpoints[-2:]]
    assert kinds == [Kind.ERASURE, Kind.VACUUM]
    erasure, deletion = log_of(config).checkpoints[-2:]
    assert (erasure.erased, deletion.erased) == (((2, 4),), ((2, 4),))
    assert find_key(config, ANNA).is_empty
