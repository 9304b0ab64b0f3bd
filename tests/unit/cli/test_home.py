"""Commands outside of a project, and in one without jobs."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from headrace.cli import app

NEED_A_JOB = [
    "jobs",
    "status",
    "check",
    "explain",
    "checkpoints",
    "state list",
    "verify",
    "run",
    "waiting --timers",
    "maintain",
]


@pytest.fixture
def outside(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", NEED_A_JOB)
def test_commands_outside_a_project_are_refused(outside, command):
    result = CliRunner().invoke(app, command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"neither {outside} nor a folder above it has a folder conf/jobs" in result.stderr
    assert "headrace new NAME" in result.stderr


@pytest.mark.parametrize("command", NEED_A_JOB)
def test_commands_without_any_job_are_refused(outside, command):
    (outside / "conf" / "jobs").mkdir(parents=True)
    result = CliRunner().invoke(app, command.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"there is no job: {outside}/conf/jobs has no file NAME.yaml" in result.stderr


def test_schemas_need_no_project(outside):
    assert CliRunner().invoke(app, ["jobs", "--schema"]).exit_code == 0
