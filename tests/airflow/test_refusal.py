"""Refused runs in Airflow's own scheduling: they fail, and all that a later run waits for is skipped."""

from __future__ import annotations

import pytest
from airflow.models import DagRun
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from airflow.utils.session import create_session
from sqlalchemy import delete

from headrace.airflow import HeadraceRunOperator
from headrace.airflow._command import CommandTask
from headrace.airflow._order_of_runs import refuse

HELD_FOR = {"run", "verify", "compact"}
"""Tasks that the task `run` of a later run waits for, if they have neither succeeded nor were skipped."""


@pytest.fixture(params=[7, None], ids=["compaction", "no compaction"])
def dag(dag_bag, edit_job, request, monkeypatch):
    """Return the DAG of `flights`, whose tasks do nothing."""
    with create_session() as session:  # a run that failed would hold up the next one
        session.execute(delete(DagRun).where(DagRun.dag_id == "flights"))
    edit_job("flights", compaction={"every": request.param})
    monkeypatch.setattr(CommandTask, "execute", lambda self, context: None)  # noqa: ARG005
    monkeypatch.setattr(HeadraceRunOperator, "execute", lambda self, context: None)  # noqa: ARG005
    dag = dag_bag().dags["flights"]
    # Each test has a home of its own, and Airflow refuses assets of one name in two places.
    dag.get_task("run").outlets = []
    return dag


def states(dag, run):
    """Return the states of the tasks of a DAG run, and its own."""
    ended = {task.task_id: str(task.state) for task in run.get_task_instances()}
    assert ended.keys() == {task.task_id for task in dag.tasks}
    return ended, str(run.state)


def test_good_run_skips_the_refusal_alone(dag):
    tasks, run = states(dag, dag.test())

    assert run == "success"
    assert {name for name, state in tasks.items() if state != "success"} == {"refused"}
    assert tasks["refused"] == "skipped"


def test_typo_in_a_param_fails_the_run(dag):
    tasks, run = states(dag, dag.test(run_conf={"max_batch": 1}))

    assert (run, tasks.pop("refused")) == ("failed", "failed")
    assert {*tasks.values()} == {"skipped"}
    assert dag.get_task("run").downstream_task_ids <= HELD_FOR


def test_refused_task_run_fails_the_run(dag, monkeypatch):
    def refused(self, context):
        refuse(context, "there would be a gap", self.log)

    monkeypatch.setattr(HeadraceRunOperator, "execute", refused)
    tasks, run = states(dag, dag.test())

    assert (run, tasks["check"], tasks["refused"]) == ("failed", "success", "failed")
    assert {tasks[name] for name in HELD_FOR & tasks.keys()} == {"skipped"}


@pytest.mark.parametrize("failing", ["check", "run", "verify"])
def test_failed_task_still_fails_the_run(dag, monkeypatch, failing):
    def fail(self, context):
        if self.task_id == failing:
            raise AirflowFailException("no")

    monkeypatch.setattr(CommandTask, "execute", fail)
    monkeypatch.setattr(HeadraceRunOperator, "execute", fail)
    tasks, run = states(dag, dag.test())

    assert (run, tasks[failing], tasks["refused"]) == ("failed", "failed", "skipped")


def test_skipped_by_hand_is_no_failure(dag, monkeypatch):
    def skip(self, context):
        raise AirflowSkipException

    monkeypatch.setattr(HeadraceRunOperator, "execute", skip)
    tasks, run = states(dag, dag.test())

    assert (run, tasks["refused"]) == ("success", "skipped")
