"""The environment of processes that tasks start."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def task_environment(home: Path) -> dict[str, str]:
    """Return what a task's child process needs beyond the environment of Airflow's own process.

    The child runs in the Python that runs the task, so that `headrace` and Spark's Python are this environment's.
    """
    programs = str(Path(sys.executable).parent)
    return {
        "HEADRACE_HOME": str(home),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
    }
