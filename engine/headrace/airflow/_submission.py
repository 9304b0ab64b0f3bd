"""Submission of a job to Spark: arguments of spark-submit, and its environment.

Arguments of spark-submit for a job: its cluster, the code and configuration to ship, and the words of the run.
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.airflow._words import option
from headrace.config import ClusterConfig, JobConfig
from headrace.provision.pyspark import daemon_settings


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


_DRIVER = Path(__file__).parents[1] / "cli" / "submit" / "driver.py"
_HOME = "headrace-home"
"""Folder of the driver's container in which `conf/` is unpacked."""


def submission(job: JobConfig) -> dict[str, Any]:
    """Return the arguments of `SparkSubmitOperator` from the job's cluster profile."""
    profile = job.profile
    return {
        "application": str(_DRIVER),
        "name": f"headrace.{job.job}",
        "conn_id": profile.connection or f"headrace_{profile.name}",
        "deploy_mode": profile.deploy_mode,
        "conf": _settings(profile),
        "jars": ",".join(profile.jar_files) or None,
        "py_files": ",".join(profile.py_files) or None,
        "files": ",".join(profile.files) or None,
        "archives": ",".join(profile.archives) or None,
        "env_vars": _environment(job),
        # Where the provider can find a driver again, the operator turns this on. Elsewhere a retry is a separate submission: if the
        # former driver still runs, the job's lease keeps the retry out.
        "durable": False,
    }


def run_words(job: JobConfig, options: Mapping[str, object]) -> list[str]:
    """Return the words of `headrace run`, with options that may be templates."""
    return ["run", job.job, option("cluster", job.cluster), *(option(name, value) for name, value in options.items())]


def packed_home(job: JobConfig, folder: Path) -> str:
    """Pack the job's file and its profile into an archive in `folder`; return the value for `--archives`.

    A driver in cluster mode has no file of this machine. References to the environment stay unresolved, so secrets stay where they
    are.
    """
    archive = folder / f"{_HOME}.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for file in (job.file, job.profile.file):
            packed.add(file, file.relative_to(job.home))
    return f"{archive}#{_HOME}"


def _settings(profile: ClusterConfig) -> dict[str, str]:
    """Return the profile's Spark settings. If executors have their own Python, the driver keeps the one of this machine."""
    master = profile.master if profile.connection is None else ""  # the connection has another one
    settings = daemon_settings(master, profile.py_files) | profile.spark
    if profile.deploy_mode == "client" and profile.python is not None and "spark.pyspark.python" in settings:
        settings.setdefault("spark.pyspark.driver.python", profile.python)
    return settings


def _environment(job: JobConfig) -> dict[str, str]:
    """Return the driver's environment. In cluster mode the provider passes it to the driver's container, which has none of this machine's paths."""
    if job.profile.deploy_mode == "cluster":
        return {"HEADRACE_HOME": f"./{_HOME}"}
    return task_environment(job.home, job.profile.python)
