"""Spark is killed under a running driver: exit code 13 with advice, and the next run gives the same results."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from headrace.errors import ClusterError
from tests.fault.conftest import ready
from tests.jobs.home import PYTHONPATH
from tests.jobs.outcome import assert_well_formed, outcome

pytestmark = pytest.mark.slow


def kill_java_of(process):
    for child in psutil.Process(process.pid).children(recursive=True):
        if child.name() == "java":
            child.kill()


@pytest.mark.slow
def test_jvm_killed_by_kernel_is_reported(tmp_path, undisturbed, run):
    home = ready(tmp_path)
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "PYTHONPATH": PYTHONPATH}
    line = [sys.executable, "-c", "from headrace.cli import main; main()", "run", "purchases"]
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, text=True) as process:
        lines = []
        for text in process.stderr:
            lines.append(text)
            if "batch: micro-batch 2" in text:
                kill_java_of(process)
    assert process.returncode == ClusterError.exit_code, "".join(lines)
    assert "ClusterError: Spark's JVM is gone in the tasks of" in "".join(lines)
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
    assert_well_formed(home.config())


@pytest.mark.slow
def test_repeatedly_dying_python_workers_are_reported(tmp_path, undisturbed, run, command):
    home = ready(tmp_path)
    ran = command(home, "run", "purchases", HEADRACE_KILL_AT="task.half")
    assert ran.returncode == ClusterError.exit_code, ran.stderr
    assert "ClusterError: Spark lost an executor or a Python worker in the tasks of" in ran.stderr
    run(home)
    assert outcome(home.config()) == outcome(undisturbed.config())
