"""Limits of a replay: a person is asked before it begins, with the text of its plan."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import AirflowFailException, DownstreamTasksSkipped, TaskAwaitingInput

from headrace.airflow._driver_operator import CommandFailed
from headrace.airflow._replay_plan import PlanTask
from tests.airflow.test_replay_dag import DONE, asking, flow, notes, perform
from tests.airflow.test_run_operator import FakeInstance

__all__ = ["notes"]


LIMIT = "120 minutes expected, and replay.max_minutes is 60"
PLAN = {
    "job": "flights",
    "name": "replay",
    "beyond_limits": [LIMIT],
    "plan": [{"label": "minutes", "text": "119.5 at the first time"}, {"label": "downstream", "text": "job 'board'"}],
}
TEXT = "| plan | |\n|---|---|\n| minutes | 119.5 at the first time |\n| downstream | job 'board' |"


@pytest.fixture(params=[{"max_minutes": 60}, {"max_calls": 0}], ids=str)
def limited(dag_bag, edit_job, request):
    edit_job("flights", replay=request.param)
    return dag_bag().dags["flights_replay"]


def task_of(dag, name):
    task = dag.get_task(name)
    task.allow_nested_operators = True
    return task


def planned(dag, monkeypatch, report):
    monkeypatch.setattr(PlanTask, "report", lambda _self, _context: report)
    return task_of(dag, "plan").execute(asking(params=("2013-01-10", "2013-01-11")))


def test_person_is_asked_before_the_backfill(limited):
    tasks = {"plan": ["begin"], "begin": ["backfill"], "backfill": ["approve"]}
    assert flow(limited) == {**tasks, "approve": ["drop", "promote"], "promote": [], "drop": []}


def test_plan_is_the_text_of_the_question(limited, monkeypatch):
    asked = []
    monkeypatch.setattr("airflow.sdk.execution_time.hitl.upsert_hitl_detail", lambda **question: asked.append(question))
    plan, begin = planned(limited, monkeypatch, PLAN), task_of(limited, "begin")
    assert (plan["plan"], begin.body) == (TEXT, "{{ ti.xcom_pull(task_ids='plan')['plan'] }}")
    begin.outcome = plan["outcome"]
    with pytest.raises(TaskAwaitingInput):
        begin.execute({"ti": SimpleNamespace(id="T")})
    assert asked[0]["subject"] == "Begin the replay of flights beyond its limits?"


def test_plan_within_limits_asks_nobody(limited, monkeypatch):
    begin, instance = task_of(limited, "begin"), FakeInstance()
    instance.task, begin.outcome = begin, planned(limited, monkeypatch, PLAN | {"beyond_limits": []})["outcome"]
    assert begin.execute({"ti": instance}) == {"answer": None, "by": "nobody: within_limits already"}


@pytest.mark.parametrize(("answer", "skipped"), [("Approve", []), ("Reject", [("backfill", -1)])])
def test_rejected_replay_does_not_begin(limited, answer, skipped):
    begin, instance, ended = task_of(limited, "begin"), FakeInstance(), []
    instance.task = begin
    try:
        begin.answered({**asking(), "ti": instance}, {"chosen_options": [answer], "responded_by_user": {"name": "ada"}})
    except DownstreamTasksSkipped as skipping:
        ended = list(skipping.tasks)
    assert ended == skipped


def test_allowed_replay_begins_beyond_its_limits(limited, notes):
    report = DONE | {"plan": PLAN["plan"]}
    result, words = perform(limited, "backfill", asking(params=("2013-01-10", "2013-01-11")), report)
    assert ("--beyond-limits" in words, result["plan"]) == (True, TEXT)
    assert "['plan']" in task_of(limited, "approve").body


def test_plan_that_fails_is_not_retried(limited, monkeypatch):
    def fail(*_):
        raise CommandFailed(9, {"error": "IntervalError", "message": "not taken in yet", "exit_code": 9})

    monkeypatch.setattr(PlanTask, "report", fail)
    with pytest.raises(AirflowFailException, match="not taken in yet"):
        task_of(limited, "plan").execute(asking(params=("2013-01-10", "2013-01-11")))
