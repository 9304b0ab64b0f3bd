"""Start drivers as separate processes, and wait for their end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from tests.jobs.home import PYTHONPATH, Home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KILLED = -signal.SIGKILL


class Drivers:
    """Starts drivers: Runs `python -m MODULE HOME OPTIONS`."""

    def __init__(self, module: str, variables: dict[str, str]) -> None:
        """`variables` are added to the environment of each driver."""
        self._module = module
        self._variables = {"PYTHONPATH": PYTHONPATH, **variables}

    @classmethod
    def on_spark(cls, spark: SparkSession) -> Drivers:
        """Return drivers that share the JVM of a session."""
        parameters = spark.sparkContext._gateway.gateway_parameters
        gateway = {"PYSPARK_GATEWAY_PORT": str(parameters.port), "PYSPARK_GATEWAY_SECRET": parameters.auth_token}
        return cls("tests.fault.driver", gateway)

    @classmethod
    def without_spark(cls) -> Drivers:
        """Return drivers of the local runner."""
        return cls("tests.jobs.local_runs", {})

    @contextmanager
    def started(
        self, home: Home, variables: dict[str, str], options: dict[str, Any]
    ) -> Iterator[subprocess.Popen[str]]:
        """Run a driver during the block; `options` are those of `RunOptions`."""
        wishes = msgspec.json.encode({"run_id": "driver", "parallelism": 2, **options}).decode()
        line = [sys.executable, "-m", self._module, str(home.folder), wishes]
        environment = {**os.environ, **self._variables, **variables}
        with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.kill()

    def run(self, home: Home, variables: dict[str, str] | None = None, **options: Any) -> tuple[int, str]:
        """Run a driver until it ends or is killed; return its exit code and its last output."""
        with self.started(home, variables or {}, options) as process:
            _, message = process.communicate(timeout=300)
        return process.returncode, message


def wait_until_asleep(process: subprocess.Popen[str]) -> None:
    """Wait until the process has received SIGSTOP."""
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it ended with {status} instead: {process.stderr.read() if process.stderr else ''}"


def wake(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Continue the process until its end; return its exit code and its output."""
    process.send_signal(signal.SIGCONT)
    _, message = process.communicate(timeout=300)
    return process.returncode, message
