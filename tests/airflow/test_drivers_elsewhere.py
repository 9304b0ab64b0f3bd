"""Drivers in cluster mode: they outlive their client, and their report is in the checkpoints."""

from __future__ import annotations

import json
import os
from functools import partialmethod
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException

from headrace.airflow import HeadraceRunOperator
from headrace.airflow._command import HeadraceCommand
from tests.airflow.test_run_operator import REPORT, FakeInstance

STORED = {**REPORT, "stopped_because": None, "is_whole": True, "failed": None, "compaction_due": True, "alerts": []}
RM = {"conn_type": "spark", "host": "yarn", "extra": {"yarn_resourcemanager_webapp_address": "rm:8088"}}


class Store(dict):
    """The task's state store, which survives retries and clears."""

    def set(self, key, value):
        self[key] = value

    def delete(self, key):
        self.pop(key, None)


class Cluster:
    """YARN: keeps the state of each driver, and counts submissions."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[str, str]] = {}
        self.ends_as = ("FINISHED", "SUCCEEDED")
        self.reconnects: list[str] = []

    def submit(self, hook, _):
        hook._yarn_application_id = f"application_1_{len(self.states) + 1:04}"
        self.states[hook._yarn_application_id] = ("RUNNING", "UNDEFINED")
        hook._submit_sp = SimpleNamespace(returncode=0, poll=lambda: 0)

    def status(self, _, driver):
        if driver not in self.states:
            raise RuntimeError(f"404: {driver}")
        return (*self.states[driver], "")

    def poll(self, _, driver):
        self.reconnects.append(driver)
        if self.ends_as is None:
            raise KeyboardInterrupt  # the client is killed
        self.states[driver] = self.ends_as
        if self.ends_as[1] != "SUCCEEDED":
            raise RuntimeError(f"{driver} has failed")


def _called(hook, call, argument):
    return call(hook, argument)


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
    calls = {
        "submit": cluster.submit,
        "_query_yarn_application_status": cluster.status,
        "_start_yarn_application_status_tracking": cluster.poll,
    }
    for name, call in calls.items():  # a function gets the hook, where a bound method would not
        monkeypatch.setattr(SparkSubmitHook, name, partialmethod(_called, call))
    return cluster


@pytest.fixture
def stored(monkeypatch):
    """Return what `headrace run-report` answers, and the words of its calls."""
    answers = SimpleNamespace(report={**STORED, "is_whole": False}, words=[])

    def answer(command, _):
        answers.words.append(command._words)
        if isinstance(answers.report, Exception):
            raise answers.report
        return answers.report

    monkeypatch.setattr(HeadraceCommand, "answer", answer)
    return answers


@pytest.fixture
def attempt(home, monkeypatch, cluster, stored):
    """Return a function that executes the task once more, as a new process would."""
    path, store = home / "conf/clusters/local.yaml", Store()
    path.write_text(
        yaml.safe_dump(
            {**yaml.safe_load(path.read_text()), "master": "yarn", "deploy_mode": "cluster", "connection": "rm"}
        )
    )
    monkeypatch.setattr(os, "environ", {**os.environ, "AIRFLOW_CONN_RM": json.dumps(RM)})
    monkeypatch.setattr("headrace.airflow._run_operator.refuse_unknown_zone", lambda *_: None)
    monkeypatch.setattr("headrace.airflow._run_operator.announce", lambda *_, **__: [])

    def execute(number=1, run_id="r1", words=(), **options):
        with DAG("mine", schedule=None):
            task = HeadraceRunOperator(task_id="run", job="flights", home=home, **options)
        task.allow_nested_operators = True
        task.application_args = ["run", "flights", "--mode=interval", f"--run-id={run_id}", *words]
        instance = FakeInstance(max_tries=9, try_number=number)
        instance.stats_tags = {}
        run = SimpleNamespace(
            conf=None, run_type="scheduled", logical_date=None, data_interval_start=None, data_interval_end=None
        )
        context: dict[str, Any] = {
            "ti": instance,
            "task": task,
            "dag": task.dag,
            "run_id": run_id,
            "dag_run": run,
            "outlet_events": {},
        }
        context["task_state_store"] = store
        return task.execute(context)

    return execute


def test_report_of_a_driver_elsewhere_is_read(attempt, cluster, stored):
    result = attempt()
    assert (result["rows_in"], result["compaction_due"], len(cluster.states)) == (1200, True, 1)
    (words,) = stored.words
    assert words[:3] == ["headrace", "run-report", "flights"]
    assert "--run-id=r1" in words


def test_unreadable_checkpoints_fail_no_run(attempt, stored):
    stored.report = AirflowException("StorageError: no access")
    assert attempt() is None


@pytest.mark.parametrize("number", [2, 3])
def test_killed_client_finds_its_driver(attempt, cluster, number):
    cluster.ends_as = None
    with pytest.raises(KeyboardInterrupt):
        attempt()
    cluster.ends_as = ("FINISHED", "SUCCEEDED")
    assert attempt(number)["rows_in"] == 1200
    assert cluster.reconnects == ["application_1_0001"] * 2


def test_driver_that_ended_meanwhile_is_not_repeated(attempt, cluster):
    cluster.ends_as = None
    with pytest.raises(KeyboardInterrupt):
        attempt()
    cluster.states["application_1_0001"] = ("FINISHED", "SUCCEEDED")
    assert attempt(2)["rows_in"] == 1200
    assert len(cluster.states) == 1


@pytest.mark.parametrize("state", [("FAILED", "FAILED"), None])
def test_failed_or_forgotten_driver_gets_a_successor(attempt, cluster, state):
    cluster.ends_as = None
    with pytest.raises(KeyboardInterrupt):
        attempt()
    cluster.states = {"gone": ("KILLED", "KILLED")} if state is None else {"application_1_0001": state}
    cluster.ends_as = ("FINISHED", "SUCCEEDED")
    assert attempt(2)["rows_in"] == 1200
    assert cluster.reconnects[-1] == "application_1_0002"


def test_cleared_task_runs_again(attempt, cluster):
    attempt()
    attempt(2, run_id="r1.1")
    assert cluster.reconnects == ["application_1_0001", "application_1_0002"]


def test_taken_interval_needs_no_driver(attempt, cluster, stored):
    stored.report = STORED
    assert attempt(2)["rows_in"] == 1200
    assert cluster.states == {}


def test_failed_verification_is_not_hidden(attempt, cluster, stored):
    stored.report = {**STORED, "failed": "1 check failed"}
    with pytest.raises(AirflowException, match="1 check failed"):
        attempt(2)
    assert cluster.states == {}


def test_cleared_task_waits_for_the_old_driver(attempt, cluster):
    cluster.ends_as = None
    with pytest.raises(KeyboardInterrupt):
        attempt()
    cluster.ends_as = ("FINISHED", "SUCCEEDED")
    attempt(2, run_id="r1.1")
    assert cluster.reconnects[1:] == ["application_1_0001", "application_1_0002"]


def test_failure_of_the_old_driver_is_not_ours(attempt, cluster, monkeypatch):
    cluster.ends_as = None
    with pytest.raises(KeyboardInterrupt):
        attempt()

    def poll(hook, driver):
        cluster.ends_as = ("FINISHED", "FAILED" if driver == "application_1_0001" else "SUCCEEDED")
        Cluster.poll(cluster, hook, driver)

    monkeypatch.setattr(SparkSubmitHook, "_start_yarn_application_status_tracking", partialmethod(_called, poll))
    assert attempt(2, run_id="r1.1")["rows_in"] == 1200
    assert len(cluster.states) == 2


def test_whole_interval_may_still_have_to_finish(attempt, cluster, stored):
    stored.report = STORED
    attempt(2, words=["--finish"])
    assert len(cluster.states) == 1


def test_airflow_hears_alerts_found_before_a_retry(attempt, stored, monkeypatch):
    alert = {"metric": "lag", "calls_airflow": True}
    heard = []
    monkeypatch.setattr(
        "headrace.airflow._run_operator.tell_of_alerts", lambda _, result, *__: heard.extend(result["alerts"])
    )
    reports = iter([{**STORED, "is_whole": False, "alerts": [alert]}, {**STORED, "alerts": []}])
    monkeypatch.setattr(HeadraceCommand, "answer", lambda *_: next(reports))
    attempt(2)
    assert heard == [alert]
