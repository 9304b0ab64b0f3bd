"""The DAG of the flights job, run: Airflow, spark-submit, Spark, tables. One small slice of the input is used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.comparison import read_table

PROJECT = Path(__file__).resolve().parent.parent.parent
STARTS_WITHIN = 60


@pytest.fixture
def weather(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The weather service on a free port, as the job's file looks for it."""
    ready = tmp_path / "weather.url"
    log = (tmp_path / "weather.log").open("w")
    command = [sys.executable, "-m", "pipelines.flights.weather_service", "--port", "0", "--ready-file", str(ready)]
    with log, subprocess.Popen(command, cwd=PROJECT, stdout=log, stderr=log) as service:
        try:
            wait_for(ready, service)
            monkeypatch.setenv("WEATHER_URL", ready.read_text().strip())
            yield ready.read_text().strip()
        finally:
            service.terminate()


def wait_for(ready: Path, service: subprocess.Popen[bytes]) -> None:
    for _ in range(STARTS_WITHIN * 10):
        if ready.exists():
            return
        with pytest.raises(subprocess.TimeoutExpired):  # an end of the service is a failure
            service.wait(0.1)
    pytest.fail(f"the weather service didn't answer within {STARTS_WITHIN} s")


@pytest.fixture
def two_days(home: Path) -> Path:
    """The first two days of input in the project folder of the test."""
    events = home / "var" / "data" / "flights" / "events"
    command = [sys.executable, "-m", "pipelines.flights.events", "--out", str(events), "--to", "2013-01-02"]
    subprocess.run([*command, "--through", "2013-01-01"], cwd=PROJECT, check=True, capture_output=True)
    return events


@pytest.fixture
def pipes_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Close the pipe from spark-submit at once: the provider leaves it to the garbage collector, which warns."""
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    submit = SparkSubmitHook.submit

    def submit_and_close(hook: SparkSubmitHook, *arguments: object, **options: object) -> str | None:
        try:
            return submit(hook, *arguments, **options)
        finally:
            if hook._submit_sp is not None:
                hook._submit_sp.stdout.close()

    monkeypatch.setattr(SparkSubmitHook, "submit", submit_and_close)


@pytest.mark.usefixtures("assets_released", "pipes_closed")
def test_run_of_the_dag_fills_the_board(dag_bag, home, weather, two_days):
    dag = dag_bag().dags["flights"]

    run = dag.test(run_conf={"max_batches": 5})

    assert run.state == "success"
    board = read_table(str(home / "var" / "lake" / "flight_board"))
    assert board.num_rows > 500
    assert board.num_rows == len(set(board["flight_id"].to_pylist()))

    result = result_of(run)
    assert result["checkpoint"] == result["checkpoints"][-1]
    assert result["rows_in"] > 500
    assert result["sinks"]["flight_board"]["rows"] >= board.num_rows
    assert result["sinks"]["flight_board"]["version"] >= 1
    assert result["watermark"].startswith("2013-01-0")


def result_of(run):
    """Return the result of the task `run` of a DAG run."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session

    with create_session() as session:
        query = XComModel.get_many(key="return_value", dag_ids="flights", task_ids="run", run_id=run.run_id)
        (result,) = session.scalars(query)
        return XComModel.deserialize_value(result)
