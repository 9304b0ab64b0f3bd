"""An Airflow DAG per file in conf/jobs/: check, run, verify, and compact every so many runs."""

from __future__ import annotations

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Asset, CronDataIntervalTimetable, Param
from job_files import DURATION_PATTERN, Job, command, read_jobs, task_environment
from submit_job import SubmitJob

EXPLANATION = """
Runs the job `{name}` of `conf/jobs/{name}.yaml`.

- **check**: the file, the tables' schemas and the services the job calls are as they should be.
- **run**: takes in what is new, on cluster `{cluster}`, for at most {budget}. Runs follow one another; a run that
  failed holds up those after it until it is cleared (or retried with success).
- **verify**: what the run left behind is consistent: checkpoint, state tables and sinks name the same versions.
- **compact**: rewrites the state tables, every so many runs.

A backfill runs its data interval, whatever the job's mode. An interval that was taken in already is refused, unless the
param `replay` is true: then it is taken in again, with all later ones. To go back to an earlier checkpoint: `headrace_restore`.
"""


def make_dag(job: Job) -> DAG:
    """Return the DAG of a job."""
    with DAG(
        dag_id=job.name,
        description=job.description,
        doc_md=EXPLANATION.format(name=job.name, cluster=job.cluster.name, budget=job.budget),
        schedule=CronDataIntervalTimetable(job.cron, timezone=job.timezone) if job.cron else None,
        start_date=job.start,
        catchup=False,
        max_active_runs=1,
        default_args={"owner": job.owner, "retries": 1, "retry_delay": job.retry_delay},
        tags=["headrace", *job.tags],
        params=_params(job),
    ) as dag:
        check = _command("check", job, "check", job.name)
        run = SubmitJob(
            task_id="run",
            job=job,
            outlets=[_asset(job, sink, path) for sink, path in job.sinks.items()],
            # max_active_runs doesn't hold between backfills and other runs; these two do.
            max_active_tis_per_dag=1,
            depends_on_past=True,
        )
        verify = _command("verify", job, "verify", job.name)
        check >> run >> verify
        if job.compact_every:
            verify >> _command("compact", job, "compact", job.name, "--every", str(job.compact_every))
    return dag


def _params(job: Job) -> dict[str, Param]:
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
            description=f"After this, what has not begun is left to the next run; such as 10m. At most, and if empty, {job.budget}.",
        ),
        "max_batches": Param(
            None, type=["null", "integer"], minimum=1, description="End after so many micro-batches; empty: no limit."
        ),
        "replay": Param(
            False,
            type="boolean",
            description="Run an interval again that was taken in already, with all later ones, which are missing meanwhile.",
        ),
        "finish": Param(
            False,
            type="boolean",
            description="At the end, call services once more for all that waits, and never again: then nothing waits.",
        ),
        "parallelism": Param(
            job.parallelism,
            type=["null", "integer"],
            minimum=1,
            maximum=1024,
            description="Tasks per operator; empty: as the cluster's profile says. Results don't depend on it.",
        ),
    }


def _command(task_id: str, job: Job, *words: str) -> BashOperator:
    return BashOperator(
        task_id=task_id,
        bash_command=command(*words),
        env=task_environment(),
        append_env=True,
        execution_timeout=job.budget + job.grace,
    )


def _asset(job: Job, sink: str, path: str) -> Asset:
    return Asset(
        name=f"{job.name}.{sink}",
        uri=path if "://" in path else f"file://{path}",
        group="headrace",
        extra={"job": job.name, "sink": sink},
    )


# A file that can't be read is left to job_file_errors.py: an error here would take every other job's DAG down.
for each in read_jobs()[0]:
    globals()[f"dag_{each.name}"] = make_dag(each)
