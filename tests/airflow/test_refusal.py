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

_CHECKED = HeadraceRunOperator.execute
"""The method itself: the tests replace it."""
HELD_FOR = {"run", "compact", "uncompacted", "end"}
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


@pytest.mark.parametrize(
    ("result", "is_idle"),
    [(None, False), ({"compaction_due": True}, False), ({"compaction_due": False}, True), ({"registered": True}, True)],
    ids=["elsewhere", "due", "not due", "registered"],
)
def test_good_run_leaves_idle_tasks_out(dag, monkeypatch, result, is_idle):
    monkeypatch.setattr(HeadraceRunOperator, "execute", returning(result))
    tasks, run = states(dag, dag.test())

    (after,) = {"compact", "uncompacted"} & tasks.keys()
    assert run == "success"
    assert tasks == {
        "run": "success",
        after: "skipped" if is_idle else "success",
        "refused": "skipped",
        "end": "success",
    }


def test_result_stays_where_tasks_are_left_out(dag, monkeypatch):
    monkeypatch.setattr(HeadraceRunOperator, "execute", returning({"checkpoint": 7}))
    (task,) = [task for task in dag.test().get_task_instances() if task.task_id == "run"]

    assert task.xcom_pull(task_ids="run") == {"checkpoint": 7}


def test_typo_in_a_param_fails_the_run(dag, monkeypatch):
    monkeypatch.setattr(HeadraceRunOperator, "execute", _CHECKED)
    tasks, run = states(dag, dag.test(run_conf={"max_batch": 1}))

    assert (run, tasks.pop("refused"), tasks.pop("end")) == ("failed", "failed", "success")
    assert {*tasks.values()} == {"skipped"}
    assert dag.get_task("run").downstream_task_ids <= HELD_FOR


def test_refused_task_run_fails_the_run(dag, monkeypatch):
    def refused(self, context):
        refuse(context, "there would be a gap", self.log)

    monkeypatch.setattr(HeadraceRunOperator, "execute", refused)
    tasks, run = states(dag, dag.test())

    assert (run, tasks.pop("refused"), tasks.pop("end")) == ("failed", "failed", "success")
    assert {*tasks.values()} == {"skipped"}


@pytest.mark.parametrize("result", [None, {"compaction_due": True}])
def test_failed_compaction_fails_the_run(dag, monkeypatch, result):
    if not dag.has_task("compact"):
        pytest.skip("the job's file has no compaction")
    monkeypatch.setattr(HeadraceRunOperator, "execute", returning(result))
    monkeypatch.setattr(CommandTask, "execute", fail)
    tasks, run = states(dag, dag.test())

    assert (run, tasks["compact"], tasks["refused"], tasks["end"]) == ("failed", "failed", "skipped", "upstream_failed")


def test_failed_run_is_no_refused_run(dag, monkeypatch):
    monkeypatch.setattr(HeadraceRunOperator, "execute", fail)
    tasks, run = states(dag, dag.test())

    assert (run, tasks["run"], tasks["refused"], tasks["end"]) == ("failed", "failed", "skipped", "upstream_failed")


def returning(result):
    """Return an `execute` of a task that returns `result`."""
    return lambda _, context: result  # noqa: ARG005


def fail(task, context):
    """Stand in for the `execute` of a task that fails."""
    raise AirflowFailException("no")


def test_skipped_by_hand_is_no_failure(dag, monkeypatch):
    def skip(self, context):
        raise AirflowSkipException

    monkeypatch.setattr(HeadraceRunOperator, "execute", skip)
    tasks, run = states(dag, dag.test())

    assert (run, tasks["refused"]) == ("success", "skipped")
