"""Operators that change a job, and the sensor that waits for one: real commands on tables on disk, without Spark."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest
from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowFailException, TaskDeferred

from headrace.airflow import (
    HeadraceCheckpointSensor,
    HeadraceCompactOperator,
    HeadraceRestoreOperator,
    HeadraceSavepointOperator,
)
from headrace.airflow._command import answer_of
from headrace.airflow._sensor import Milestone
from headrace.commit.protocol import open_job
from headrace.errors import ConfigError
from headrace.log.checkpoint import Kind
from tests.jobs.home import Home
from tests.unit.support.demo_job import home, state

__all__ = ["home", "state"]

LAST = 4
STATUS = {"checkpoint": 7, "watermark": "2013-01-31T05:00:00Z", "interval_end": "2013-02-01T00:00:00Z"}


@pytest.fixture
def in_dag(home):
    """Return a function that creates a task of the job `demo`, to be executed in the test's process."""

    def make(operator, **options):
        with DAG("mine", schedule=None):
            task = operator(task_id="task", job="demo", home=home, **options)
        task.allow_nested_operators = True
        return task

    return make


def execute(task):
    return task.execute({"run_id": "manual__1"})


def test_savepoint_and_restore_tasks_create_checkpoints(tmp_path):
    project = Home(tmp_path / "project")
    with open_job(project.config(), "first", create=True):
        pass
    with DAG("mine", schedule=None):
        where = {"job": "purchases", "home": project.folder}
        savepoint = HeadraceSavepointOperator(task_id="savepoint", savepoint="now", why="engine 0.2", **where)
        restore = HeadraceRestoreOperator(task_id="restore", to="now", why="bad $(weather); data", **where)
        nowhere = HeadraceRestoreOperator(task_id="nowhere", to=99, why="bad data", **where)
    for task in savepoint, restore, nowhere:
        task.allow_nested_operators = True

    result = execute(savepoint)["checkpoint"]
    assert (result["name"], result["checkpoint_id"]) == ("now", 1)
    restored = execute(restore)["checkpoint"]
    assert (restored["checkpoint_id"], restored["restored_from"], restored["note"]) == (2, 1, "bad $(weather); data")
    with pytest.raises(AirflowFailException, match="ConfigError: .*99"):
        execute(nowhere)


@pytest.mark.parametrize(("every", "words"), [(None, []), ("", []), (7, ["--every=7"]), ("7", ["--every=7"])])
def test_compaction_may_depend_on_the_number_of_runs(in_dag, every, words):
    assert in_dag(HeadraceCompactOperator, every=every).words() == ["maintain", "demo", "--state", *words]


def test_unknown_job_is_refused_with_the_dag(home):
    with DAG("mine", schedule=None), pytest.raises(ConfigError, match="unknown job 'dmo'; did you mean 'demo'"):
        HeadraceCompactOperator(task_id="task", job="dmo", home=home)


def test_output_that_is_no_json_is_an_error():
    with pytest.raises(AirflowException, match="exit code 0"):
        answer_of("Segmentation fault", 0)


def test_sensor_that_finds_its_checkpoint_does_not_wait(in_dag, state):
    status = execute(in_dag(HeadraceCheckpointSensor, checkpoint=LAST))

    assert (status["job"], status["checkpoint"]) == ("demo", LAST)


def test_sensor_waits_in_the_triggerer(in_dag, state, home):
    sensor = in_dag(HeadraceCheckpointSensor, checkpoint=LAST + 1, poke_interval=0.01)
    with pytest.raises(TaskDeferred) as deferred:
        execute(sensor)
    kind, arguments = deferred.value.trigger.serialize()
    assert kind == "headrace.airflow._sensor.CheckpointTrigger"

    state.commit(Kind.COMPACTION)
    event = asyncio.run(anext(type(deferred.value.trigger)(**arguments).run()))
    assert sensor.resume({}, event.payload)["checkpoint"] == LAST + 1

    (home / "conf" / "jobs" / "demo.yaml").write_text("job: demo\nschedule: [")
    event = asyncio.run(anext(type(deferred.value.trigger)(**arguments).run()))
    with pytest.raises(AirflowFailException, match="ConfigError: .*demo.yaml"):
        sensor.resume({}, event.payload)


def test_sensor_can_keep_a_workers_place(in_dag, state):
    sensor = in_dag(HeadraceCheckpointSensor, checkpoint=LAST, deferrable=False)

    assert sensor.poke({})


@pytest.mark.parametrize(
    ("wanted", "is_reached"),
    [
        ({"checkpoint": 7}, True),
        ({"checkpoint": "8"}, False),
        ({"watermark": "2013-01-31T05:00:00+00:00"}, True),
        ({"watermark": "2013-01-31T05:00:00"}, True),
        ({"watermark": "2013-01-31T07:00:00+01:00"}, False),
        ({"interval_end": datetime(2013, 2, 1, tzinfo=UTC)}, True),
        ({"interval_end": "2013-02-02"}, False),
        ({"checkpoint": 7, "interval_end": "2013-02-02"}, False),
        ({"checkpoint": 7, "watermark": ""}, True),
    ],
)
def test_sensor_recognizes_a_reached_milestone(wanted, is_reached):
    assert Milestone.of(**wanted).is_reached(STATUS) is is_reached


def test_job_never_run_has_reached_no_milestone():
    never = dict.fromkeys(STATUS)
    assert not Milestone.of(checkpoint=0).is_reached(never)
    assert not Milestone.of(watermark="1970-01-01").is_reached(never)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({}, "give the sensor a checkpoint"),
        ({"checkpoint": "seven"}, "'seven' is not the id of a checkpoint"),
        ({"watermark": "monday"}, "watermark: 'monday' is not a timestamp"),
        ({"interval_end": "None"}, "give the sensor a checkpoint"),
    ],
)
def test_invalid_milestone_is_refused(wanted, message):
    with pytest.raises(ConfigError, match=message):
        Milestone.of(**wanted)
