"""The demo with two days, then the documented backfill of the days after, in the Airflow of `make airflow`.

Then Ctrl-C.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from headrace import clock

PROJECT = Path(__file__).resolve().parents[2]
ENDS_WITHIN = 60
STARTS_WITHIN = 300.0
RUNS = 2
PORT = 8097

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return a project folder with all files of the demo, and an empty var/."""
    folder = tmp_path / "home"
    shutil.copytree(PROJECT / "conf", folder / "conf")
    shutil.copytree(PROJECT / "dags", folder / "dags")
    (folder / "pipelines").symlink_to(PROJECT / "pipelines")
    (folder / "var").mkdir()
    (folder / "var" / "jars").symlink_to(PROJECT / "var" / "jars")
    return folder


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    """Return this process's environment for that folder."""
    airflow = {"AIRFLOW_HOME": str(home / "var" / "airflow"), "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags")}
    python_path = os.pathsep.join(map(str, (PROJECT / "engine", PROJECT)))
    own = {"HEADRACE_HOME": str(home), "PYTHONPATH": python_path, "AIRFLOW_PORT": str(PORT), **airflow}
    return {**os.environ, **own}


@pytest.fixture
def airflow(home: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the processes of `make airflow` in a process group, as a terminal does."""
    command = [sys.executable, str(PROJECT / "setup" / "airflow.py")]
    process = subprocess.Popen(command, cwd=home, env=environment, start_new_session=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def test_documented_backfill_follows_the_demo(home, environment, request):
    run_demo(home, environment)
    process = request.getfixturevalue("airflow")
    unpause, backfill = documented_commands()

    until_succeeds(unpause, environment)
    # On SQLite it may fail while the scheduler writes: then one repeats it, as docs/airflow.md says.
    until_succeeds(for_days(backfill, "2013-01-03", "2013-01-03"), environment)
    wait = [sys.executable, "-c", WAIT_FOR_RUNS, str(RUNS + 1), str(STARTS_WITHIN)]
    ended = subprocess.run(wait, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]

    children = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(ENDS_WITHIN) == 0
    assert [child for child in children if child.is_running()] == []


WAIT_FOR_RUNS = """
import sys, time
from airflow.models import DagRun
from airflow.utils.session import create_session
wanted, deadline = ["success"] * int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
while True:
    with create_session() as session:
        states = [run.state for run in session.query(DagRun).filter(DagRun.dag_id == "flights")]
    if states == wanted:
        break
    if "failed" in states or time.monotonic() > deadline:
        sys.exit(f"the runs are {states}")
    time.sleep(1)
"""
"""Waits for this number of successful runs; fails if a run failed. One process, because Airflow's import takes seconds."""


def run_demo(home: Path, environment: dict[str, str]) -> None:
    code = f"from pipelines.flights.demo import Demo; from pathlib import Path; Demo(Path({str(home)!r}), runs={RUNS}).run()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=home, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "of which micro-batches of the job" in done.stdout
    (seconds,) = re.findall(r"of which micro-batches of the job\D+([\d.]+) s", done.stdout)
    assert float(seconds) > 0


def documented_commands() -> tuple[list[str], list[str]]:
    """Return the two commands of the section on backfills."""
    section = (PROJECT / "docs" / "airflow.md").read_text().partition("\n## Backfill\n")[2]
    block = re.search(r"```sh\n(.*?)```", section, re.DOTALL)
    assert block is not None
    lines = block[1].replace("\\\n", " ").splitlines()
    unpause, backfill = (shlex.split(line) for line in lines if line.startswith("airflow"))
    return unpause, backfill


def for_days(backfill: list[str], first: str, last: str) -> list[str]:
    """Return the command for other days: the documented commands follow ten days."""
    days = {"--from-date": first, "--to-date": last}
    return [days.get(before, word) for before, word in zip(["", *backfill], backfill, strict=False)]


def until_succeeds(command: list[str], environment: dict[str, str]) -> None:
    """Repeat a command until it succeeds."""
    deadline = clock.monotonic() + STARTS_WITHIN
    while (done := subprocess.run(command, env=environment, capture_output=True, text=True, check=False)).returncode:
        assert clock.monotonic() < deadline, done.stderr[-2000:]
        clock.sleep(1)


def test_documented_days_follow_those_of_the_demo():
    from pipelines.flights.demo import RUNS as DEMO_RUNS
    from pipelines.flights.demo import START

    _, backfill = documented_commands()
    first = backfill[backfill.index("--from-date") + 1]

    assert datetime.fromisoformat(first).replace(tzinfo=UTC) == START.replace(day=START.day + DEMO_RUNS)
