"""The Airflow DAG `headrace_maintenance`: compaction and vacuum of every job's tables, once a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, CronTriggerTimetable, TaskGroup
from job_files import command, read_jobs, task_environment

EXPLANATION = """
For each job: `headrace compact` rewrites the state tables to one row per live entry, and `headrace vacuum` then
removes the files that no checkpoint within the job's retention needs. Waits for a run of the job to end: both
take the job's lease.
"""

with DAG(
    dag_id="headrace_maintenance",
    description="Compact and vacuum the tables of all jobs",
    doc_md=EXPLANATION,
    schedule=CronTriggerTimetable("30 3 * * 0", timezone="UTC"),
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    # One job after another: maintenance must not take the machine from the runs.
    max_active_tasks=1,
    default_args={"owner": "headrace", "retries": 2, "retry_delay": timedelta(minutes=10)},
    tags=["headrace"],
):
    for job in read_jobs()[0]:
        with TaskGroup(job.name):
            compact, vacuum = (
                BashOperator(
                    task_id=verb,
                    bash_command=command(verb, job.name),
                    env=task_environment(),
                    append_env=True,
                    execution_timeout=timedelta(hours=2),
                )
                for verb in ("compact", "vacuum")
            )
            compact >> vacuum
