"""The view of Headrace in Airflow's UI: an application below the API server, which reads and never writes.

Every route asks Airflow whether the user may read the DAG of the job. The job of a DAG has the DAG's id, or `JOB_replay` is its replay DAG.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi import Depends, FastAPI, Request
from fastapi.responses import HTMLResponse
from sqlalchemy import select

from headrace.airflow import _view_html
from headrace.airflow._home import server_home
from headrace.airflow._replay_requests import replay_id
from headrace.airflow._view_pages import Command, PageError, Pages
from headrace.config import JobConfig, list_jobs, load_job
from headrace.errors import ConfigError

_CHECKPOINTS: Final = ("checkpoints", "_delta_log")


@dataclass(frozen=True, kw_only=True)
class _Job:
    """The job of a DAG. `version` changes with each of its checkpoints; None where that cannot be seen from here."""

    name: str
    home: Path
    python: str | None = None
    version: str | None = None

    def command(self, *words: str) -> Command:
        """Return the command that makes a page about the job."""
        return Command(words=[*words, "--", self.name], home=self.home, python=self.python)


def view(pages: Pages | None = None) -> FastAPI:
    """Return the application. It has no page of its own API: that would need no permission."""
    kept = pages or Pages()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        kept.close()

    app = FastAPI(title="Headrace", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)

    app.state.pages = kept

    @app.exception_handler(ConfigError)
    async def say_what_to_set(_: Request, error: Exception) -> HTMLResponse:
        return _answer(_view_html.line(str(error)), 503)

    @app.exception_handler(PageError)
    async def say_why(_: Request, error: Exception) -> HTMLResponse:
        return _answer(_view_html.line(str(error)), getattr(error, "status", 502))

    @app.get("/")
    async def show_jobs(jobs: Annotated[_ReadableJobs, Depends(_readable_jobs)]) -> HTMLResponse:
        if not jobs.names:
            return _answer(_view_html.line("There is no job whose DAG you may read."))
        command = Command(words=["--all"], home=jobs.home)
        written = await kept.page(jobs.home, None, command)
        if "jobs" not in written.answer:
            raise PageError(
                f"The answer of '{command}' has no list of jobs: it is not the command of this release.",
                502,
            )
        return _answer(_view_html.jobs([row for row in written.answer["jobs"] if row["job"] in jobs.names], written.at))

    @app.get("/dags/{dag_id}", dependencies=[Depends(requires_access_dag("GET"))])
    async def show_job(job: Annotated[_Job, Depends(_job_of_dag)]) -> HTMLResponse:
        written = await kept.page((job.home, job.name), job.version, job.command())
        return _answer(written.html)

    @app.get(
        "/dags/{dag_id}/runs/{run_id:path}", dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.RUN))]
    )
    async def show_run(
        dag_id: str, run_id: Annotated[str, Depends(_known_run)], job: Annotated[_Job, Depends(_job_of_dag)]
    ) -> HTMLResponse:
        if dag_id != job.name:
            raise PageError(f"A replay commits on a branch: look at the runs of '{job.name}'.", 404)
        written = await kept.page((job.home, job.name, run_id), job.version, job.command(f"--run={run_id}"))
        return _answer(written.html)

    return app


def _answer(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html, status, headers=_view_html.HEADERS)


@dataclass(frozen=True)
class _ReadableJobs:
    home: Path
    names: frozenset[str]


# FastAPI calls what follows in threads: it reads folders and Airflow's database.


def _readable_jobs(user: GetUserDep) -> _ReadableJobs:
    """Return the jobs whose DAGs the user may read."""
    home = server_home()
    return _ReadableJobs(home, frozenset(list_jobs(home)) & get_auth_manager().get_authorized_dag_ids(user=user))


def _job_of_dag(dag_id: str, request: Request, user: GetUserDep) -> _Job:
    """Return the job of a DAG, from the list of jobs alone. Raises `PageError` for a DAG that has none."""
    home = server_home()
    name = _named(dag_id, list_jobs(home))
    if name is None:
        raise PageError(f"'{dag_id}' is not a DAG of Headrace: no job has this name.", 404)
    # Who may read JOB_replay may not always read JOB.
    requires_access_dag("GET", param_dag_id=name)(request, user)
    try:
        config = load_job(name, home, keep_references=True, checked=False)
    except ConfigError:
        return _Job(name=name, home=home)  # the command says what is wrong with the file
    return _Job(name=name, home=home, python=config.profile.python, version=_version_of_log(config))


def _named(dag_id: str, jobs: Sequence[str]) -> str | None:
    return dag_id if dag_id in jobs else next((job for job in jobs if dag_id == replay_id(job)), None)


def _version_of_log(job: JobConfig) -> str | None:
    """Return the last commit of the job's log of checkpoints, if it lies on this machine."""
    with suppress(OSError), os.scandir(Path(job.job_folder, *_CHECKPOINTS)) as files:
        return max((file.name for file in files if file.name.endswith(".json")), default=None)
    return None


def _known_run(dag_id: str, run_id: str) -> str:
    """Return the id of a run that Airflow knows. Raises `PageError` for all others."""
    # PostgreSQL refuses some of what a URL can hold.
    if run_id.isprintable():
        with create_session() as session:
            if session.scalar(select(DagRun.id).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)) is not None:
                return run_id
    raise PageError(f"DAG '{dag_id}' has no such run.", 404)
