"""Drivers in separate processes that can be killed, and the shared session for the runs afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.run.options import RunReport
from tests.fault.drivers import Drivers
from tests.jobs.home import PYTHONPATH, Home
from tests.jobs.local_runs import LocalRuns
from tests.jobs.purchase_files import write_days

# The fixtures of the spark tier: one session in this process, and folders to run jobs in.
from tests.spark.conftest import home, run, spark  # noqa: F401 - fixtures

DAYS = 3


@pytest.fixture(scope="session")
def undisturbed(run, tmp_path_factory) -> Home:  # noqa: F811 - the fixture
    """Return the outcome of the job when no process is killed."""
    result = ready(tmp_path_factory.mktemp("undisturbed"))
    run(result)
    return result


@pytest.fixture(scope="session")
def drivers(spark) -> Drivers:  # noqa: F811 - the fixture
    """Start drivers in separate processes that share the session's JVM."""
    return Drivers.on_spark(spark)


@dataclass(frozen=True)
class Runner:
    """One way to run jobs: drivers that can be killed, and runs in this process."""

    drivers: Drivers
    run: Callable[..., RunReport]


@pytest.fixture(params=["spark", "local"])
def runner(request) -> Runner:
    """Run jobs on Spark, or without it."""
    if request.param == "local":
        return Runner(Drivers.without_spark(), LocalRuns())
    return Runner(request.getfixturevalue("drivers"), request.getfixturevalue("run"))


def ready(folder: Path) -> Home:
    """Create a job with three days of input, one micro-batch per day."""
    result = Home(folder)
    result.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    write_days(result.input, range(DAYS), rows=60)
    return result


@pytest.fixture
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the `headrace` command in a separate process, in the folder of a home."""

    def call(at: Home, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HEADRACE_HOME": str(at.folder), "PYTHONPATH": PYTHONPATH, **variables}
        line = [sys.executable, "-c", "from headrace.cli import main; main()", *arguments]
        return subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)

    return call
