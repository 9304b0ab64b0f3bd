"""An Airflow instance for the tests of the DAGs: SQLite in a temporary folder, created once per session."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

PROJECT = Path(__file__).resolve().parent.parent.parent
AIRFLOW_HOME = Path(tempfile.mkdtemp(prefix="headrace-airflow-"))

# Airflow reads its environment when it is imported, which is before any fixture runs.
os.environ.update(
    {
        "AIRFLOW_HOME": str(AIRFLOW_HOME),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{AIRFLOW_HOME}/airflow.db",
        "AIRFLOW__CORE__DAGS_FOLDER": str(PROJECT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        # Each test has a home of its own: a DAG that another test stored a timestamp ago must not be used for it.
        "AIRFLOW__CORE__MIN_SERIALIZED_DAG_UPDATE_INTERVAL": "0",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }
)


@pytest.fixture(scope="session", autouse=True)
def airflow_database() -> Iterator[None]:
    """Create Airflow's tables, empty."""
    from airflow.utils.db import initdb

    initdb()
    logging.getLogger("alembic").setLevel(logging.WARNING)
    yield
    shutil.rmtree(AIRFLOW_HOME, ignore_errors=True)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a temporary project folder: a copy of conf/, with every path of the jobs below `tmp_path`.

    The pipelines and jars are the project's; HEADRACE_HOME points here during the test.
    """
    folder = tmp_path / "home"
    shutil.copytree(PROJECT / "conf", folder / "conf")
    (folder / "pipelines").symlink_to(PROJECT / "pipelines")
    (folder / "var").mkdir()
    if (PROJECT / "var" / "jars").exists():
        (folder / "var" / "jars").symlink_to(PROJECT / "var" / "jars")
    monkeypatch.setenv("HEADRACE_HOME", str(folder))
    return folder


@pytest.fixture
def edit_job(home: Path) -> Callable[..., None]:
    """Return a function that changes top-level keys of a job's file: `edit_job("flights", mode="interval")`."""

    def edit(job: str, /, **changes: object) -> None:
        path = home / "conf" / "jobs" / f"{job}.yaml"
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    return edit


@pytest.fixture
def edit_profile(home: Path) -> Callable[..., None]:
    """Return a function that adds Spark settings to a cluster profile: `edit_profile("local", {"spark.a": "b"})`."""

    def edit(profile: str, settings: Mapping[str, str]) -> None:
        path = home / "conf" / "clusters" / f"{profile}.yaml"
        content = yaml.safe_load(path.read_text())
        content["spark"].update(settings)
        path.write_text(yaml.safe_dump(content))

    return edit


@pytest.fixture
def assets_released() -> None:
    """Deactivate the assets of earlier tests, as Airflow's scheduler does.

    Each test has a home of its own, and Airflow refuses assets of one name in two places.
    """
    from airflow.models.asset import AssetActive
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(AssetActive))


@pytest.fixture
def dag_bag(home: Path) -> Callable[..., object]:
    """Return a function that parses a folder of DAG files anew, as Airflow's DAG processor does."""
    from airflow.dag_processing.dagbag import DagBag

    def parse(folder: Path = PROJECT / "dags") -> DagBag:
        return DagBag(dag_folder=str(folder), bundle_path=folder, bundle_name="dags-folder")

    return parse
