"""Tasks that run a command: their log lines, and the exit codes that Airflow must not retry."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from headrace.airflow import _command as command_module
from headrace.airflow._command import CommandTask

HELD = "LeaseError: run 'other' holds the job"


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Return a function that makes a task whose command `headrace` prints `text` to stderr, writes `report`, and ends with `exit_code`."""

    def make(exit_code=0, text="", report=None, **options):
        program = tmp_path / "bin" / "headrace"
        program.parent.mkdir()
        code = (
            "import json, pathlib, sys; file = pathlib.Path(sys.argv[-1].removeprefix('--report='))\n"
            f"report = {report!r}; report and file.write_text(json.dumps(report))\n"
            f"print('out', sys.argv[1:-1], flush=True); print({text!r}, file=sys.stderr); sys.exit({exit_code})"
        )
        program.write_text(f"#!{sys.executable}\n{code}\n")
        program.chmod(0o755)
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        monkeypatch.setattr(command_module, "task_environment", lambda *_: {"PATH": path})
        with DAG("mine", schedule=None):
            task = CommandTask(task_id="task", words=["verify", "flights", "a; b $(c)"], home=tmp_path, **options)
        task.allow_nested_operators = True
        return task

    return make


@pytest.fixture
def lines(monkeypatch):
    """Return the lines that tasks log."""
    logged = []
    monkeypatch.setattr(CommandTask, "log", SimpleNamespace(info=logged.append, warning=lambda _: None))
    return logged


def execute(task):
    task.execute({})


def test_all_that_a_command_prints_is_logged(command, lines):
    execute(command(text="a warning"))

    assert lines == ["out ['verify', 'flights', 'a; b $(c)']", "a warning"]


@pytest.mark.parametrize("exit_code", [5, 6, 7, 9, 10, 12])
def test_final_exit_codes_are_not_retried(command, exit_code):
    with pytest.raises(AirflowFailException, match=f"exit code {exit_code}: not retried"):
        execute(command(exit_code))


@pytest.mark.parametrize("exit_code", [1, 2, 3, 4, 8, 70])
def test_other_exit_codes_are_retried(command, exit_code):
    with pytest.raises(AirflowException, match=f"exit code {exit_code}") as error:
        execute(command(exit_code))
    assert not isinstance(error.value, AirflowFailException)


def test_python_without_its_file_is_no_wrong_configuration(command):
    with pytest.raises(AirflowException, match="has written no report: Python itself does so") as error:
        execute(command(2, "python: can't open file '/opt/driver.py'"))
    assert not isinstance(error.value, AirflowFailException)


def test_exception_carries_headraces_error_message(command):
    report = {"error": "ConfigError", "message": "no such job\nDid you mean 'flights'?"}
    with pytest.raises(AirflowFailException, match=r"^ConfigError: no such job\nDid you mean"):
        execute(command(2, "SourceError: a line that decides nothing", report))


def test_held_job_skips_the_task_if_configured(command):
    with pytest.raises(AirflowSkipException, match="another run holds the job"):
        execute(command(3, HELD, skip_if_held=True))


def test_command_arguments_are_rendered_as_templates(command):
    task = command()
    task.words = ["restore", "--why={{ params.why }}"]

    task.render_template_fields({"params": {"why": "bad $(weather)"}})

    assert task.words == ["restore", "--why=bad $(weather)"]
