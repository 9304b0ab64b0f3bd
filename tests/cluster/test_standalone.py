"""A real Spark standalone master with two workers, on this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark
import pytest

from headrace import clock
from tests.jobs.home import LOCAL, PROJECT, Home
from tests.jobs.outcome import assert_well_formed, sink_rows
from tests.jobs.own_repository import BILLS, own_home
from tests.jobs.purchase_files import purchases_of, write_days
from tests.jobs.purchases_by_hand import assert_as_by_hand, by_hand

SPARK = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
STARTS_WITHIN = 90.0
DAYS = 3


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def daemon(log: Path, cls: str, *arguments: str) -> Iterator[None]:
    """A master or a worker, for the length of the block."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(SPARK)}
    with log.open("w") as output:
        line = [str(SPARK / "bin" / "spark-class"), cls, "--host", "127.0.0.1", *arguments]
        process = subprocess.Popen(line, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def wait_for(log: Path, text: str) -> None:
    deadline = clock.monotonic() + STARTS_WITHIN
    while text not in log.read_text():
        assert clock.monotonic() < deadline, f"no '{text}' in {log}:\n{log.read_text()[-2000:]}"
        clock.sleep(0.2)


@pytest.fixture(scope="module")
def master(tmp_path_factory) -> Iterator[str]:
    """The URL of a master that two workers of one core each have registered with."""
    folder = tmp_path_factory.mktemp("cluster")
    port, web = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.enter_context(daemon(folder / "master.log", MASTER, "--port", str(port), "--webui-port", str(web)))
        wait_for(folder / "master.log", "Starting Spark master")
        for number in range(2):
            log = folder / f"worker-{number}.log"
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            stack.enter_context(daemon(log, WORKER, *work, "--webui-port", "0", url))
            wait_for(log, "Successfully registered with master")
        yield url


def write_profile(home: Home, master: str, **settings: str) -> None:
    # The code of `purchases` is in this repository, not in the job's home.
    executors = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        "spark.cores.max": 2,
        "spark.executorEnv.PYTHONPATH": str(PROJECT),
    }
    spark = {**LOCAL["spark"], **executors, **settings}
    home.write_cluster("standalone", {**LOCAL, "master": master, "spark": spark})


@pytest.fixture
def cluster_home(tmp_path, master) -> Home:
    """The job on the cluster, with two executors."""
    home = Home(tmp_path)
    write_profile(home, master)
    home.configure({"cluster": "standalone", "sources": {"purchases": {"max_files_per_batch": 1}}})
    write_days(home.input, range(DAYS), rows=60)
    return home


def run(home: Home, *path: Path, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Run the home's job with these folders, and the package, on `PYTHONPATH`."""
    python_path = os.pathsep.join(map(str, (*path, PROJECT / "engine")))
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "PYTHONPATH": python_path}
    line = [sys.executable, "-c", "from headrace.cli import main; main()", "run", home.name]
    return subprocess.run(line, env=environment, cwd=cwd, capture_output=True, text=True, timeout=300, check=False)


def test_a_cluster_comes_to_the_same_as_a_loop_by_hand(cluster_home):
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert_as_by_hand(cluster_home.config(), by_hand(purchases_of(day, rows=60) for day in range(DAYS)))
    assert_well_formed(cluster_home.config())


def test_a_worker_killed_on_the_cluster_costs_a_task_not_the_run(cluster_home, master, tmp_path):
    once = tmp_path / "killed"
    profile = {"spark.executorEnv.HEADRACE_KILL_AT": "task.half", "spark.executorEnv.HEADRACE_KILL_ONCE": str(once)}
    write_profile(cluster_home, master, **profile)
    ran = run(cluster_home, PROJECT)
    assert ran.returncode == 0, ran.stderr
    assert once.exists()
    assert_as_by_hand(cluster_home.config(), by_hand(purchases_of(day, rows=60) for day in range(DAYS)))


@pytest.mark.parametrize("packed", [False, True], ids=["home", "py_files"])
def test_workers_find_code_of_another_repository(tmp_path, master, packed):
    package = "packed_store" if packed else "corner_store"
    home = own_home(tmp_path / "project", package, {**LOCAL, "master": master}, packed=packed)
    ran = run(home, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert sink_rows(home.config(), "bills") == BILLS
