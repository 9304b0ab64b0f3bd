"""DAG `headrace_restore`: take a job back to one of its checkpoints. Started by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from headrace.airflow._command_task import CommandTask
from headrace.config import JobConfig

RESTORE = "headrace_restore"
_EXPLANATION = """
Makes the state of checkpoint `checkpoint` the newest one, as a checkpoint of its own: nothing is deleted, so this
can be undone by restoring again. The job's next run continues from there, and reads later input again.
`headrace checkpoints JOB` lists the checkpoints. Pause the job's DAG first.
"""


def restore_dag(jobs: Sequence[JobConfig], home: Path) -> DAG:
    """Return the DAG that restores one of `jobs`."""
    with DAG(
        dag_id=RESTORE,
        description="Take a job back to one of its checkpoints",
        doc_md=_EXPLANATION,
        schedule=None,
        start_date=datetime(2020, 1, 1, tzinfo=UTC),
        max_active_runs=1,
        default_args={"owner": "headrace", "retries": 0},
        tags=["headrace"],
        params=_params([job.job for job in jobs]),
        auto_register=False,
    ) as dag:
        CommandTask(
            task_id="restore",
            words=[
                *("restore", "{{ params.job }}", "--to={{ params.checkpoint }}"),
                *("--why={{ params.why }} (Airflow run {{ run_id }})", "--yes"),
            ],
            home=home,
            python=f"{{{{ {_pythons(jobs)!r}.get(params.job, '') }}}}",
            execution_timeout=timedelta(hours=1),
        )
    return dag


def _pythons(jobs: Sequence[JobConfig]) -> dict[str, str]:
    """Return the Python of each job that has its own, by job."""
    return {job.job: job.profile.python for job in jobs if job.profile.python is not None}


def _params(jobs: Sequence[str]) -> dict[str, Param]:
    return {
        "job": Param(jobs[0] if jobs else None, enum=[*jobs] or [None], description="The job to take back."),
        "checkpoint": Param(type="integer", minimum=0, description="Its id, as `headrace checkpoints JOB` shows it."),
        "why": Param(
            type="string",
            minLength=3,
            maxLength=500,
            description="The reason, kept with the checkpoint.",
        ),
    }
