"""A vacuum that is suspended, killed or overtaken deletes only files that a committed intent names (in memory).

vacuum    claim --- list --- commit of the intent ---------------- delete
asleep                    ^ "vacuum.listed"        ^ "vacuum.committed"
"""

from __future__ import annotations

import pytest

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.edits.restore import restore, restore_in, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.log.marks import INTENTS, open_intents
from headrace.storage.storage import Storage
from headrace.storage.table import LOG
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE
from headrace.testing._memory_disk import forget_disk
from tests.jobs.home import Home
from tests.unit.support.crashes import Killed
from tests.unit.support.memory_job import memory_config
from tests.unit.support.purchase_job import after_retention, commit_purchase, put_on_object_store

OLD = {f"{KEYED_STATE}/{name}.parquet" for name in ("1-ann", "2-bob", "3-cyd")}
"""The files that checkpoints 1 to 3 need, and 4 does not."""


@pytest.fixture
def config():
    yield compacted_job(memory_config("intents"))
    forget_disk("intents")


def compacted_job(config):
    """A job with checkpoints 0 to 4; the last one is a compaction."""
    with open_job(config, "a run", create=True) as job:
        for customer in ("ann", "bob", "cyd"):
            commit_purchase(job, customer)
    assert compact(config, "nightly") is not None
    return config


def at_place(monkeypatch, place, act):
    """Let `act` happen when the process first gets to `place`."""
    acts = [act]
    monkeypatch.setattr(crash_points, "reached", lambda reached: acts.pop()() if reached == place and acts else None)


def vacuum_killed(config, monkeypatch):
    """A vacuum that dies between its commit and the first deletion."""

    def die():
        raise Killed

    at_place(monkeypatch, "vacuum.committed", die)
    with pytest.raises(Killed):
        vacuum(config, "killed", dry_run=False)


def log_of(config):
    return CheckpointLog(JobFolder.of(config))


def kinds(config):
    return [checkpoint.kind for checkpoint in log_of(config).checkpoints]


def files(config, folder=""):
    return JobFolder.of(config).at(f"{config.job_folder}{folder}").files()


def state_files(config, uris):
    """Return the paths of data files of keyed state below the job's folder."""
    paths = {uri.removeprefix(f"{config.job_folder}/") for uri in uris}
    return {path for path in paths if path.startswith(f"{KEYED_STATE}/") and LOG not in path}


def assert_whole(config):
    """All files of the last checkpoint exist, and the job goes on."""
    with open_job(config, "goes on") as job:
        commit_purchase(job, "eve")
    for name, version in log_of(config).last.versions.items():
        stored = JobFolder.of(config).table(name).at(version).files()
        assert stored <= files(config, f"/{name}")


def test_intent_is_committed_before_deletion(config, monkeypatch):
    with after_retention(config):
        vacuum_killed(config, monkeypatch)
    assert files(config) >= OLD
    last = log_of(config).last
    assert (last.kind, last.checkpoint_id, last.versions) == (Kind.VACUUM, 5, log_of(config).get(4).versions)
    (intent,) = open_intents(config, log_of(config).checkpoints)
    assert intent.files >= OLD
    assert last.metrics == {"files_deleted": len(intent.files)}
    assert last.note == f"deletes {len(intent.files)} files"


def test_next_vacuum_completes_an_open_intent(config, monkeypatch):
    with after_retention(config):
        vacuum_killed(config, monkeypatch)
    Storage(config.job_folder).delete([f"{KEYED_STATE}/1-ann.parquet"])
    # By now nothing else is old enough: only the intent says what to delete.
    assert state_files(config, vacuum(config, "next", dry_run=False)) == OLD
    assert not files(config) & OLD
    assert files(config, f"/{INTENTS}") == set()
    assert kinds(config).count(Kind.VACUUM) == 1
    assert_whole(config)


def test_overtaken_vacuum_deletes_nothing(config, monkeypatch):
    def bring_back():
        with open_job(config, "winner", force=True) as job:
            restore_in(job, 3, "it is needed")

    with after_retention(config):
        at_place(monkeypatch, "vacuum.listed", bring_back)
        with pytest.raises(FencedError, match="run winner"):
            vacuum(config, "asleep", dry_run=False)
    assert files(config) >= OLD
    assert kinds(config)[-1] is Kind.RESTORE
    assert_whole(config)


def test_intent_without_commit_is_deleted_later(config, monkeypatch):
    def take():
        with open_job(config, "winner", force=True):
            pass

    with after_retention(config):
        at_place(monkeypatch, "vacuum.listed", take)
        with pytest.raises(FencedError):
            vacuum(config, "asleep", dry_run=False)
    assert len(files(config, f"/{INTENTS}")) == 1
    assert open_intents(config, log_of(config).checkpoints) == []
    with after_retention(config):
        vacuum(config, "next", dry_run=False)
    assert files(config, f"/{INTENTS}") == set()
    assert_whole(config)


def test_restore_refuses_files_that_an_intent_names(config, monkeypatch):
    refused = []

    def want_back():
        with pytest.raises(StorageError) as error:
            restore(config, 3, "it is needed", "too late")
        refused.append(str(error.value))
        with open_job(config, "a run") as job:
            commit_purchase(job, "dee")

    with after_retention(config):
        at_place(monkeypatch, "vacuum.committed", want_back)
        assert state_files(config, vacuum(config, "asleep", dry_run=False)) == OLD
    assert f"3 of 3 files of version 3 of state table {KEYED_STATE}" in refused[0]
    assert "Nothing was changed. Checkpoint 4 can be restored" in refused[0]
    assert not files(config) & OLD
    assert kinds(config)[-2:] == [Kind.VACUUM, Kind.BATCH]
    assert_whole(config)


def test_restored_checkpoint_keeps_its_files(config):
    with after_retention(config):
        restore(config, 2, "it is older than the retention", "somebody")
        removed = vacuum(config, "weekly", dry_run=False)
    assert OLD & state_files(config, removed) == {f"{KEYED_STATE}/3-cyd.parquet"}
    assert_whole(config)


def test_vacuumed_job_restores_its_savepoint(config):
    restore(config, 3, "to name it", "somebody")
    savepoint(config, "for_ever", "", "somebody")
    compact(config, "nightly")
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    assert files(config) >= OLD
    assert restore(config, "for_ever", "it must be there", "somebody").kind is Kind.RESTORE
    assert_whole(config)


def test_dry_run_writes_nothing(config, monkeypatch):
    with after_retention(config):
        before = files(config)
        assert state_files(config, vacuum(config, "look")) == OLD
        assert files(config) == before
        with open_job(config, "holds the job"):
            assert state_files(config, vacuum(config, "look")) == OLD
        vacuum_killed(config, monkeypatch)
        assert state_files(config, vacuum(config, "look")) == OLD


def test_vacuum_without_files_commits_nothing(config):
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
        before = kinds(config)
        assert vacuum(config, "again", dry_run=False) == []
    assert kinds(config) == before
    assert files(config, f"/{INTENTS}") == set()


def test_dry_run_of_an_unknown_job_fails():
    with pytest.raises(ConfigError, match="no checkpoint"):
        vacuum(memory_config("nowhere"), "look")


def test_vacuum_does_not_end_a_pause(config):
    before = log_of(config).lineage.last_micro_batch()
    with after_retention(config):
        vacuum(config, "weekly", dry_run=False)
    assert kinds(config)[-1] is Kind.VACUUM
    assert log_of(config).lineage.last_micro_batch() == before
    assert compact(config, "nightly", every=1) is None


@pytest.mark.slow
def test_intents_work_on_an_object_store(tmp_path, storage, monkeypatch):
    home = Home(tmp_path)
    put_on_object_store(home, storage, monkeypatch)
    config = compacted_job(home.config())
    with after_retention(config):
        vacuum_killed(config, monkeypatch)
        with pytest.raises(StorageError, match="checkpoint 3 cannot be restored"):
            restore(config, 3, "it is needed", "too late")
        assert state_files(config, vacuum(config, "next", dry_run=False)) == OLD
    assert not files(config) & OLD
    assert files(config, f"/{INTENTS}") == set()
    assert_whole(config)
