"""DAG `headrace_maintenance`: compaction and vacuum of every job's tables, once a week."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from airflow.sdk import DAG, CronTriggerTimetable, TaskGroup

from headrace.airflow._command_task import CommandTask
from headrace.config import JobConfig

MAINTENANCE = "headrace_maintenance"
_EXPLANATION = """
For each job: `headrace compact` rewrites the state tables to one row per live entry, and `headrace vacuum` then
removes the files that no checkpoint within the job's retention needs. Waits for a run of the job to end: both
take the job's lease.
"""
_TIMEOUT = timedelta(hours=2)


def maintenance_dag(jobs: Iterable[JobConfig]) -> DAG:
    """Return the DAG that compacts and vacuums `jobs`, one after the other."""
    with DAG(
        dag_id=MAINTENANCE,
        description="Compact and vacuum the tables of all jobs",
        doc_md=_EXPLANATION,
        schedule=CronTriggerTimetable("30 3 * * 0", timezone="UTC"),
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        # One job after another: maintenance must not take the machine from the runs.
        max_active_tasks=1,
        default_args={"owner": "headrace", "retries": 2, "retry_delay": timedelta(minutes=10)},
        tags=["headrace"],
        auto_register=False,
    ) as dag:
        for job in jobs:
            python = job.profile.python
            with TaskGroup(job.job):
                compact, vacuum = (
                    CommandTask(
                        task_id=verb, words=[verb, job.job], home=job.home, python=python, execution_timeout=_TIMEOUT
                    )
                    for verb in ("compact", "vacuum")
                )
                compact >> vacuum
    return dag
