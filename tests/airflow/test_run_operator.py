"""The task `run`: what it hands to spark-submit, and which ends Airflow must not retry."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import BaseHook
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import headrace
from headrace.errors import ConfigError


class FakeHook:
    """Stands in for SparkSubmitHook: spark-submit ends with `exit_code`."""

    _should_track_driver_status = False
    _is_yarn_cluster_mode = False

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        self._submit_sp = None
        self.applications: list[str] = []

    def _should_track_driver_via_k8s_api(self) -> bool:
        return False

    def submit(self, application: str) -> None:
        self.applications.append(application)
        self._submit_sp = SimpleNamespace(returncode=self.exit_code)
        if self.exit_code:
            raise AirflowException(f"Cannot execute: spark-submit. Error code is: {self.exit_code}.")


@pytest.fixture
def run(dag_bag):
    """Return the task `run`, in a test's process instead of Airflow's task runner."""
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    return task


def _execute(run, exit_code=0, budget=None):
    run._hook = FakeHook(exit_code)
    run.execute({"params": {"budget": budget}})
    return run._hook


def test_the_packages_own_driver_is_submitted(run):
    driver = Path(headrace.__file__).parent / "cli" / "submit" / "driver.py"

    assert _execute(run).applications == [str(driver)]
    assert driver.is_file()


@pytest.mark.parametrize("exit_code", [9, 10])
def test_final_exit_codes_are_not_retried(run, exit_code):
    with pytest.raises(AirflowFailException, match=rf"exit code {exit_code}: .*not retried"):
        _execute(run, exit_code)


@pytest.mark.parametrize("exit_code", [1, 3, 4, 8, 70, -9])
def test_other_exit_codes_are_retried(run, exit_code):
    with pytest.raises(AirflowException, match=f"Error code is: {exit_code}") as error:
        _execute(run, exit_code)
    assert not isinstance(error.value, AirflowFailException)


def test_failure_before_submission_is_retried(run, monkeypatch):
    def refuse(hook, application):
        raise AirflowException("no connection")

    monkeypatch.setattr(FakeHook, "submit", refuse)
    with pytest.raises(AirflowException, match="no connection") as error:
        _execute(run)
    assert not isinstance(error.value, AirflowFailException)


def test_secrets_are_expanded_by_the_task(dag_bag, edit_profile, monkeypatch):
    edit_profile("local", {"spark.hadoop.fs.s3a.secret.key": "${STORE_SECRET}"})
    run = dag_bag().dags["flights"].get_task("run")
    run.allow_nested_operators = True

    monkeypatch.delenv("STORE_SECRET", raising=False)
    with pytest.raises(ConfigError, match="spark.hadoop.fs.s3a.secret.key: environment variable STORE_SECRET"):
        _execute(run)

    monkeypatch.setenv("STORE_SECRET", "hush")
    _execute(run)
    assert run.conf["spark.hadoop.fs.s3a.secret.key"] == "hush"


def test_master_of_the_profile_is_a_connection(run, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_HEADRACE_LOCAL", raising=False)
    _execute(run)

    assert BaseHook.get_connection("headrace_local").host == "local[2,4]"


def test_budget_above_the_jobs_own_is_refused(run):
    with pytest.raises(AirflowFailException, match="param budget: 31m is longer than the job's own budget of 1800 s"):
        _execute(run, budget="31m")
    _execute(run, budget="30m")
