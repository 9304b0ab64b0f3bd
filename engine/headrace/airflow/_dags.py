"""DAGs of all jobs in a folder, and errors of job files that make none."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import DAG, get_parsing_context

from headrace.airflow._home import dag_file, find_home, given_job
from headrace.airflow._job_dags import MAINTENANCE, RESTORE, job_dag, maintenance_dag, restore_dag
from headrace.airflow._replay_dag import replay_dag
from headrace.airflow._replay_requests import has_replay_dag, replay_id
from headrace.config import JobConfig, list_jobs, load_job
from headrace.errors import ConfigError, HeadraceError

_log = logging.getLogger(__name__)


def headrace_dags(folder: str) -> dict[str, DAG]:
    """Return the DAGs of the jobs in `folder`, `headrace_maintenance` and `headrace_restore`, by their ids.

    A job has a second DAG, JOB_replay, unless its file says `replay.dag: false`, or a branch cannot take in its input again.
    `folder` ends in conf/jobs. A relative one starts at the home: $HEADRACE_HOME, else the nearest folder above the calling DAG
    file that holds it. Skips a job file that makes no DAG, with a warning; `check_job_files`, called in another DAG file, shows its
    error. When Airflow asks for one DAG of a job, as the process of a task does, makes no other. Raises `ConfigError` when there
    is no such folder.
    """
    home = find_home(folder, dag_file())
    wanted = get_parsing_context().dag_id
    # A task needs its own DAG alone, and each task parses the DAG file anew.
    built = _job_dags(home, wanted)
    for failure in built.failures:
        _log.warning("%s", failure)
    if wanted is not None and wanted in built.dags:
        return {wanted: built.dags[wanted]}
    return {**built.dags, MAINTENANCE: maintenance_dag(built.jobs), RESTORE: restore_dag(built.jobs, home)}


def headrace_dag(job: str, home: str | Path | None = None, cluster: str | None = None) -> DAG:
    """Return the DAG of one job, as `headrace_dags` makes it. Assign it to a global name of the DAG file.

    Airflow finds the job's replay DAG, if it has one, by itself. `home` is the folder that holds `conf/`, by default $HEADRACE_HOME,
    else the nearest one above the DAG file. Raises `ConfigError` for an unknown job, or a wrong file.
    """
    config = given_job(job, home, cluster)
    if has_replay_dag(config):
        replay_dag(config, auto_register=True)
    return job_dag(config)


def check_job_files(folder: str) -> None:
    """Raise one `ConfigError` that names every job file in `folder` that makes no DAG, and says why.

    Call it in a DAG file of its own: Airflow marks all DAGs of a file stale when that file has an import error.
    """
    if failures := _job_dags(find_home(folder, dag_file())).failures:
        raise ConfigError("\n".join(failures))


@dataclass(frozen=True, kw_only=True)
class _JobDags:
    """Jobs, their DAGs by id, and an error line for each job file that makes none."""

    jobs: list[JobConfig]
    dags: dict[str, DAG]
    failures: list[str]


def _jobs_of(dag_id: str, jobs: Collection[str]) -> list[str]:
    """Return the jobs that the DAG `dag_id` needs: its own, or all of them if it is of no single job."""
    of_one = [name for name in jobs if dag_id in {name, replay_id(name)}]
    return of_one or [*jobs]


def _job_dags(home: Path, wanted: str | None = None) -> _JobDags:
    jobs: list[JobConfig] = []
    dags: dict[str, DAG] = {}
    failures: list[str] = []
    names = list_jobs(home)
    for name in names if wanted is None else _jobs_of(wanted, names):
        try:
            job = _loaded(name, home)
            dags |= _valid_dags(job, names)
            jobs.append(job)
        except Exception as error:  # noqa: BLE001  Airflow raises many kinds; `check_job_files` shows them all
            kind = "" if isinstance(error, HeadraceError) else f"{type(error).__name__}: "
            failures.append(f"conf/jobs/{name}.yaml makes no DAG: {kind}{error}")
    return _JobDags(jobs=jobs, dags=dags, failures=failures)


def _loaded(name: str, home: Path) -> JobConfig:
    if name in {MAINTENANCE, RESTORE}:
        raise ConfigError(f"'{name}' is the name of a DAG that is always there; give the job another name")
    return load_job(name, home, keep_references=True)


def _valid_dags(job: JobConfig, jobs: Collection[str]) -> dict[str, DAG]:
    dags = {job.job: job_dag(job)}
    if has_replay_dag(job):
        replay = replay_id(job.job)
        if replay in jobs:
            raise ConfigError(
                f"'{replay}' is the name of its replay DAG, and of another job: rename that job, or set 'replay.dag: false' here"
            )
        dags[replay] = replay_dag(job)
    for dag in dags.values():
        dag.validate()  # type: ignore[no-untyped-call]
    return dags
