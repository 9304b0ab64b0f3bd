"""One Spark session for all tests of this folder, and a project folder for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from headrace.run.options import Event, RunOptions, RunReport
from tests.jobs.flight_days import write_flights
from tests.jobs.home import FLIGHTS, PROJECT, Home
from tests.jobs.quick_syncs import without_waiting
from tests.jobs.weather import weather_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The session that a run makes for the local profile of `Home`."""
    from headrace.spark.session import session

    folder = tmp_path_factory.mktemp("session")
    # Python workers start in the folder that pytest was started in; the code of the job and of this tree is here.
    os.environ["PYTHONPATH"] = os.pathsep.join((str(PROJECT / "engine"), str(PROJECT)))
    started = session(Home(folder).config())
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def quick_syncs() -> Iterator[None]:
    """Wait for no disk in this process; tasks and runs in processes of their own do wait."""
    with without_waiting():
        yield


@dataclass
class Runner:
    """Runs jobs in the shared session and remembers their events."""

    spark: SparkSession
    events: list[Event] = field(default_factory=list)

    def __call__(self, home: Home, **options: Any) -> RunReport:
        """Run the home's job once; `options` are those of `RunOptions`."""
        from headrace.spark.runner import run_in

        self.events.clear()
        options = {"run_id": "test", **options}
        return run_in(self.spark, home.config(), RunOptions(**options), self.events.append)


@pytest.fixture(scope="session")
def run(spark: SparkSession) -> Runner:
    """Run a job in the shared session."""
    return Runner(spark)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A project folder with the job `purchases`, without input."""
    return Home(tmp_path)


@pytest.fixture
def new_home(tmp_path: Path) -> Callable[[str], Home]:
    """Make further project folders by name."""
    return lambda name: Home(tmp_path / name)


@pytest.fixture(scope="session")
def weather() -> str:
    """The URL of a weather service that serves all tests."""
    with weather_service() as url:
        yield url


@pytest.fixture(scope="session")
def flight_files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Create a folder with the events of some days, once per session."""
    folders: dict[int, Path] = {}

    def files(days: int) -> Path:
        if days not in folders:
            folders[days] = tmp_path_factory.mktemp(f"flights-{days}")
            write_flights(folders[days], days)
        return folders[days]

    return files


@pytest.fixture
def flights(tmp_path, weather, flight_files, monkeypatch) -> Callable[..., Home]:
    """A project folder with the job `flights`, reading the first days."""
    monkeypatch.setenv("WEATHER_URL", weather)

    def make(days: int, options: dict[str, Any] | None = None, **source: object) -> Home:
        home = Home(tmp_path, FLIGHTS)
        sources = {"flight_events": {"path": str(flight_files(days)), **source}}
        home.configure({"sources": sources, "execution": {"async-state": options or {}}})
        return home

    return make
