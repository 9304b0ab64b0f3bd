"""Kill -9 at every step of the commit, then run again: the same tables, no row lost or doubled."""

from __future__ import annotations

import pytest

from headrace.log.checkpoint import Kind
from tests.fault.conftest import DAYS, ready
from tests.fault.drivers import KILLED
from tests.jobs.outcome import assert_well_formed, checkpoints, outcome

# The place where the run dies (in the second micro-batch), and the last valid checkpoint after that.
IN_A_RUN = [
    ("run.after:2", 1),
    ("prepare.before:2", 1),
    ("prepare.half:2", 1),
    ("prepare.after:2", 1),
    ("commit.before:2", 1),
    ("commit.after:2", 2),
    ("publish.half:3", 2),
    ("publish.after:2", 2),
]
WITHOUT_SPARK = [("ingest.after:2", 1), ("task.half:5", 1), *IN_A_RUN]

# A crash at any other place leaves the same files as a crash at one of these; tests/unit/edits/test_crash.py crashes
# at every step of the disk.
# The commit is the same without Spark, where fewer places are enough in `make test`, and all are in `make test-all`.
QUICK = {
    "spark": {"prepare.half:2", "commit.before:2", "commit.after:2", "publish.half:3"},
    "local": {"prepare.half:2", "commit.after:2", "publish.half:3"},
}
OTHERS = {"spark": pytest.mark.long, "local": pytest.mark.slow}
DEATHS = [
    pytest.param(runner, place, counts, marks=() if place in QUICK[runner] else OTHERS[runner])
    for runner, places in (("spark", IN_A_RUN), ("local", WITHOUT_SPARK))
    for place, counts in places
]


@pytest.mark.slow
@pytest.mark.parametrize(("runner", "place", "counts"), DEATHS, indirect=["runner"])
def test_driver_killed_during_commit_leaves_one_checkpoint(tmp_path, undisturbed, runner, place, counts):
    """The job has either the old or the new checkpoint."""
    home = ready(tmp_path)
    code, message = runner.drivers.run(home, {"HEADRACE_KILL_AT": place})
    assert code == KILLED, message
    assert checkpoints(home.config())[-1].checkpoint_id == counts
    runner.run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())


@pytest.mark.slow
@pytest.mark.parametrize(("place", "counts"), [("prepare.half:2", 1), ("publish.half:3", 2)])
def test_driver_killed_with_jvm_leaves_one_checkpoint(tmp_path, undisturbed, run, command, place, counts):
    """The job has either the old or the new checkpoint."""
    home = ready(tmp_path)
    killed = command(home, "run", "purchases", HEADRACE_KILL_AT=place)
    assert killed.returncode == KILLED, killed.stderr
    assert checkpoints(home.config())[-1].checkpoint_id == counts
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())


@pytest.mark.slow
def test_killed_python_worker_repeats_only_its_task(tmp_path, undisturbed, command):
    home = ready(tmp_path)
    once = tmp_path / "killed"
    ran = command(home, "run", "purchases", HEADRACE_KILL_AT="task.half", HEADRACE_KILL_ONCE=str(once))
    assert once.exists()
    assert ran.returncode == 0, ran.stderr
    assert outcome(home.config()) == outcome(undisturbed.config())


def test_run_killed_twice_has_same_result(tmp_path, undisturbed, run, drivers):
    home = ready(tmp_path)
    for place in ("prepare.after", "commit.after"):
        assert drivers.run(home, {"HEADRACE_KILL_AT": place})[0] == KILLED
    assert checkpoints(home.config())[-1].checkpoint_id == 1
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert len([c for c in checkpoints(home.config()) if c.kind is Kind.BATCH]) == DAYS


@pytest.mark.parametrize(
    "place", ["restore.prepared", pytest.param("commit.after", marks=pytest.mark.slow), "publish.half:2"]
)
def test_killed_restore_is_complete_or_absent(tmp_path, undisturbed, run, command, place):
    home = ready(tmp_path)
    run(home)
    killed = command(home, "restore", "purchases", "--to", "1", "--why", "test", "--yes", HEADRACE_KILL_AT=place)
    assert killed.returncode == KILLED, killed.stderr
    command(home, "restore", "purchases", "--to", "1", "--why", "again", "--yes")
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())


@pytest.mark.parametrize("place", ["compaction.prepared", pytest.param("commit.after", marks=pytest.mark.slow)])
def test_killed_compaction_changes_no_live_rows(tmp_path, undisturbed, run, command, place):
    home = ready(tmp_path)
    run(home, max_batches=2)
    assert command(home, "maintain", "purchases", "--state", HEADRACE_KILL_AT=place).returncode == KILLED
    run(home)
    expected = outcome(undisturbed.config(), with_expired=False)
    assert outcome(home.config(), with_expired=False) == expected
    assert_well_formed(home.config())


def test_terminated_driver_commits_and_keeps_unprocessed_records(tmp_path, undisturbed, runner):
    home = ready(tmp_path)
    home.configure({"execution": {"async-state": {"in-flight-records-limit": 5}}})
    assert runner.drivers.run(home, {"HEADRACE_KILL_AT": "ingest.after", "HEADRACE_KILL_WITH": "SIGTERM"}) == (0, "")
    (_, last) = checkpoints(home.config())
    assert last.work.held
    assert last.metrics["held"] > 0
    runner.run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())
