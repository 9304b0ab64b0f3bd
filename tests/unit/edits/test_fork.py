"""Branches: a second line of a job's checkpoints, in tables that build on those of the job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.edits.erase import erase
from headrace.edits.erased_key import ErasedKey
from headrace.edits.fork import drop_branch, fork
from headrace.edits.restore import restore, savepoint
from headrace.edits.vacuum import vacuum
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.branches import Branches, remove_branch
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.readers.difference import differences
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import connect
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from tests.unit.support.branched_job import CUSTOMERS, BranchedJob
from tests.unit.support.crashes import Killed, dying_at
from tests.unit.support.fuzzing import examples
from tests.unit.support.memory_job import BOARD, commit_batch
from tests.unit.support.purchase_job import after_retention

FILES = st.lists(
    st.lists(st.tuples(st.sampled_from(CUSTOMERS), st.integers(0, 9)), min_size=1, max_size=6), min_size=1, max_size=3
)


@pytest.fixture
def job():
    result = BranchedJob()
    result.feed(("ann", 1), ("bob", 2), ("cyd", 7))
    result.run()
    return result


def later(job):
    """Give a job more input, which changes, adds and deletes."""
    job.feed(("ann", 5), ("bob", 0), ("dee", 2))


@pytest.mark.slow  # each example takes one to two seconds
@examples(4)
@given(
    before=FILES,
    after=FILES,
    backend=st.sampled_from(("hashmap", "rocksdb", "delta")),
    limit=st.sampled_from((1, None)),
    compacts=st.sampled_from(("neither", "job", "branch", "both")),
    pauses=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_branch_results_equal_the_job(before, after, backend, limit, compacts, pauses):
    job = BranchedJob(backend=backend, files_per_batch=1)
    for orders in before:
        job.feed(*orders)
    job.run()
    origin = job.last()
    job.pause(pauses[0])
    for number, orders in enumerate(after):
        job.feed(*orders)
        if number == 0:
            job.run()
    job.pause(pauses[1])
    job.run()
    if compacts in {"job", "both"}:
        job.compact()
    fork(job.config, "again", origin.checkpoint_id, "somebody")
    job.run("again", max_batches=limit)
    if compacts in {"branch", "both"}:
        job.compact("again")
    job.run("again")
    assert job.content("again") == job.content()
    with job.on_its_clock():
        live, branch = (JobAtCheckpoint(config) for config in (job.config, job.config.on_branch("again")))
        compared = [*differences(live, branch)]
    assert not [counts for table in compared for counts in table.counts if {*counts.rows} - {"renewed"}]


@pytest.mark.slow
def test_branch_leaves_the_job_alone(job):
    before = job.content(), job.versions()
    fork(job.config, "other", None, "somebody")
    later(job)
    job.run("other")
    assert (job.content(), job.versions()) == before
    assert job.content("other") != before[0]
    job.run()
    assert job.content("other") == job.content()


def test_fork_copies_no_data(job):
    fork(job.config, "other", None, "somebody")
    folder = job.config.on_branch("other").job_folder
    data = [file for file in Storage(str(folder)).files() if file.endswith(".parquet") and "/_delta_log/" not in file]
    assert [file.partition("/")[0] for file in data] == ["checkpoints"]


@pytest.mark.slow
def test_branch_begins_at_an_earlier_checkpoint(job):
    then = job.content()
    later(job)
    job.run()
    fork(job.config, "earlier", 1, "somebody")
    assert job.content("earlier") == then
    first = job.last("earlier")
    assert (first.kind, first.checkpoint_id, first.restored_from) == (Kind.FORK, 2, 1)


@pytest.mark.slow
def test_branch_reads_deleted_keys_as_deleted(job):
    fork(job.config, "other", None, "somebody")
    job.feed(("bob", 0))
    job.run("other")
    customers = [dict(row)["customer"] for row in job.content("other")["sink totals"]]
    assert customers == ["ann", "cyd"]
    job.feed(("bob", 4))
    job.run("other")
    rows = {dict(row)["customer"]: dict(row)["amount"] for row in job.content("other")["sink totals"]}
    assert rows == {"ann": 1, "bob": 4, "cyd": 7}


@pytest.mark.slow
def test_difference_names_checkpoints_of_the_branch(job):
    fork(job.config, "other", None, "somebody")
    later(job)
    job.run("other")
    live, branch = (JobAtCheckpoint(config) for config in (job.config, job.config.on_branch("other")))
    result = {table.table: table for table in differences(live, branch)}
    changes = {row.name["customer"]: row.change for row in result["totals"].rows}
    assert changes == {"ann": "changed", "bob": "gone", "dee": "added"}
    assert {row.name["key"] for row in result[KEYED_STATE].rows} == {'"ann"', '"bob"', '"dee"'}


def test_tables_that_neither_line_wrote_are_not_compared(job, monkeypatch):
    opened = []

    def counted():
        opened.append("table")
        return connect()

    monkeypatch.setattr("headrace.readers.difference.connect", counted)
    fork(job.config, "other", None, "somebody")
    live, branch = (JobAtCheckpoint(config) for config in (job.config, job.config.on_branch("other")))
    assert [*differences(live, branch)] == []
    assert len(opened) == len(job.config.sinks)


@pytest.mark.slow
def test_savepoint_and_restore_work_on_branches(job):
    fork(job.config, "other", None, "somebody")
    branch = job.config.on_branch("other")
    forked = job.content("other")
    savepoint(branch, "forked", "to come back", "somebody")
    later(job)
    job.run("other")
    restore(branch, "forked", "as it was", "somebody")
    assert job.content("other") == forked
    job.run("other")
    job.run()
    assert job.content("other") == job.content()


def test_checkpoints_before_the_fork_are_refused(job):
    fork(job.config, "other", None, "somebody")
    branch = job.config.on_branch("other")
    with pytest.raises(ConfigError, match="checkpoint 1 is before the fork of branch 'other'.*without --branch"):
        restore(branch, 1, "no", "somebody")
    with pytest.raises(ConfigError, match="before the fork"):
        JobAtCheckpoint(branch, 0)


@pytest.mark.slow
@pytest.mark.parametrize("line", ["job", "branch"])
def test_vacuum_spares_files_of_the_fork(job, line):
    fork(job.config, "other", 1, "somebody")
    forked = job.content("other")
    for _ in range(3):
        later(job)
        job.run()
    job.compact()
    with after_retention(job.config):
        vacuum(job.config if line == "job" else job.config.on_branch("other"), "vacuum", dry_run=False)
        assert job.content("other") == forked
    job.run("other")
    assert job.content("other") == job.content()


@pytest.mark.slow
def test_dropped_branch_frees_its_fork(job):
    fork(job.config, "other", 1, "somebody")
    later(job)
    job.run()
    job.compact()
    with after_retention(job.config):
        spared = vacuum(job.config, "vacuum", dry_run=True)
        drop_branch(job.config, "other", "somebody")
        assert {*vacuum(job.config, "vacuum", dry_run=True)} > {*spared}
    assert not Storage(job.config.on_branch("other").job_folder).files()
    assert not Branches(job.config).open


@pytest.mark.slow
def test_vacuum_spares_a_branch_made_meanwhile(job):
    later(job)
    job.run()
    job.compact()
    created = []

    def fork_once(place):
        if place == "vacuum.listed" and not created:
            created.append(fork(job.config, "other", 1, "somebody"))

    with after_retention(job.config):
        with crash_points.observed(fork_once):
            vacuum(job.config, "vacuum", dry_run=False)
        vacuum(job.config, "vacuum again", dry_run=False)
    assert created
    job.run("other")
    assert job.content("other") == job.content()


@pytest.mark.slow
def test_fork_is_refused_when_vacuum_deletes_files(job):
    later(job)
    job.run()
    job.compact()

    def refused(place):
        if place == "vacuum.committed":
            with pytest.raises(StorageError, match="no branch can begin at checkpoint 1: .* gone or being deleted"):
                fork(job.config, "other", 1, "somebody")

    with after_retention(job.config), crash_points.observed(refused):
        vacuum(job.config, "vacuum", dry_run=False)
    assert not Branches(job.config).open


def test_fork_refuses_lost_files(job):
    later(job)
    job.run()
    folder = f"{job.config.job_folder}/{KEYED_STATE}"
    Storage(str(folder)).delete(Storage(str(folder)).table().at(1).files())
    compact_refused = "no branch can begin at checkpoint 1"
    with pytest.raises(StorageError, match=compact_refused):
        fork(job.config, "other", 1, "somebody")


@pytest.mark.slow
@pytest.mark.parametrize("place", ["fork.listed", "fork.tables"])
def test_interrupted_fork_is_finished(job, place):
    with pytest.raises(Killed), dying_at(place):
        fork(job.config, "other", 1, "somebody")
    later(job)
    job.run()
    fork(job.config, "other", None, "somebody")
    assert job.last("other").restored_from == 1
    job.run("other")
    assert job.content("other") == job.content()


@pytest.mark.slow
def test_interrupted_drop_leaves_nothing_behind(job):
    fork(job.config, "other", 1, "somebody")
    later(job)
    job.run("other")
    with pytest.raises(Killed), dying_at("branch.dropped"):
        drop_branch(job.config, "other", "somebody")
    fork(job.config, "other", 1, "somebody")
    assert job.content("other") == job.content()


@pytest.mark.slow
def test_repeated_drop_finishes_the_first(job):
    fork(job.config, "other", None, "somebody")
    with pytest.raises(KeyboardInterrupt), dying_at("branch.dropped", error=KeyboardInterrupt):
        drop_branch(job.config, "other", "somebody", "rejected")
    folder = job.config.on_branch("other").job_folder
    assert Storage(str(folder)).files()
    for _ in range(2):
        assert drop_branch(job.config, "other", "somebody else").note == "rejected"
        assert not Storage(str(folder)).files()
    with pytest.raises(ConfigError, match="has no branch 'never'"):
        drop_branch(job.config, "never", "somebody")


@pytest.mark.slow
def test_slow_drop_spares_a_newer_branch(job):
    def forks_anew(place):
        if place == "branch.dropped":
            fork(job.config, "other", 1, "somebody else")

    fork(job.config, "other", None, "somebody")
    with crash_points.observed(forks_anew):
        drop_branch(job.config, "other", "somebody")
    assert [branch.run_id for branch in Branches(job.config).open] == ["somebody else"]
    assert job.content("other") == job.content()


def test_branch_names_are_unique(job):
    fork(job.config, "other", None, "somebody")
    with pytest.raises(ConfigError, match="has a branch 'other' already"):
        fork(job.config, "other", None, "somebody")
    assert job.content("other") == job.content()
    with pytest.raises(ConfigError, match="did you mean 'other'"):
        Branches(job.config).get("othr")
    with pytest.raises(ConfigError, match="branch name"):
        fork(job.config, "../other", None, "somebody")


def test_branches_of_branches_are_refused(job):
    fork(job.config, "other", None, "somebody")
    with pytest.raises(ConfigError, match="a branch has no branches"):
        fork(job.config.on_branch("other"), "third", None, "somebody")


def test_erasure_is_refused_while_there_are_branches(job):
    fork(job.config, "other", None, "somebody")
    key = ErasedKey('"ann"')
    with pytest.raises(ConfigError, match="no key can be erased while job 'shop' has branches \\(other\\)"):
        erase(job.config, "somebody", key, why="request 7")


def test_held_branch_is_not_dropped(job):
    fork(job.config, "other", None, "somebody")
    with open_job(job.config.on_branch("other"), "a run"), pytest.raises(FencedError):
        drop_branch(job.config, "other", "somebody")
    assert [branch.name for branch in Branches(job.config).open] == ["other"]


def test_branch_can_be_made_while_the_job_runs(job):
    with open_job(job.config, "a run"):
        fork(job.config, "other", None, "somebody")
    assert CheckpointLog(JobFolder(job.config.on_branch("other").job_folder)).last.kind is Kind.FORK


def test_storage_that_refuses_is_reported_by_fork(memory_job):
    memory_job.run("ann")
    sink = memory_job.config.sinks[BOARD].table_path

    def refuse(step, path):
        if sink.endswith(path):
            raise OSError(step)

    def begin_to_refuse(place):
        if place == "fork.listed":
            memory_job.disk.fault = refuse

    memory_job.run("bob")
    with (
        memory_job.disk.failing(memory_job.disk.fault),
        crash_points.observed(begin_to_refuse),
        pytest.raises(StorageError),
    ):
        fork(memory_job.config, "other", 1, "somebody")
    assert fork(memory_job.config, "other", None, "somebody").fork_id == 1


def test_unreadable_base_table_is_reported(memory_job):
    memory_job.run("ann")
    fork(memory_job.config, "other", None, "somebody")
    base = f"{memory_job.config.job_folder}/{KEYED_STATE}"

    def refuse(step, path):
        if base.endswith(path):
            raise OSError(step)

    with open_job(memory_job.config.on_branch("other"), "a run") as opened:
        view = opened.view(KEYED_STATE)
        with memory_job.disk.failing(refuse), pytest.raises(StorageError, match="to read the table that"):
            view.live_rows()


def test_run_notices_that_its_branch_was_removed(job):
    def remove_under_a_run(on_branch):
        """Remove a branch while a run holds it, and go on with the run."""
        nothing = STATE_TABLES[KEYED_STATE].schema.empty_table()
        with open_job(on_branch, "a run") as opened:
            remove_branch(on_branch)
            opened.commit(Kind.BATCH, files={KEYED_STATE: [opened.stage(KEYED_STATE, "0", nothing)]})

    fork(job.config, "other", None, "somebody")
    with pytest.raises(FencedError, match="lost branch 'other' of job 'shop'"):
        remove_under_a_run(job.config.on_branch("other"))


def commit_on_branch(on_branch):
    """Commit a micro-batch."""
    with open_job(on_branch, "a run") as opened:
        commit_batch(opened, "bob")


def test_publication_notices_that_its_branch_was_removed(memory_job):
    memory_job.run("ann")
    fork(memory_job.config, "other", None, "somebody")
    on_branch = memory_job.config.on_branch("other")

    def remove(place):
        if place == "commit.after":
            remove_branch(on_branch)

    with crash_points.observed(remove), pytest.raises(FencedError, match="lost branch 'other' of job 'purchases'"):
        commit_on_branch(on_branch)


def test_removed_log_of_a_branch_fences_its_run(job):
    fork(job.config, "other", None, "somebody")
    on_branch = job.config.on_branch("other")
    with open_job(on_branch, "a run") as opened:
        remove_branch(on_branch)
        with pytest.raises(FencedError, match="checkpoints is gone"):
            opened.confirm_lease()
        with pytest.raises(FencedError, match="checkpoints is gone"):
            opened.commit(Kind.SAVEPOINT)
