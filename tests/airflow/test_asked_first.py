"""The task `run` asks whether a run needs Spark, before it submits."""

from __future__ import annotations

import pytest
import yaml
from airflow.sdk.exceptions import AirflowFailException

from headrace.airflow._driver_operator import DriverOperator
from tests.airflow.test_local_run import headrace, task_of
from tests.airflow.test_run_operator import REPORT, context_of

__all__ = ["headrace"]

NEEDED = {"error": "SparkNeededError", "message": "job 'flights' has work", "exit_code": 14}
SUBMITTED = {**REPORT, "checkpoint": 8}


@pytest.fixture
def submissions(monkeypatch):
    """Let spark-submit end well, and return the words of each submission."""
    words = []

    def submit(task, context, report_file):
        words.append(task.application_args)
        assert report_file.content() is None
        return SUBMITTED

    monkeypatch.setattr(DriverOperator, "_submitted", submit)
    return words


def test_run_without_work_submits_nothing(home, headrace, submissions, capfd):
    headrace()
    task = task_of(home)
    assert task.execute(context_of(task))["checkpoint"] == REPORT["checkpoint"]
    assert submissions == []


def test_run_with_work_is_submitted(home, headrace, submissions):
    headrace(NEEDED, 14)
    task = task_of(home)
    assert task.execute(context_of(task))["checkpoint"] == SUBMITTED["checkpoint"]
    (words,) = submissions
    assert "--without-spark" not in words


def test_error_of_the_question_ends_the_task(home, headrace, submissions):
    headrace({"error": "IntervalError", "message": "there would be a gap", "exit_code": 9}, 9)
    task = task_of(home)
    with pytest.raises(AirflowFailException, match="IntervalError: there would be a gap"):
        task.execute(context_of(task))
    assert submissions == []


@pytest.mark.parametrize("options", [{"ask_first": False}, {"finish": True}, {"end_of_input": True}])
def test_some_runs_are_submitted_at_once(home, headrace, submissions, options):
    headrace()
    task = task_of(home, **options)
    assert task.execute(context_of(task))["checkpoint"] == SUBMITTED["checkpoint"]


def test_driver_elsewhere_is_not_asked(home, headrace, submissions):
    headrace()
    file = home / "conf" / "clusters" / "local.yaml"
    elsewhere = {"master": "yarn", "deploy_mode": "cluster"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **elsewhere}))
    task = task_of(home)
    assert task.execute(context_of(task))["checkpoint"] == SUBMITTED["checkpoint"]
