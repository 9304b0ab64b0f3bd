"""Find the home of jobs from the place of a DAG file."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.config import home_folder
from headrace.errors import ConfigError

_JOBS = ("conf", "jobs")


def find_home(folder: str, dag_file: str) -> Path:
    """Return the folder above `folder`, which is a folder `conf/jobs`.

    A relative `folder` starts at $HEADRACE_HOME, else at the nearest folder above `dag_file` that holds it. The
    current folder plays no part: Airflow's workers run anywhere. Raises `ConfigError` when there is no such folder.
    """
    if Path(folder).parts[-2:] != _JOBS:
        raise ConfigError(f"'{folder}' must end in conf/jobs, where the command `headrace` looks for jobs")
    home = _start(folder, Path(dag_file)).joinpath(folder).parent.parent
    if not home.joinpath(*_JOBS).is_dir():
        raise ConfigError(f"there is no folder {home.joinpath(*_JOBS)}; {dag_file} makes its DAGs from the files in it")
    return home


def _start(folder: str, dag_file: Path) -> Path:
    if os.environ.get("HEADRACE_HOME"):
        return home_folder()
    # First the path that Airflow knows: a symbolic link may lead into a folder that has another name tomorrow.
    parents = [*dag_file.absolute().parents, *dag_file.resolve().parents]
    return next((parent for parent in parents if (parent / folder).is_dir()), dag_file.absolute().parent)
