"""Home of jobs: find it from the place of a DAG file, and load jobs from it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from headrace.config import JobConfig, home_folder, load_job
from headrace.errors import ConfigError

_JOBS = ("conf", "jobs")


def find_home(folder: str, dag_file: str) -> Path:
    """Return the home: the folder above the folder `conf/jobs` that `folder` names.

    A relative `folder` starts at $HEADRACE_HOME, else at the nearest folder above `dag_file` that holds it. The
    current folder does not matter: Airflow's workers run anywhere. Raises `ConfigError` when there is no such folder.
    """
    if Path(folder).parts[-2:] != _JOBS:
        raise ConfigError(f"'{folder}' must end in conf/jobs, where the command `headrace` looks for jobs")
    home = _start(folder, Path(dag_file)).joinpath(folder).parent.parent
    if not home.joinpath(*_JOBS).is_dir():
        raise ConfigError(f"there is no folder {home.joinpath(*_JOBS)}; {dag_file} makes its DAGs from the files in it")
    return home


def server_home() -> Path:
    """Return the home whose jobs Airflow's own services show: that of a DAG file in `[core] dags_folder`.

    Raises `ConfigError`, which says what to set, when there is none.
    """
    from airflow.configuration import conf

    dags = Path(conf.get("core", "dags_folder"))
    try:
        return find_home("conf/jobs", str(dags / "headrace_jobs.py"))
    except ConfigError as error:
        if os.environ.get("HEADRACE_HOME"):
            raise
        raise ConfigError(
            f"Headrace does not know its jobs: set HEADRACE_HOME, for Airflow's API server, to the folder that holds conf/jobs. "
            f"(No folder above {dags} holds one.)"
        ) from error


def _start(folder: str, dag_file: Path) -> Path:
    if os.environ.get("HEADRACE_HOME"):
        return home_folder()
    # First the path that Airflow knows: the target of a symbolic link may get another name later.
    parents = [*dag_file.absolute().parents, *dag_file.resolve().parents]
    return next((parent for parent in parents if (parent / folder).is_dir()), dag_file.absolute().parent)


def given_job(job: str | JobConfig, home: str | Path | None = None, cluster: str | None = None) -> JobConfig:
    """Return the job given to an operator in a DAG file, with unresolved references to the environment.

    A name is a file in `conf/jobs/` of `home`, by default $HEADRACE_HOME, else the nearest folder above the DAG file. `cluster`
    overrides the profile in the file. Raises `ConfigError` for an unknown job, or a wrong file.
    """
    if isinstance(job, JobConfig):
        return job
    folder = find_home("conf/jobs", dag_file()) if home is None else Path(home).expanduser().absolute()
    return load_job(job, folder, cluster, keep_references=True)


def dag_file() -> str:
    """Return the calling file: the nearest one on the stack that belongs neither to Headrace nor to Airflow.

    Raises `ConfigError` when there is no file, as in an interactive session.
    """
    frame = sys._getframe(1)  # noqa: SLF001  only the stack has the path of the DAG file
    while frame.f_globals.get("__name__", "").partition(".")[0] in {"headrace", "airflow"} and frame.f_back is not None:
        frame = frame.f_back
    file = frame.f_globals.get("__file__")
    if file is None:
        raise ConfigError(
            "the DAGs must be made in a DAG file: from its place the home is found. Or set HEADRACE_HOME, or give `home`"
        )
    return str(file)
