"""Commands that change what a job has stored: `state drop`, `state rename`, `rescale`, `drop`. Each is a dry run first."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from headrace.cli import app
from headrace.storage import pandas as late_pandas
from headrace.tables.schemas import KEYED_STATE, QUARANTINE
from tests.unit.support.keyed_job import KeyedJob, Snoozes, plan_by

OLD = "wakers"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job whose code has no operator 'wakers' any more."""
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    job = KeyedJob(tmp_path)
    aside = (QUARANTINE, '"a"', {"source": "events", "position": "1", "error": "bad", "origin": "record"})
    code = plan_by(lambda event: event.tail, operator=OLD, function=Snoozes())
    rows = [(KEYED_STATE, f'"{name}"', {"state": "snoozes", "value": "1"}) for name in "abc"]
    job.run(code, *rows, aside, operator=OLD)
    return job


@pytest.fixture
def headrace(job):
    def run(*words):
        return CliRunner().invoke(app, list(words) if len(words) > 1 else words[0].split())

    return run


def plainly(result):
    return " ".join(result.stdout.split())


def test_state_drop_shows_before_it_drops(job, headrace):
    output = headrace(f"state drop wake_ups --operator {OLD}")
    assert output.exit_code == 0, output.stderr
    assert "keyed_state 3" in plainly(output)
    assert "What it has in the quarantine stays (1 row)" in plainly(output)
    assert "Nothing was changed. --apply does it." in plainly(output)
    assert len(job.live()) == 3
    done = headrace("state", "drop", "wake_ups", "--operator", OLD, "--apply", "--why", "not needed")
    assert "3 rows of operator 'wakers' were dropped: checkpoint 2." in plainly(done)
    assert "To undo: headrace restore wake_ups --to 1 --why" in plainly(done)
    assert job.live() == []


def test_state_rename_shows_before_it_moves(job, headrace):
    output = headrace(f"state rename wake_ups --operator {OLD} --to alarms")
    assert "rows to move to 'alarms'" in plainly(output)
    assert {row["operator"] for row in job.live()} == {OLD}
    done = headrace(f"state rename wake_ups --operator {OLD} --to alarms --apply")
    assert "4 rows of operator 'wakers' are of 'alarms' now: checkpoint 2." in plainly(done)
    assert {row["operator"] for row in job.live()} == {"alarms"}


def test_rescale_prints_the_new_job_file_line(job, headrace):
    output = headrace("rescale wake_ups --max-parallelism 16")
    assert "wake_ups: from 128 key groups to 16. Nothing was changed." in plainly(output)
    assert job.last.max_parallelism == 128
    done = headrace("rescale", "wake_ups", "--max-parallelism", "16", "--apply", "--why", "few keys")
    assert "4 rows have 16 key groups now: checkpoint 2." in plainly(done)
    assert "Then write max_parallelism: 16 into" in plainly(done)
    job.configure(max_parallelism=16)
    assert "has max_parallelism: 8" not in plainly(headrace("rescale wake_ups --max-parallelism 8"))
    job.configure(max_parallelism=8)
    assert "has max_parallelism: 8 already" in plainly(headrace("rescale wake_ups --max-parallelism 8"))


@pytest.mark.parametrize(
    "command",
    [f"state drop wake_ups --operator {OLD}", "rescale wake_ups --max-parallelism 16", "drop wake_ups"],
)
def test_commands_without_a_reason_change_nothing(job, headrace, command):
    refused = headrace(f"{command} --apply")
    assert (refused.exit_code, "--why" in refused.stderr) == (2, True)
    assert job.last.checkpoint_id == 1


@pytest.mark.parametrize(
    ("command", "key"),
    [
        (f"state drop wake_ups --operator {OLD}", "rows"),
        (f"state rename wake_ups --operator {OLD} --to alarms", "rows"),
        ("rescale wake_ups --max-parallelism 16", "rows"),
    ],
)
def test_json_output_is_one_document(job, headrace, command, key):
    planned = json.loads(headrace(f"{command} --json").stdout)
    assert (planned["applied"], planned[key][KEYED_STATE]) == (False, 3)
    done = json.loads(headrace(*command.split(), "--json", "--apply", "--why", "because").stdout)
    assert (done["applied"], done["checkpoint"]) == (True, 2)


def test_state_type_conflict_exits_with_six(job, headrace):
    refused = headrace(f"state rename wake_ups --operator {OLD} --to numbers")
    assert (refused.exit_code, "does not fit 'numbers'" in refused.stderr) == (6, True)


def test_drop_needs_the_name_of_the_job(headrace):
    assert headrace("drop").exit_code == 2
