"""Runs without Spark: results, refusals, and modules that they never load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace import logs
from headrace.errors import ConfigError, UserFunctionError
from headrace.local import runner
from headrace.run.options import RunOptions
from tests.jobs.home import LOCAL, PROJECT, Home
from tests.jobs.local_runs import HERE, IN_WORKERS, LocalRuns
from tests.jobs.outcome import assert_well_formed, checkpoints
from tests.jobs.purchase_files import day_name, purchases_of, write_days, write_rows
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand
from tests.unit.support.topic_job import TopicJob

DAYS = range(2)
WITHOUT_PYSPARK = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"pyspark", "py4j"}:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
from headrace.cli import main
main()
"""


@pytest.fixture
def home(tmp_path):
    result = Home(tmp_path)
    result.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    return result


@pytest.fixture
def run():
    return LocalRuns()


def command(home, *arguments):
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "JAVA_HOME": "/nowhere"}
    line = [sys.executable, "-c", WITHOUT_PYSPARK, *arguments]
    return subprocess.run(line, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("parallelism", "backend"), [(1, "rocksdb"), (2, "hashmap")])
def test_parallelism_and_backend_change_no_result(home, run, parallelism, backend):
    write_days(home.input, DAYS)
    report = run(home, parallelism=parallelism, backend=backend)
    assert (report.stopped_because, len(report.checkpoints)) == ("drained", len(DAYS))
    assert_as_by_hand(home.config(), by_hand(map(purchases_of, DAYS)))
    assert_well_formed(home.config())


@pytest.mark.slow
def test_run_without_pyspark_and_java(home):
    write_days(home.input, [0])
    ran = command(home, "run", "purchases", "--runner", "local")
    assert ran.returncode == 0, ran.stderr
    assert "committed: checkpoint 1" in ran.stderr
    assert_as_by_hand(home.config(), by_hand([purchases_of(0)]))
    again = command(home, "run", "purchases", "--runner", "local", "--json")
    assert (again.returncode, '"stopped_because":"drained"' in again.stdout.replace(" ", "")) == (0, True), again.stderr


@pytest.mark.slow
def test_profile_chooses_the_runner(home):
    home.write_cluster("local", {**LOCAL, "runner": "local"})
    write_days(home.input, [0])
    ran = command(home, "run", "purchases")
    assert ran.returncode == 0, ran.stderr
    refused = command(home, "run", "purchases", "--runner", "spark")
    assert "No module named 'pyspark'" in refused.stderr


def test_unknown_runner_is_refused(home):
    refused = command(home, "run", "purchases", "--runner", "flink")
    assert (refused.returncode, "--runner 'flink' is not allowed (allowed: spark, local)" in refused.stderr) == (
        2,
        True,
    )


def test_run_events_equal_those_on_spark(home, run):
    write_days(home.input, [0])
    run(home)
    assert [event.kind for event in run.events] == ["opened", "batch", "committed", "watermark"]


def test_user_errors_end_a_run(home, run):
    write_rows(home.input, day_name(0), [{**purchases_of(0)[0], "kind": "+I", "customer": "one", "note": "explode"}])
    with pytest.raises(UserFunctionError, match="operator 'customers'.*key \"one\""):
        run(home)
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(home.config())] == [0]


@pytest.mark.slow
@pytest.mark.parametrize("rows_worth_workers", [HERE, IN_WORKERS])
def test_user_code_prints_to_standard_error(home, capfd, rows_worth_workers):
    home.configure({"pipeline": "tests.jobs.talkative:pipeline"})
    write_days(home.input, [0])
    LocalRuns(rows_worth_workers)(home)
    printed = capfd.readouterr()
    assert (printed.out, "a purchase" in printed.err) == ("", True)


@pytest.mark.slow
@pytest.mark.parametrize("rows_worth_workers", [HERE, IN_WORKERS])
def test_printed_lines_know_their_micro_batch(home, capfd, monkeypatch, rows_worth_workers):
    monkeypatch.setenv(logs.FORMAT, "json")
    home.configure({"pipeline": "tests.jobs.talkative:pipeline", "sources": {"purchases": {"max_files_per_batch": 1}}})
    write_days(home.input, DAYS)
    with logs.on_stderr():
        LocalRuns(rows_worth_workers)(home)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert {(line["logger"], line["message"]) for line in lines} == {("stdout", "a purchase")}
    positions = {(line["job"], line["run"], line["checkpoint"]) for line in lines}
    assert positions == {("purchases", "test", checkpoint) for checkpoint in (1, 2)}


def refusal(config):
    """Return the runner's refusal of a job, which must have stored nothing."""
    with pytest.raises(ConfigError) as refused:
        runner.run(config, RunOptions(run_id="refused"), lambda _: None)
    assert not Path(config.job_folder).exists()
    return str(refused.value)


def test_topic_as_source_needs_spark():
    job = TopicJob()
    message = refusal(job.harness.config)
    assert "source 'rows' reads a topic of Kafka" in message
    assert "--runner spark" in message


def test_topic_as_sink_needs_spark(home):
    reminders = {"format": "kafka", "servers": "broker:9092", "topic": "reminders"}
    home.configure({"sinks": {"reminders": reminders}})
    assert "sink 'reminders' sends its rows to a topic of Kafka" in refusal(home.config())


def test_step_of_spark_needs_spark(tmp_path):
    job = {
        "job": "changes",
        "pipeline": "tests.jobs.spark_transforms:changes",
        "state": {"root": "state", "local": "local"},
        "watermark": {"bucket": 20},
        "sources": {"orders": {"path": "input"}},
        "sinks": {"seen": {"path": "lake/seen", "mode": "append"}},
    }
    assert "source 'orders' has a transform of Spark, .spark() or .sql()" in refusal(Home(tmp_path, job).config())


def test_driver_on_a_cluster_needs_spark(home):
    home.write_cluster("local", {**LOCAL, "deploy_mode": "cluster"})
    assert "cluster profile 'local' has deploy_mode cluster" in refusal(home.config())
