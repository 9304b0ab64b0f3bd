"""Tasks that run the command `headrace`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType

from airflow.providers.standard.operators.bash import BashOperator

_NOTHING: Mapping[str, str] = MappingProxyType({})


def command_task(
    task_id: str, *words: str, home: Path, timeout: timedelta, environment: Mapping[str, str] = _NOTHING
) -> BashOperator:
    """Return a task that runs `headrace WORDS` on the jobs of `home`. The shell sees `environment` as well."""
    return BashOperator(
        task_id=task_id,
        bash_command=" ".join(("headrace", *words)),
        env={**task_environment(home), **environment},
        append_env=True,
        execution_timeout=timeout,
    )


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
