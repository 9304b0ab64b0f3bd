"""Environment of processes that tasks start."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def task_environment(home: Path, python: str | None = None) -> dict[str, str]:
    """Return the variables that a task's child process needs beyond the environment of Airflow's own process.

    The child runs in `python`, by default in the Python that runs the task: `headrace`, `spark-submit` and Spark's Python come from
    that environment.
    """
    programs = str(Path(python or sys.executable).parent)
    return {
        "HEADRACE_HOME": str(home),
        "PATH": os.pathsep.join([programs, os.environ.get("PATH", os.defpath)]),
        "PYSPARK_PYTHON": python or os.environ.get("PYSPARK_PYTHON", sys.executable),
        "PYSPARK_DRIVER_PYTHON": python or os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable),
    }
