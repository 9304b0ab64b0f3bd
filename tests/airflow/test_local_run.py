"""The task `run` without Spark: it runs the command on its own machine."""

from __future__ import annotations

import json
import os
import sys

import pytest
import yaml
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowFailException

from headrace.airflow import HeadraceRunOperator
from headrace.airflow import _command as command_module
from headrace.airflow import _results as results
from tests.airflow.test_run_operator import REPORT, context_of

PROGRAM = """
import sys
(file,) = [word.removeprefix("--report=") for word in sys.argv if word.startswith("--report=")]
print(sys.argv[1:])
open(file, "w").write({content!r})
sys.exit({exit_code})
"""


@pytest.fixture
def headrace(tmp_path, monkeypatch):
    """Put a command `headrace` in place that reports `content` and ends with `exit_code`."""
    monkeypatch.setattr(results, "_last_told", lambda *_: None)

    def put(content=REPORT, exit_code=0):
        program = tmp_path / "bin" / "headrace"
        program.parent.mkdir()
        program.write_text(f"#!{sys.executable}\n{PROGRAM.format(content=json.dumps(content), exit_code=exit_code)}")
        program.chmod(0o755)
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        monkeypatch.setattr(command_module, "task_environment", lambda *_: {"PATH": path})

    return put


def task_of(home, **options):
    with DAG("mine", schedule=None):
        task = HeadraceRunOperator(task_id="run", job="flights", home=home, **options)
    task.allow_nested_operators = True
    task.application_args = [word for word in task.application_args if "{{" not in word]
    return task


def test_local_runner_submits_nothing(home, headrace, capfd):
    headrace()
    task = task_of(home, runner="local")
    assert task.execute(context_of(task))["checkpoint"] == REPORT["checkpoint"]
    assert (task._hook, "--runner=local" in task.application_args) == (None, True)


@pytest.mark.parametrize("own", [{"runner": "local"}, {"master": "sc://host:15002"}])
def test_profile_may_need_no_submission(home, headrace, own):
    headrace()
    file = home / "conf" / "clusters" / "local.yaml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text()) | own))
    task = task_of(home)
    assert task.execute(context_of(task))["checkpoint"] == REPORT["checkpoint"]
    assert task._hook is None


def test_error_of_the_local_runner_ends_the_task(home, headrace):
    headrace({"error": "ConfigError", "message": "job 'flights' needs Spark", "exit_code": 2}, 2)
    task = task_of(home, runner="local")
    with pytest.raises(AirflowFailException, match="ConfigError: job 'flights' needs Spark"):
        task.execute(context_of(task))
