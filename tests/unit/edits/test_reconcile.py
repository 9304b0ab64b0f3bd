"""Reconciliation: a job and its sinks are made consistent after one of them was lost or restored from a copy (in memory).

log of the job    0 -- 1 ann -- 2 bob -- 3 cyd
"""

from __future__ import annotations

from contextlib import suppress

import pytest

from headrace import crash_points
from headrace.commit.protocol import open_job
from headrace.commit.sink_position import MismatchKind
from headrace.commit.verify import verify
from headrace.edits.reconcile import compare, compare_with, reconcile
from headrace.edits.restore import restore, savepoint
from headrace.errors import ConfigError, FencedError, SinkMismatchError, StorageError
from headrace.log.checkpoint import Kind
from headrace.sinks.registry import sink_of
from headrace.storage.storage import Storage
from headrace.tables.schemas import TIMERS
from tests.unit.support.memory_job import (
    BOARD,
    REMINDERS,
    board,
    commit_batch,
    killed_at,
    places_of,
)

STATE, LAKE = "state/", "lake/"


class Backup:
    """A copy of folders of a job's disk."""

    def __init__(self, job):
        self.disk, self.files = job.disk, dict(job.disk.files)
        self.tables = {path: list(versions) for path, versions in job.disk.tables.items()}

    def bring_back(self, *folders):
        """Replace the content of the folders by the copy."""
        tables = {path: list(versions) for path, versions in self.tables.items()}
        for now, before in ((self.disk.files, self.files), (self.disk.tables, tables)):
            for path in [path for path in now if path.startswith(folders)]:
                del now[path]
            now.update({path: of for path, of in before.items() if path.startswith(folders)})
        self.disk.sync()


def remove(job, folder):
    for kept in (job.disk.files, job.disk.tables):
        for path in [path for path in kept if path.startswith(folder)]:
            del kept[path]


def ids(job):
    return [checkpoint.checkpoint_id for checkpoint in job.log.checkpoints]


def rows(job):
    return job.sink_rows(BOARD, "customer"), job.sink_rows(REMINDERS, "customer")


def assert_agrees(job):
    assert compare(job.config).agrees
    assert [finding for finding in verify(job.config) if not finding.ok] == []


def mend(job):
    return reconcile(job.config, "operator", "a test")


def incarnation(job, sink=BOARD):
    target = sink_of(job.config, sink)
    return target.incarnation(target.latest())


@pytest.fixture
def job(memory_job):
    """The job after its first checkpoint."""
    memory_job.run("ann")
    return memory_job


@pytest.fixture
def old_folder(job):
    """A job whose folder is as it was at checkpoint 1, with sinks at 3."""
    backup = Backup(job)
    job.run("bob", "cyd")
    backup.bring_back(STATE)
    return job


@pytest.fixture
def old_sink(job):
    """A job with one sink as it was at checkpoint 1; the job and the other sink are at 3."""
    backup = Backup(job)
    job.run("bob", "cyd")
    backup.bring_back(f"lake/{BOARD}")
    return job


# ------------------------------------------------------------------------------------------------ nothing to do


def test_job_that_agrees_is_left_alone(job):
    assert compare(job.config).agrees
    assert mend(job) is None
    assert ids(job) == [0, 1]


def test_unpublished_checkpoint_is_no_difference(job):
    with killed_at(job.disk, "commit.after"):
        job.run("bob")
    comparison = compare(job.config)
    assert (comparison.agrees, comparison.plan) == (True, None)
    assert [(sink.published, sink.wanted) for sink in comparison.sinks] == [(1, 2), (1, 2)]
    job.run()
    assert rows(job) == (["bob"], ["ann", "bob"])


def test_job_that_never_ran_is_named(memory_job):
    for act in (compare, lambda config: reconcile(config, "operator", "")):
        with pytest.raises(ConfigError, match="has no checkpoints"):
            act(memory_job.config)


def test_comparison_allows_for_a_run_meanwhile(job, monkeypatch):
    """The log was read before a run committed and published, so it is read again."""
    looks = []

    def run_meanwhile(*arguments):
        looks.append(arguments)
        if len(looks) == 1:
            job.run("bob")
        return compare_with(*arguments)

    monkeypatch.setattr("headrace.edits.reconcile.compare_with", run_meanwhile)
    assert compare(job.config).agrees
    assert len(looks) == 2


# ----------------------------------------------------------------------------------------- the folder is older


def test_sinks_return_to_state_of_older_folder(old_folder):
    job = old_folder
    plan = compare(job.config).plan
    assert (plan.target_id, plan.checkpoint_id, plan.undone, plan.rows_in) == (1, 4, [], 0)
    assert {name: (sink.now, sink.then) for name, sink in plan.sinks.items()} == {BOARD: (3, 1), REMINDERS: (3, 1)}
    checkpoint = mend(job)
    assert (checkpoint.checkpoint_id, checkpoint.kind, checkpoint.restored_from, checkpoint.note) == (
        4,
        Kind.RESTORE,
        1,
        "a test",
    )
    assert (ids(job), rows(job)) == ([0, 1, 4], (["ann"], ["ann"]))
    assert_agrees(job)


def test_job_continues_after_a_gap_of_ids(old_folder):
    job = old_folder
    mend(job)
    job.run("bob", "dee")
    assert (ids(job), rows(job)) == ([0, 1, 4, 5, 6], (["dee"], ["ann", "bob", "dee"]))
    assert job.published() == 6
    assert_agrees(job)
    restore(job.config, 5, "", "somebody")
    assert rows(job) == (["bob"], ["ann", "bob"])
    restore(job.config, 1, "", "somebody")
    assert rows(job) == (["ann"], ["ann"])
    assert_agrees(job)


def test_comparison_changes_nothing(old_folder):
    before = {path: len(versions) for path, versions in old_folder.disk.tables.items()}
    files = set(old_folder.disk.files)
    compare(old_folder.config)
    assert {path: len(versions) for path, versions in old_folder.disk.tables.items()} == before
    assert set(old_folder.disk.files) == files


def test_half_published_lost_checkpoint_is_undone(job):
    backup = Backup(job)
    with killed_at(job.disk, "publish.half", 2):
        job.run("bob")
    backup.bring_back(STATE)
    checkpoint = mend(job)
    assert (checkpoint.checkpoint_id, rows(job)) == (3, (["ann"], ["ann"]))
    assert [job.published(sink) for sink in (BOARD, REMINDERS)] == [3, 3]
    assert_agrees(job)


def test_sink_first_written_by_lost_checkpoints_is_emptied(memory_job):
    job = memory_job
    job.run()
    backup = Backup(job)
    job.run("ann")
    backup.bring_back(STATE)
    checkpoint = mend(job)
    assert (checkpoint.restored_from, rows(job)) == (0, ([], []))
    assert_agrees(job)


def test_folder_brought_back_twice_is_reconciled_twice(job):
    backup = Backup(job)
    job.run("bob")
    for expected in (3, 5):
        backup.bring_back(STATE)
        assert mend(job).checkpoint_id == expected
        job.run("cyd")
        assert rows(job) == (["cyd"], ["ann", "cyd"])
        assert_agrees(job)


def test_unpublished_uncommitted_state_is_undone(old_folder):
    with killed_at(old_folder.disk, "prepare.after"), suppress(SinkMismatchError):
        old_folder.run("eve")
    with killed_at(old_folder.disk, "restore.prepared"):
        mend(old_folder)
    assert mend(old_folder).checkpoint_id == 4
    assert_agrees(old_folder)


# ------------------------------------------------------------------------------------------- the sink is older


def test_job_returns_to_state_of_older_sink(old_sink):
    job = old_sink
    plan = compare(job.config).plan
    assert (plan.target_id, plan.checkpoint_id, plan.undone) == (1, 4, [2, 3])
    mend(job)
    assert rows(job) == (["ann"], ["ann"])
    job.run("bob")
    assert rows(job) == (["bob"], ["ann", "bob"])
    assert_agrees(job)


def test_missing_sink_is_filled_from_the_start(job):
    remove(job, f"lake/{REMINDERS}")
    comparison = compare(job.config)
    assert [sink.mismatch and sink.mismatch.kind for sink in comparison.sinks] == [None, MismatchKind.GONE]
    assert (comparison.plan.target_id, comparison.plan.sinks[REMINDERS].now) == (0, None)
    assert f"lake/{REMINDERS}" not in job.disk.tables
    mend(job)
    job.run("bob")
    assert rows(job) == (["bob"], ["bob"])
    assert_agrees(job)


def test_target_is_on_the_job_line(job):
    """0 - 1 ann - 2 bob - 3 (to 1) - 4 cyd: a sink restored to 2 returns to 1, not to 2."""
    job.run("bob")
    backup = Backup(job)
    restore(job.config, 1, "bob is wrong", "somebody")
    job.run("cyd")
    backup.bring_back(f"lake/{BOARD}")
    assert compare(job.config).plan.target_id == 3
    mend(job)
    assert rows(job) == (["ann"], ["ann"])
    assert_agrees(job)


def test_checkpoints_without_output_are_kept(job):
    """The board got no rows after 3, a restore to 1: only its content is restored, and 4 stays."""
    job.run("bob")
    backup = Backup(job)
    restore(job.config, 1, "", "somebody")
    savepoint(job.config, "after", "", "somebody")
    backup.bring_back(LAKE)
    plan = compare(job.config).plan
    assert (plan.target_id, plan.undone) == (4, [])
    with killed_at(job.disk, "commit.after"):
        mend(job)
    job.run("cyd")
    assert rows(job) == (["cyd"], ["ann", "cyd"])
    assert_agrees(job)


def test_lost_staged_files_are_taken_in_again(job):
    with killed_at(job.disk, "commit.after"):
        job.run("bob")
    for path in [path for path in job.disk.files if "/outputs/" in path]:
        del job.disk.files[path]
    comparison = compare(job.config)
    assert comparison.sinks[0].mismatch.kind is MismatchKind.UNPUBLISHED
    mend(job)
    job.run("bob")
    assert rows(job) == (["bob"], ["ann", "bob"])
    assert_agrees(job)


def test_reconcile_goes_further_back_for_stuck_sink(job):
    job.run("bob")
    needed = job.sink().files()
    job.run("cyd")
    with killed_at(job.disk, "commit.after"):
        restore(job.config, 2, "", "somebody")
    for file in needed:
        del job.disk.files[f"lake/{BOARD}/{file}"]
    comparison = compare(job.config)
    assert [sink.mismatch and sink.mismatch.kind for sink in comparison.sinks] == [MismatchKind.STUCK, None]
    assert (mend(job).restored_from, rows(job)) == (1, (["ann"], ["ann"]))
    assert_agrees(job)


def test_checkpoint_with_erased_rows_is_no_target(job):
    """0 - 1 ann - 2 bob - 3 (erasure of rows of 1 and 2): a sink restored to 1 brings no erased rows back."""
    backup = Backup(job)
    job.run("bob")
    with job.open() as opened:
        opened.commit(Kind.ERASURE, versions=opened.versions, erased=((1, 2),), note="bob asked for it")
    backup.bring_back(f"lake/{BOARD}")
    assert compare(job.config).plan.target_id == 0
    with job.open(sink_check=lambda *_: False) as opened:
        opened.commit(Kind.ERASURE, versions=opened.versions, erased=((0, 2),), note="ann asked for it")
    assert "has rows of a key that was erased since" in compare(job.config).refusal
    with pytest.raises(SinkMismatchError, match="erased since"):
        mend(job)


def test_older_state_files_limit_the_target(old_sink):
    """Version 1 of a state table is gone: the job cannot return to checkpoint 1, and returns to an earlier one."""
    job = old_sink
    version = Storage(job.config.job_folder).table(TIMERS).at(1)
    for file in version.files():
        del job.disk.files[f"state/purchases/{TIMERS}/{file}"]
    checkpoint = mend(job)
    assert (checkpoint.restored_from, rows(job)) == (0, ([], []))
    assert_agrees(job)


@pytest.mark.parametrize("step", ["open", "list", "commit"])
def test_refusing_disk_is_a_storage_error(old_sink, step):
    def refuse(name, path):
        if name == step:
            msg = "not now"
            raise OSError(msg)

    with old_sink.disk.failing(refuse), pytest.raises(StorageError, match="not now"):
        mend(old_sink)
    assert ids(old_sink) == [0, 1, 2, 3]
    mend(old_sink)
    assert_agrees(old_sink)


# ------------------------------------------------------------------------------------------------ other lives


def test_older_folder_after_a_reconciliation_is_repaired(old_folder):
    """Sinks of a later incarnation, whose history contains the publications of the folder's incarnation."""
    job = old_folder
    backup = Backup(job)
    mend(job)
    job.run("dee")
    backup.bring_back(STATE)
    assert compare(job.config).sinks[0].mismatch.kind is MismatchKind.FOREIGN
    with pytest.raises(SinkMismatchError, match="another incarnation"):
        job.run()
    checkpoint = mend(job)
    assert (checkpoint.checkpoint_id, checkpoint.restored_from, rows(job)) == (6, 1, (["ann"], ["ann"]))
    assert checkpoint.incarnation == incarnation(job)
    assert_agrees(job)


def test_newer_folder_after_a_reconciliation_is_found(job):
    """Both folders have a checkpoint 4; incarnations distinguish them."""
    old = Backup(job)
    job.run("bob", "cyd")
    new = Backup(job)
    old.bring_back(STATE)
    mend(job)
    new.bring_back(STATE)
    with pytest.raises(SinkMismatchError, match="another incarnation"):
        job.run("dee")
    checkpoint = mend(job)
    assert (checkpoint.checkpoint_id, checkpoint.restored_from) == (5, 3)
    assert rows(job) == (["cyd"], ["ann", "bob", "cyd"])
    assert_agrees(job)


@pytest.mark.parametrize("more", [1, 5])
def test_sink_of_the_line_left_behind_is_found(job, more):
    """A copy of a sink from the abandoned line, with an id below or above the job's."""
    old = Backup(job)
    job.run(*["bob"] * more)
    new = Backup(job)
    old.bring_back(STATE, LAKE)
    with job.open() as opened:
        opened.commit(Kind.BATCH, outputs=board(opened, "cyd"))
    old.bring_back(STATE)
    assert mend(job).checkpoint_id == 3
    job.run("dee", "eve")
    new.bring_back(f"lake/{BOARD}")
    with pytest.raises(SinkMismatchError):
        job.run("fay")
    checkpoint = mend(job)
    assert checkpoint.restored_from == 3
    assert rows(job) == (["ann"], ["ann"])
    assert_agrees(job)


def test_foreign_sink_without_own_history_is_refused(memory_job):
    job = memory_job
    job.run("ann")
    other = Backup(job)
    remove(job, STATE)
    remove(job, LAKE)
    job.run("bob")
    other.bring_back(LAKE)
    before = {path: len(versions) for path, versions in job.disk.tables.items()}
    comparison = compare(job.config)
    assert comparison.plan is None
    assert "another path" in comparison.refusal
    with pytest.raises(
        SinkMismatchError, match="is the table of sink 'lines_by_item' of another incarnation of job 'purchases'"
    ) as error:
        mend(job)
    assert error.value.exit_code == 10
    assert {path: len(versions) for path, versions in job.disk.tables.items()} == before
    remove(job, LAKE)  # as the message says: another path, without a table
    mend(job)
    job.run("bob")
    assert rows(job) == (["bob"], ["bob"])


def test_folder_without_checkpoints_is_refused(job):
    remove(job, STATE)
    assert "has no checkpoints" in compare(job.config).refusal
    with pytest.raises(SinkMismatchError, match="Bring back a copy of that folder, of any age"):
        mend(job)
    assert not any(path.startswith(STATE) for path in job.disk.tables)


def test_lost_files_everywhere_are_refused(old_sink):
    job = old_sink
    remove(job, f"lake/{BOARD}")
    table_of = job.disk.tables[f"state/purchases/{TIMERS}"]
    table_of[0] = None
    with pytest.raises(SinkMismatchError, match=r"no checkpoint .* fits all its tables: .* state table timers"):
        mend(job)
    assert ids(job) == [0, 1, 2, 3]
    assert f"lake/{BOARD}" not in job.disk.tables


def test_running_job_is_not_reconciled(old_folder):
    with open_job(old_folder.config, "run", sink_check=lambda *_: False), pytest.raises(FencedError):
        mend(old_folder)
    assert ids(old_folder) == [0, 1]


@pytest.mark.parametrize("savepoints", [0, 3])
@pytest.mark.parametrize("place", ["commit.after", f"commit lake/{BOARD}"])
def test_run_of_the_lost_line_cannot_publish(job, place, savepoints):
    """A run has committed, and is suspended before it publishes. Its id equals the id of the reconciliation, or is larger."""
    backup, reconciled = Backup(job), []

    def arrive(reached):
        if reached == place and not reconciled and job.last.checkpoint_id == 3 + savepoints:
            backup.bring_back(STATE)
            reconciled.append(None)
            reconciled.append(mend(job))

    job.run("bob")
    for number in range(savepoints):
        savepoint(job.config, f"s{number}", "", "somebody")
    steps = job.disk.failing(lambda step, path: arrive(f"{step} {path}"))
    with steps, crash_points.observed(arrive), pytest.raises(SinkMismatchError, match="of another copy of the job"):
        job.run("zoe")
    assert reconciled[1].checkpoint_id == 3
    assert rows(job) == (["ann"], ["ann"])
    job.run("cyd", "dee", "eve", "fay")
    assert rows(job) == (["fay"], ["ann", "cyd", "dee", "eve", "fay"])
    assert_agrees(job)


def test_publication_between_plan_and_commit_is_found(job):
    """A run of the lost line publishes to a sink after the reconciliation has read its id."""
    backup, acts = Backup(job), []
    job.run("bob")
    for number in range(3):
        savepoint(job.config, f"s{number}", "", "somebody")
    with killed_at(job.disk, "commit.after"):
        job.run("zoe")
    lost = Backup(job)
    backup.bring_back(STATE)

    def publish_meanwhile(place):
        if place == "reconcile.planned" and not acts:
            acts.append(place)
            now = Backup(job)
            lost.bring_back(STATE)
            job.run()
            now.bring_back(STATE)

    with crash_points.observed(publish_meanwhile), pytest.raises(SinkMismatchError):
        mend(job)
    with pytest.raises(SinkMismatchError):
        job.run("cyd")
    assert mend(job).checkpoint_id == 7
    assert rows(job) == (["ann"], ["ann"])
    assert_agrees(job)


# ---------------------------------------------------------------------------------------------------- crashes


SCENES = ["old_folder", "old_sink", "gone_sink", "foreign_sinks"]


@pytest.fixture
def gone_sink(job):
    job.run("bob")
    remove(job, f"lake/{REMINDERS}")
    return job


@pytest.fixture
def foreign_sinks(old_folder):
    job = old_folder
    backup = Backup(job)
    mend(job)
    job.run("dee")
    backup.bring_back(STATE)
    return job


@pytest.mark.slow
@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("power", [pytest.param("power stays", marks=pytest.mark.long), "power fails"])
def test_killed_reconciliation_can_be_completed(request, scene, power):
    job = request.getfixturevalue(scene)
    before, places, outcomes = job.copy(), [], set()
    with places_of(job.disk, places):
        checkpoint = mend(job)
    content = job.content()
    assert {"reconcile.planned", "restore.prepared", "commit.after", "publish.half"} <= {name for name, _ in places}
    for place, visit in places:
        before.bring_back()
        with killed_at(job.disk, place, visit):
            mend(job)
        if power == "power fails":
            job.disk.lose_power()
        is_committed = job.last.checkpoint_id == checkpoint.checkpoint_id
        if is_committed:
            job.run()  # the next command that opens the job publishes the rest
        else:
            with pytest.raises(SinkMismatchError):
                job.run()
            mend(job)
        outcomes.add(is_committed)
        assert (job.content(), job.last.checkpoint_id) == (content, checkpoint.checkpoint_id), place
        assert_agrees(job)
    assert outcomes == {True, False}


@pytest.mark.parametrize("scene", SCENES)
def test_half_published_reconciliation_is_recognized(request, scene):
    job = request.getfixturevalue(scene)
    with killed_at(job.disk, "publish.half"):
        mend(job)
    assert compare(job.config).agrees
    assert mend(job) is None
    restore(job.config, 0, "", "somebody")
    assert rows(job) == ([], [])
    assert_agrees(job)


def test_batch_follows_a_half_published_reconciliation(old_folder):
    job = old_folder
    with killed_at(job.disk, "publish.half"):
        mend(job)
    with job.open() as opened:
        commit_batch(opened, "bob")
    assert rows(job) == (["bob"], ["ann", "bob"])
    assert_agrees(job)
