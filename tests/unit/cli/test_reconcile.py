"""`headrace reconcile`: its output and its effect (a job in memory, 80 columns)."""

from __future__ import annotations

import json

import pytest

from headrace.testing._memory_disk import forget_disk
from tests.unit.support.memory_job import BOARD, REMINDERS, MemoryJob, killed_at


@pytest.fixture
def job(monkeypatch):
    """A job after two checkpoints, which the command finds under the name `purchases`."""
    job = MemoryJob("reconciled")
    job.run("ann", "bob")
    monkeypatch.setattr("headrace.cli.restore.load", lambda _: job.config)
    monkeypatch.setenv("COLUMNS", "80")
    yield job
    forget_disk("reconciled")


@pytest.fixture
def gone_sink(job):
    del job.disk.tables[f"lake/{REMINDERS}"]
    return job


@pytest.fixture
def lost_folder(job):
    for path in [path for path in job.disk.tables if path.startswith("state/")]:
        del job.disk.tables[path]
    return job


def unwrapped(text):
    return " ".join(text.split())


def test_consistent_job_is_reported_as_consistent(headrace, job):
    result = headrace("reconcile purchases")
    assert result.exit_code == 0
    assert "purchases: job and sinks agree, nothing to do." in result.stdout


def test_unpublished_checkpoint_is_named(headrace, job):
    with killed_at(job.disk, "commit.after"):
        job.run("cyd")
    result = headrace("reconcile purchases")
    assert "not published yet" in unwrapped(result.stdout)
    assert "nothing to do. The next run publishes checkpoint 3 first." in unwrapped(result.stdout)


def test_dry_run_shows_and_changes_nothing(headrace, gone_sink):
    result = headrace("reconcile purchases")
    assert result.exit_code == 0
    text = unwrapped(result.stdout)
    assert (
        "The job goes back 2 checkpoints, from 2 to 0 (as checkpoint 3). The next run takes in their input again (0 rows)"
        in text
    )
    assert f"Sink {BOARD} goes back from version 2 of its table to the rows of version 0." in text
    assert f"Sink {REMINDERS} is made anew, empty." in text
    assert 'headrace reconcile purchases --apply --why "..."' in text
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert gone_sink.last.checkpoint_id == 2
    assert f"lake/{REMINDERS}" not in gone_sink.disk.tables


def test_apply_reconciles_job_and_sinks(headrace, gone_sink):
    result = headrace("reconcile", "purchases", "--apply", "--why", "the lake was cleaned up", "--run-id", "mine")
    assert result.exit_code == 0, result.stderr
    assert "are at checkpoint 0 again, as checkpoint 3." in unwrapped(result.stdout)
    assert (gone_sink.last.note, gone_sink.last.run_id) == ("the lake was cleaned up", "mine")
    assert headrace("reconcile purchases --apply --why again").exit_code == 0
    assert gone_sink.last.checkpoint_id == 3


@pytest.mark.parametrize("words", ["--apply", "--apply --why ''"])
def test_apply_needs_a_reason(headrace, gone_sink, words):
    result = headrace("reconcile", "purchases", *words.replace("''", "").split(" "))
    assert result.exit_code == 2
    assert gone_sink.last.checkpoint_id == 2


def test_json_has_plan_and_outcome(headrace, gone_sink):
    dry = json.loads(headrace("reconcile purchases --json").stdout)
    assert (dry["agrees"], dry["applied"], dry["checkpoint"], dry["last_checkpoint"]) == (False, False, None, 2)
    assert dry["plan"] == {
        "target_checkpoint": 0,
        "new_checkpoint": 3,
        "undone_checkpoints": [1, 2],
        "rows_taken_in_again": 0,
    }
    reminders = next(sink for sink in dry["sinks"] if sink["sink"] == REMINDERS)
    assert (reminders["exists"], reminders["has"], reminders["should_have"]) == (False, None, 2)
    assert (reminders["mismatch"], reminders["version"], reminders["goes_back_to_version"]) == ("gone", None, 0)
    done = json.loads(headrace("reconcile purchases --apply --why test --json").stdout)
    assert (done["applied"], done["checkpoint"]) == (True, 3)
    agreed = json.loads(headrace("reconcile purchases --json").stdout)
    assert (agreed["agrees"], agreed["plan"]) == (True, None)


@pytest.mark.parametrize("words", ["", " --apply --why test"])
def test_refusal_lists_sinks_and_ways_out(headrace, lost_folder, words):
    result = headrace(f"reconcile purchases{words}")
    assert result.exit_code == 10
    assert "ahead: the job" in unwrapped(result.stdout)
    assert "Bring back a copy of that folder, of any age" in result.stderr
    document = json.loads(headrace(f"reconcile purchases{words} --json").stdout)
    assert document["error"] == "SinkMismatchError"


def test_job_that_never_ran_is_refused(headrace, monkeypatch):
    job = MemoryJob("never")
    monkeypatch.setattr("headrace.cli.restore.load", lambda _: job.config)
    result = headrace("reconcile purchases")
    assert (result.exit_code, "run it first" in result.stderr) == (2, True)
    forget_disk("never")
