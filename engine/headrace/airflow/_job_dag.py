"""The DAG of a job: check, run, verify, and compact every so many runs."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param

from headrace.airflow._command_task import command_task
from headrace.airflow._run_operator import HeadraceRunOperator
from headrace.config import DURATION_PATTERN, JobConfig

_EXPLANATION = """
Runs the job `{name}` of `conf/jobs/{name}.yaml`.

- **check**: the file, the tables' schemas and the services the job calls are as they should be.
- **run**: takes in what is new, on cluster `{cluster}`, for at most {budget}. Runs follow one another; a run that
  failed holds up those after it until it is cleared (or retried with success).
- **verify**: what the run left behind is consistent: checkpoint, state tables and sinks name the same versions.
- **compact**: rewrites the state tables, every so many runs.

A backfill runs its data interval, whatever the job's mode. An interval that was taken in already is refused, unless the
param `replay` is true: then it is taken in again, with all later ones. To go back to an earlier checkpoint: `headrace_restore`.
"""
_MOST_TASKS = 1024
_UNSCHEDULED_START = datetime(2020, 1, 1, tzinfo=UTC)


def job_dag(job: JobConfig) -> DAG:
    """Return the DAG of a job, whose profile was loaded with `keep_references`."""
    schedule = job.schedule
    with DAG(
        dag_id=job.job,
        description=job.description,
        doc_md=_EXPLANATION.format(name=job.job, cluster=job.cluster, budget=job.run.budget),
        schedule=CronDataIntervalTimetable(schedule.cron, timezone=schedule.timezone) if schedule else None,
        start_date=schedule.starts_at() if schedule else _UNSCHEDULED_START,
        catchup=False,
        max_active_runs=1,
        default_args={"owner": job.owner, "retries": 1, "retry_delay": job.run.retry_delay},
        tags=["headrace", *job.tags],
        params=_params(job),
        auto_register=False,
    ) as dag:
        verify = _command(job, "verify")
        _command(job, "check") >> _run(job) >> verify
        if job.compaction.every:
            verify >> _command(job, "compact", "--every", str(job.compaction.every))
    return dag


def _params(job: JobConfig) -> dict[str, Param]:
    return {
        "mode": Param(
            "auto",
            enum=["auto", "caught-up", "interval"],
            description=f"auto: as the job's file says ({job.mode.replace('_', '-')}); a backfill runs its interval.",
        ),
        "budget": Param(
            None,
            type=["null", "string"],
            pattern=DURATION_PATTERN,
            description=f"After this, what has not begun is left to the next run; such as 10m. At most, and if empty, {job.run.budget}.",
        ),
        "max_batches": Param(
            None, type=["null", "integer"], minimum=1, description="End after so many micro-batches; empty: no limit."
        ),
        "replay": Param(
            False,
            type="boolean",
            description="Run an interval again that was taken in already, and all later ones after it.",
        ),
        "finish": Param(
            False,
            type="boolean",
            description="At the end, call services once more for all that waits, and never again: then nothing waits.",
        ),
        "end_of_input": Param(
            False,
            type="boolean",
            description="At the end, declare that no more input comes: the last windows close, and later runs refuse more input.",
        ),
        "parallelism": Param(
            job.parallelism,
            type=["null", "integer"],
            minimum=1,
            maximum=max(_MOST_TASKS, job.parallelism or 0),
            description="Tasks per operator; empty: as the cluster's profile says. Results don't depend on it.",
        ),
    }


def _command(job: JobConfig, verb: str, *options: str) -> BashOperator:
    return command_task(verb, verb, job.job, *options, home=job.home, timeout=job.run.budget + job.run.grace)


def _run(job: JobConfig) -> HeadraceRunOperator:
    return HeadraceRunOperator(
        task_id="run",
        job=job,
        outlets=[_asset(job.job, sink, config.path) for sink, config in job.sinks.items()],
        # max_active_runs doesn't hold between backfills and other runs; these two do.
        max_active_tis_per_dag=1,
        depends_on_past=True,
    )


def _asset(job: str, sink: str, path: str) -> Asset:
    return Asset(
        name=f"{job}.{sink}",
        uri=path if "://" in path else f"file://{path}",
        group="headrace",
        extra={"job": job, "sink": sink},
    )
