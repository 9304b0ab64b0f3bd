"""One Airflow on PostgreSQL, and in long tests one on SQLite, for all ways to run a job; the scenarios run at the same time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.airflow.live.flights import FlightsJob
from tests.airflow.live.jobs import DailyJob, TableJob, intervals
from tests.airflow.live.services import PROJECT, Airflow
from tests.airflow.live.ways import SCENARIOS
from tests.jobs.home import LOCAL, Home
from tests.jobs.postgres import postgres
from tests.jobs.weather import weather_service

DAGS = {
    "days",
    "again",
    "corrected",
    "corrected_replay",
    "table",
    "table_replay",
    "hand",
    "held",
    "all",
    "board",
    "sensor",
    "chain",
    "typo",
    "cancelled",
    "looked",
    "flights",
    "flights_replay",
    "seen_flights",
    "seen_flights_replay",
}


@pytest.fixture(scope="session")
def airflow_database() -> None:
    """Replace the SQLite database that the other tests of Airflow use in their own process."""


@pytest.fixture(scope="module", params=["postgresql", pytest.param("sqlite", marks=pytest.mark.long)])
def database(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of an empty database: one for production, and the one of a laptop."""
    if request.param == "postgresql":
        with postgres() as address:
            yield address
    else:
        yield f"sqlite:///{tmp_path_factory.mktemp('database') / 'airflow.db'}?timeout=60"


@pytest.fixture(scope="module")
def jobs(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Return the jobs by name, with their first input files; new ones for each database."""
    del database
    folder = tmp_path_factory.mktemp("live") / "home"
    interval, caught_up = {"mode": "interval"}, {"mode": "caught_up"}
    jobs = {
        "days": DailyJob(folder, "days", **interval, compaction={"every": 2}),
        "again": DailyJob(folder, "again", **interval, replay={"dag": False}),
        "corrected": DailyJob(folder, "corrected", **interval, replay={"promote": "approval"}),
        "table": TableJob(folder, "table", **interval, replay={"promote": "approval"}),
        "hand": DailyJob(folder, "hand", **interval),
        "held": DailyJob(folder, "held", **interval),
        "all": DailyJob(folder, "all", **caught_up),
        "typo": DailyJob(folder, "typo", **caught_up),
        "cancelled": DailyJob(folder, "cancelled", **interval, compaction={"every": 2}),
        "looked": DailyJob(folder, "looked", **interval, compaction={"every": 2}, alerts={"lag": "> 1h"}),
        "board": DailyJob(folder, "board", **caught_up, schedule=None, cluster="spark"),
    }
    delivered = {
        "days": (5, 1),
        "again": (3, 1),
        "corrected": (4, 1),
        "table": (4, 1),
        "hand": (4, 1),
        "held": (3, 2),
        "all": (3, 2),
        "typo": (4, 3),
        "cancelled": (4, 3),
        "looked": (3, 1),
        "board": (3, 2),
    }
    for name, (oldest, newest) in delivered.items():
        jobs[name].deliver(intervals(oldest, newest))
    follower = {
        "job": "follower",
        "pipeline": "tests.jobs.follower:appends",
        "state": {"root": "state", "local": "local"},
        "sources": {"lines": {"format": "delta", "path": "lake/board/lines_by_item", "start": "snapshot"}},
        "sinks": {"seen": {"path": "lake/seen", "mode": "append"}},
    }
    home = Home(folder, follower)
    with weather_service() as weather:
        flights = {name: FlightsJob(folder, name, weather) for name in ("flights", "seen_flights")}
        for job in flights.values():
            job.deliver()
        home.write_cluster("spark", LOCAL)
        home.write_cluster("local", {**LOCAL, "connection": "without_spark"})
        yield {**jobs, **flights}


@pytest.fixture(scope="module")
def airflow(database: str, jobs: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """Start an Airflow that knows the DAGs of all jobs."""
    airflow = Airflow(tmp_path_factory.mktemp("airflow"), jobs["days"].folder, database)
    for file in ("dags/headrace_jobs.py", "dags/headrace_errors.py", "tests/airflow/live/own_dags.py"):
        shutil.copy(PROJECT / file, airflow.dags)
    with airflow.running():
        airflow.wait_for("the DAGs", lambda: {dag["dag_id"] for dag in airflow.api.get("/dags")["dags"]} >= DAGS, 300)
        yield airflow


@pytest.fixture(scope="module")
def scenarios(
    airflow: Airflow, jobs: dict[str, Any], request: pytest.FixtureRequest
) -> Iterator[dict[str, Future[None]]]:
    """Start all scenarios under test; return them by name. On SQLite one goes on after the other, as for one person."""
    chosen = {
        item.callspec.params.get("name")
        for item in request.session.items
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
    }
    with ThreadPoolExecutor(1 if airflow.is_on_sqlite else len(SCENARIOS)) as threads:
        yield {
            scenario.__name__: threads.submit(scenario, airflow, jobs)
            for scenario in SCENARIOS
            if scenario.__name__ in chosen
        }
