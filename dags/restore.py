"""The Airflow DAG `headrace_restore`: take a job back to one of its checkpoints. Started by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param
from job_files import command, read_jobs, task_environment

EXPLANATION = """
Makes the state of checkpoint `checkpoint` the newest one, as a checkpoint of its own: nothing is deleted, so this
can be undone by restoring again. The job's next run goes on from there and reads its input again from there.
`headrace checkpoints JOB` lists what there is. Pause the job's DAG first.
"""

jobs = [job.name for job in read_jobs()[0]]

with DAG(
    dag_id="headrace_restore",
    description="Take a job back to one of its checkpoints",
    doc_md=EXPLANATION,
    schedule=None,
    start_date=datetime(2020, 1, 1, tzinfo=UTC),
    max_active_runs=1,
    default_args={"owner": "headrace", "retries": 0},
    tags=["headrace"],
    params={
        "job": Param(jobs[0] if jobs else None, enum=jobs or [None], description="The job to take back."),
        "checkpoint": Param(type="integer", minimum=0, description="Its id, as `headrace checkpoints JOB` shows it."),
        "why": Param(
            type="string",
            minLength=3,
            maxLength=500,
            description="Is kept with the checkpoint, for those who come after.",
        ),
    },
):
    # The values go in by the environment: text of a person must not become part of a command.
    BashOperator(
        task_id="restore",
        bash_command=command("restore", '"$JOB"', "--to", '"$CHECKPOINT"', "--why", '"$WHY"', "--yes"),
        env={
            **task_environment(),
            "JOB": "{{ params.job }}",
            "CHECKPOINT": "{{ params.checkpoint }}",
            "WHY": "{{ params.why }} (Airflow run {{ run_id }})",
        },
        append_env=True,
        execution_timeout=timedelta(hours=1),
    )
