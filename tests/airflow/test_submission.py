"""A job in another Python environment or on another machine: the arguments of spark-submit and of the commands."""

from __future__ import annotations

import json
import os
import shlex
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

import headrace
from headrace.airflow import HeadraceCheckpointSensor, HeadraceRunOperator, HeadraceSavepointOperator, headrace_dags
from headrace.errors import ConfigError
from headrace.provision.class_archive import ClassArchive
from headrace.provision.pyspark import SUBMIT_OPTIONS

OTHER = "/opt/jobs/bin/python"


@pytest.fixture
def profile(home):
    """Return a function that changes keys of the job's cluster profile."""

    def change(**keys):
        path = home / "conf" / "clusters" / "local.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **keys}))

    return change


def submitted(run, monkeypatch):
    """Return the command that starts the driver, the options of spark-submit that are in it or that the driver gets, and its environment."""
    seen = {}

    def submit(hook, application):
        seen["command"] = hook._build_spark_submit_command(application)
        seen["environment"] = {**os.environ, **(hook._env or {})}
        seen["words"] = [*seen["command"], *shlex.split(seen["environment"].get(SUBMIT_OPTIONS, ""))]
        (archive,) = [word for word in seen["words"] if "headrace-home.tar.gz" in word] or [None]
        if archive is not None:
            with tarfile.open(archive.split(",")[-1].partition("#")[0]) as packed:
                seen["packed"] = {name: packed.extractfile(name).read().decode() for name in packed.getnames()}

    monkeypatch.setattr("airflow.providers.apache.spark.hooks.spark_submit.SparkSubmitHook.submit", submit)
    monkeypatch.setattr(HeadraceRunOperator, "_stored_report", lambda *_: None)
    monkeypatch.setattr(os, "environ", {**os.environ})
    run.allow_nested_operators = True
    run.application_args = ["run", "flights", "--budget="]
    context = {
        "ti": SimpleNamespace(xcom_push=lambda **_: None, try_number=1, max_tries=0),
        "task": run,
        "run_id": "r1",
        "dag_run": SimpleNamespace(
            conf=None, run_type="manual", logical_date=None, data_interval_start=None, data_interval_end=None
        ),
        "outlet_events": {},
    }
    run.outlets = []
    run.execute(context)
    return SimpleNamespace(**seen)


def absent_spark():
    raise ConfigError("pyspark is not installed")


def the_run(**options):
    with DAG("mine", schedule=None):
        return HeadraceRunOperator(task_id="run", job="flights", hold_after_failure=False, **options)


def after(words, option):
    return words[words.index(option) + 1]


def test_run_starts_in_the_profiles_python(home, profile, monkeypatch):
    profile(python=OTHER)
    run = submitted(the_run(home=home), monkeypatch)

    assert run.environment["PATH"].split(os.pathsep)[0] == "/opt/jobs/bin"
    assert (run.environment["PYSPARK_PYTHON"], run.environment["PYSPARK_DRIVER_PYTHON"]) == (OTHER, OTHER)


@pytest.mark.parametrize(
    ("variable", "env_vars", "expected"),
    [
        ("", None, "-Darchive"),
        ("-Dmine=1", None, "-Darchive -Dmine=1"),
        ("-Dmine=1", {"SPARK_SUBMIT_OPTS": "-Dmine=2"}, "-Darchive -Dmine=2"),
    ],
)
def test_spark_submit_gets_the_archive_of_classes(home, profile, monkeypatch, variable, env_vars, expected):
    monkeypatch.setattr(ClassArchive, "options", lambda _: "-Darchive")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", variable)
    profile()
    run = submitted(the_run(home=home, env_vars=env_vars), monkeypatch)

    assert run.environment["SPARK_SUBMIT_OPTS"] == expected


DAEMON = "spark.python.daemon.module=headrace.spark.worker_daemon"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"master": "local[2]"}, True),
        ({"master": "local[2]", "py_files": ["code.zip"]}, False),
        ({"master": "local[2]", "connection": "my_spark"}, False),
        ({"master": "spark://host:7077"}, False),
        ({"master": "local[2]", "spark": {"spark.python.daemon.module": "mine"}}, False),
    ],
)
def test_local_workers_are_forked_by_headrace(home, profile, monkeypatch, changes, expected):
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", '{"conn_type": "spark", "host": "spark://host:7077"}')
    profile(**changes)
    assert (DAEMON in submitted(the_run(home=home), monkeypatch).words) is expected


def test_spark_submit_of_another_python_gets_no_archive(home, profile, monkeypatch):
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr("headrace.provision.pyspark.spark_home", absent_spark)
    profile(python=OTHER)
    run = submitted(the_run(home=home), monkeypatch)

    assert "SPARK_SUBMIT_OPTS" not in run.environment
    assert run.environment["JAVA_HOME"]


@pytest.mark.parametrize("python", [None, OTHER])
def test_driver_starts_before_spark(home, profile, monkeypatch, python):
    profile(python=python)
    run = submitted(the_run(home=home), monkeypatch)

    program, driver, *words = run.command
    assert (program, Path(driver)) == (
        python or sys.executable,
        Path(headrace.__file__).parent / "cli/submit/driver.py",
    )
    assert (words[:2], "--master" in words) == (["run", "flights"], False)
    options = shlex.split(run.environment[SUBMIT_OPTIONS])
    assert (options[0], options[-1], "flights" in options) == ("--master", "pyspark-shell", False)
    assert after(options, "--deploy-mode") == "client"


def test_program_of_the_connection_starts_the_driver(home, profile, monkeypatch):
    connection = {"conn_type": "spark", "host": "local[1]", "extra": {"spark-binary": "spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", json.dumps(connection))
    profile(connection="my_spark")
    run = submitted(the_run(home=home), monkeypatch)

    assert (run.command[0], SUBMIT_OPTIONS in run.environment) == ("spark3-submit", False)
    assert run.command[-4:-1] == [str(Path(headrace.__file__).parent / "cli/submit/driver.py"), "run", "flights"]


def test_driver_elsewhere_is_submitted(home, profile, monkeypatch):
    profile(master="yarn", deploy_mode="cluster")
    run = submitted(the_run(home=home), monkeypatch)

    assert (run.command[0], SUBMIT_OPTIONS in run.environment) == ("spark-submit", False)


def test_settings_reach_spark_as_they_are(home, profile, monkeypatch):
    awkward = """it's "two words" $HOME `id` \\n"""
    profile(spark={"spark.app.text": awkward})
    options = shlex.split(submitted(the_run(home=home), monkeypatch).environment[SUBMIT_OPTIONS])

    assert f"spark.app.text={awkward}" in options


def test_relative_python_starts_at_the_home(home, profile, monkeypatch):
    profile(python="env/bin/python")
    run = submitted(the_run(home=home), monkeypatch)

    assert run.environment["PYSPARK_DRIVER_PYTHON"] == str(home / "env/bin/python")


def test_packed_environment_serves_only_the_executors(home, profile, monkeypatch):
    profile(
        python=OTHER,
        archives=["env.tar.gz#environment"],
        files=["tables.json"],
        py_files=["code.zip"],
        spark={"spark.pyspark.python": "./environment/bin/python"},
    )
    words = submitted(the_run(home=home), monkeypatch).words

    assert after(words, "--archives") == f"{home}/env.tar.gz#environment"
    assert (after(words, "--files"), after(words, "--py-files")) == (f"{home}/tables.json", f"{home}/code.zip")
    assert f"spark.pyspark.driver.python={OTHER}" in words


def test_configuration_travels_to_a_driver_elsewhere(home, profile, monkeypatch):
    monkeypatch.setenv("STORE_KEY", "s3cr3t")
    profile(
        master="yarn",
        deploy_mode="cluster",
        python=OTHER,
        archives=["env.tar.gz#environment"],
        storage={"AWS_SECRET_ACCESS_KEY": "${STORE_KEY}"},
    )
    run = submitted(the_run(home=home), monkeypatch)

    assert run.packed.keys() == {"conf/jobs/flights.yaml", "conf/clusters/local.yaml"}
    assert "s3cr3t" not in "".join(run.packed.values())
    assert after(run.words, "--archives").endswith("/headrace-home.tar.gz#headrace-home")
    assert after(run.words, "--archives").startswith(f"{home}/env.tar.gz#environment,")
    assert [word for word in run.words if "appMasterEnv" in word] == [
        "spark.yarn.appMasterEnv.HEADRACE_HOME=./headrace-home"
    ]
    assert not [word for word in run.words if word.startswith("--report")]
    assert run.environment["PATH"].startswith("/opt/jobs/bin:")


def test_commands_use_the_python_of_the_profile(home, profile):
    profile(python=OTHER)
    dags = headrace_dags("conf/jobs")

    tasks = [dags["flights"].get_task("compact"), *dags["headrace_maintenance"].tasks]
    assert {task.python for task in tasks} == {OTHER}
    for dag in dags.values():
        DagSerialization.to_json(dag)


def test_restore_takes_the_program_of_its_job(home, profile):
    profile(python=OTHER)
    task = headrace_dags("conf/jobs")["headrace_restore"].get_task("restore")

    def python_for(job):
        return task.render_template(task.python, {"params": {"job": job}})

    assert python_for("flights") == OTHER
    assert python_for("another") == ""


def test_sensor_and_operators_use_the_profiles_python(home, profile, tmp_path):
    program = tmp_path / "env" / "bin" / "headrace"
    program.parent.mkdir(parents=True)
    answer = {"job": "flights", "checkpoint": 4, "watermark": None, "interval_end": None, "error": None}
    program.write_text(f"#!/bin/sh\necho '{json.dumps({'jobs': [answer], 'checkpoint': 4})}'\n")
    program.chmod(0o755)
    profile(python=str(program.with_name("python")))
    with DAG("mine", schedule=None):
        sensor = HeadraceCheckpointSensor(task_id="wait", job="flights", home=home, checkpoint=4)
        savepoint = HeadraceSavepointOperator(task_id="keep", job="flights", home=home, savepoint="now", why="test")
    sensor.allow_nested_operators = savepoint.allow_nested_operators = True

    assert sensor.execute({})["checkpoint"] == 4
    assert savepoint.execute({"run_id": "r"})["checkpoint"] == 4
    assert sensor._trigger().serialize()[1]["python"] == str(program.with_name("python"))
