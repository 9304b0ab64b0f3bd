"""Spark starts with the first micro-batch: a run without work starts no Spark."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from headrace import local
from headrace.errors import ClusterError, SparkNeededError
from headrace.log.checkpoint import Kind
from headrace.plan.loader import plan_of
from headrace.run.options import Event, RunOptions
from headrace.spark import session as session_module
from headrace.spark.runner import SparkOnDemand, run
from tests.jobs.home import LOCAL, Home
from tests.jobs.outcome import checkpoints
from tests.jobs.purchase_files import write_days


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


@pytest.fixture
def refusals(monkeypatch):
    """Make Spark fail to start; record each try."""
    tries = []

    def refuse(config):
        tries.append(config.job)
        raise ClusterError("Spark cannot be started")

    monkeypatch.setattr(session_module, "context", refuse)
    return tries


def run_once(home, **options):
    events = []
    report = run(home.config(), RunOptions(run_id="once", **options), events.append)
    return report, [event.kind for event in events]


def test_run_without_input_starts_no_spark(home, refusals):
    report, kinds = run_once(home)
    assert (report.stopped_because, report.checkpoints, refusals) == ("drained", [], [])
    assert "starting" not in kinds


def test_cluster_driver_starts_spark_at_once(home, refusals):
    home.write_cluster("local", {**LOCAL, "deploy_mode": "cluster"})
    with pytest.raises(ClusterError):
        run_once(home)
    assert refusals == ["purchases"]


def test_run_with_input_starts_spark(home, refusals):
    write_days(home.input, [0])
    with pytest.raises(ClusterError, match="cannot be started"):
        run_once(home)
    assert refusals == ["purchases"]


def test_failed_start_of_spark_frees_job(home, refusals):
    write_days(home.input, [0])
    with pytest.raises(ClusterError):
        run_once(home)
    assert [checkpoint.checkpoint_id for checkpoint in checkpoints(home.config())] == [0]
    (home.input / "2024-03-01.parquet").unlink()
    report, _ = run_once(home)
    assert report.stopped_because == "drained"


def test_one_context_serves_a_whole_run(home, monkeypatch):
    context = SimpleNamespace(uiWebUrl="http://node:4040")
    started = []

    def start(_):
        started.append(1)
        return context

    monkeypatch.setattr(session_module, "context", start)
    events: list[Event] = []
    spark = SparkOnDemand(home.config(), events.append)
    assert (started, events) == ([], [])
    spark.start()
    spark.start()
    assert started == [1]
    assert [event.kind for event in events] == ["starting", "spark_ui"]


def test_topics_and_steps_need_spark(home, refusals):
    """Other kinds of sources, and sources without a step, do not."""
    spark = SparkOnDemand(home.config(), print)
    assert (spark.topics(), spark.steps(plan_of(home.config().code))) == ({}, {})
    assert refusals == []


def test_run_without_spark_takes_nothing_in(home, refusals):
    write_days(home.input, [0])
    with pytest.raises(SparkNeededError, match="'purchases' has work"):
        run(home.config(), RunOptions(run_id="asks"), lambda _: None, may_start=False)
    assert (refusals, [row.kind for row in checkpoints(home.config())]) == ([], [Kind.INITIAL])
    report = local.run(home.config(), RunOptions(run_id="takes"), lambda _: None)
    assert (report.stopped_because, len(report.checkpoints)) == ("drained", 1)


def test_run_without_spark_ends_without_work(home, refusals):
    write_days(home.input, [0])
    local.run(home.config(), RunOptions(run_id="takes"), lambda _: None)
    before = checkpoints(home.config())
    report = run(home.config(), RunOptions(run_id="asks"), lambda _: None, may_start=False)
    assert (report.stopped_because, report.rows_in, report.checkpoint) == ("drained", 0, before[-1].checkpoint_id)
    assert (refusals, checkpoints(home.config())) == ([], before)
