"""A real Spark standalone cluster on this machine: a master and three workers, each a process with its own folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pyspark
import pytest

from headrace import clock
from tests.jobs.home import LOCAL, PROJECT, SHORT_LIVED, Home
from tests.jobs.ports import free_port
from tests.jobs.purchase_files import write_days

SPARK = Path(pyspark.__file__).parent
MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
EXECUTOR = "CoarseGrainedExecutorBackend"
STARTS_WITHIN = 240.0
WORKERS = 3
DAYS = 3
ROWS = 60
"""Purchases a day."""


@contextmanager
def daemon(log: Path, cls: str, *arguments: str, host: str = "127.0.0.1") -> Iterator[None]:
    """Run a master or a worker during the block."""
    own = {"SPARK_LOCAL_IP": host, "SPARK_HOME": str(SPARK), "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
    environment = {**os.environ, **own}
    with log.open("w") as output:
        line = [str(SPARK / "bin" / "spark-class"), cls, "--host", host, *arguments]
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


@pytest.fixture(scope="session")
def master(tmp_path_factory) -> Iterator[str]:
    """Return the URL of a master with three registered workers of one core each."""
    folder = tmp_path_factory.mktemp("cluster")
    port, web = free_port(), free_port()
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:
        stack.enter_context(daemon(folder / "master.log", MASTER, "--port", str(port), "--webui-port", str(web)))
        wait_for(folder / "master.log", "Starting Spark master")
        logs = [folder / f"worker-{number}.log" for number in range(WORKERS)]
        for number, log in enumerate(logs):
            work = ("--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"))
            # Spark starts no second attempt of a task on the host of the first.
            host = f"127.0.0.{number + 2}"
            stack.enter_context(daemon(log, WORKER, *work, "--webui-port", "0", url, host=host))
        for log in logs:
            wait_for(log, "Successfully registered with master")
        yield url


def write_profile(home: Home, master: str, settings: dict[str, object] | None = None, **profile: object) -> None:
    """Write the profile `standalone`; the code of `purchases` is in this repository, not in the job's home."""
    executors = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        "spark.cores.max": WORKERS,
        "spark.executorEnv.PYTHONPATH": str(PROJECT),
    }
    spark = {**LOCAL["spark"], **executors, **(settings or {})}
    home.write_cluster("standalone", {**LOCAL, "master": master, "spark": spark, **profile})


@pytest.fixture
def cluster_home(tmp_path, master) -> Home:
    """The job on the cluster, with an executor on each worker."""
    home = Home(tmp_path)
    write_profile(home, master)
    home.configure({"cluster": "standalone", "sources": {"purchases": {"max_files_per_batch": 1}}})
    write_days(home.input, range(DAYS), rows=ROWS)
    return home


def start(home: Home, *path: Path, cwd: Path = PROJECT) -> subprocess.Popen[str]:
    """Start the home's job with these folders, and the package, on `PYTHONPATH`."""
    python_path = os.pathsep.join(map(str, (*path, PROJECT / "engine")))
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "PYTHONPATH": python_path}
    line = [sys.executable, "-c", "from headrace.cli import main; main()", "run", home.name]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, env=environment, cwd=cwd, stdout=pipe, stderr=pipe, text=True)


def run(home: Home, *path: Path, cwd: Path = PROJECT) -> subprocess.CompletedProcess[str]:
    """Run the home's job to its end."""
    return ended(start(home, *path, cwd=cwd))


def ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Wait until a run has ended."""
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def sleeping_at(place: str, once: Path) -> dict[str, object]:
    """Return settings that put the first Python worker to sleep that reaches a place."""
    return {
        "spark.executorEnv.HEADRACE_KILL_AT": place,
        "spark.executorEnv.HEADRACE_KILL_ONCE": str(once),
        "spark.executorEnv.HEADRACE_KILL_WITH": "SIGSTOP",
    }


def asleep(once: Path, during: subprocess.Popen[str]) -> psutil.Process:
    """Wait for the Python worker that sleeps at its place (`HEADRACE_KILL_WITH=SIGSTOP`), and return it.

    Only the first worker to reach the place sleeps: the worker that creates the file `once`.
    """
    deadline = clock.monotonic() + STARTS_WITHIN
    while not (processes := [process for process in psutil.process_iter() if _sleeps(process, once)]):
        assert during.poll() is None, ended(during)
        assert clock.monotonic() < deadline, f"no task sleeps; {once} exists: {once.exists()}"
        clock.sleep(0.1)
    return processes[0]


def executor_of(worker: psutil.Process, program: str = EXECUTOR) -> psutil.Process:
    """Return the executor that a Python worker belongs to, or the JVM of another `program` that a driver belongs to."""
    return next(parent for parent in worker.parents() if any(program in word for word in parent.cmdline()))


def _sleeps(process: psutil.Process, once: Path) -> bool:
    try:
        is_stopped = process.status() == psutil.STATUS_STOPPED
        return is_stopped and process.environ().get("HEADRACE_KILL_ONCE") == str(once)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False
