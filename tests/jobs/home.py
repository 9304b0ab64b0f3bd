"""The project folder of a test: configuration, input, tables and local copies below one temporary folder."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any, Final

import yaml

from headrace.config import JobConfig, load_job
from headrace.provision.jars import DELTA

PROJECT: Final = Path(__file__).resolve().parents[2]
PYTHONPATH: Final = os.pathsep.join((str(PROJECT / "engine"), str(PROJECT)))
"""Where processes that tests start find the code of this tree."""
JARS: Final = (*DELTA.digests(),)
"""In var/jars, where `headrace setup` puts them."""

BUCKET: Final = 20

SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM in short tests on two cores: its thorough compiler costs more than it ever gives back."""

LOCAL: Final[dict[str, Any]] = {
    "master": "local[2,4]",
    "parallelism": 2,
    "spark": {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.executor.extraJavaOptions": SHORT_LIVED,
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.snapshotPartitions": 1,
        "spark.python.unix.domain.socket.enabled": True,
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
}
PURCHASES: Final[dict[str, Any]] = {
    "job": "purchases",
    "pipeline": "tests.jobs.purchases:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": BUCKET},
    "sources": {"purchases": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {
        "lines_by_item": {"path": "lake/lines_by_item", "mode": "merge"},
        "reminders": {"path": "lake/reminders", "mode": "append"},
    },
}
FLIGHTS: Final[dict[str, Any]] = {
    "job": "flights",
    "pipeline": "pipelines.flights:pipeline",
    "state": {"root": "state", "local": "local"},
    "sources": {"flight_events": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {
        "flight_board": {"path": "lake/flight_board", "mode": "merge"},
        "overdue_alerts": {"path": "lake/overdue_alerts", "mode": "append"},
        "hourly_departures": {"path": "lake/hourly_departures", "mode": "merge"},
    },
    "services": {"weather": {"url": "${WEATHER_URL:-http://127.0.0.1:9}"}},
}


class Home:
    """The folder, and a job in it. Changes of the configuration last until the next `configure`."""

    def __init__(self, folder: Path, job: dict[str, Any] = PURCHASES) -> None:
        self.folder = folder
        self.input = folder / "input"
        self.input.mkdir(parents=True, exist_ok=True)
        self._job = job
        self.name = str(job["job"])
        self.write_cluster("local", LOCAL)
        self.configure()

    def configure(self, changes: dict[str, Any] | None = None) -> None:
        """Write the job's file: its fixed part with `changes` merged in."""
        self._write("jobs", self.name, merged(self._job, changes or {}))

    def write_cluster(self, name: str, profile: dict[str, Any]) -> None:
        """Write a cluster profile; the jars that it names are in the project's folder."""
        jars = [str(PROJECT / "var" / "jars" / jar) for jar in profile.get("jars", JARS)]
        self._write("clusters", name, {**profile, "connectors": [], "jars": jars})

    def config(self, cluster: str | None = None) -> JobConfig:
        """Load the job as it is configured now."""
        return load_job(self.name, self.folder, cluster)

    def _write(self, kind: str, name: str, content: dict[str, Any]) -> None:
        path = self.folder / "conf" / kind / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(content), encoding="utf-8")


def merged(content: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return `content` with `changes` merged in, mapping by mapping."""
    result = copy.deepcopy(content)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(key), dict)
        result[key] = merged(result[key], value) if both else value
    return result
