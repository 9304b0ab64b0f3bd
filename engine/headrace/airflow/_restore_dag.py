"""The DAG `headrace_restore`: take a job back to one of its checkpoints. Started by hand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import DAG, Param

from headrace.airflow._command_task import command_task
from headrace.airflow._environment import task_environment
from headrace.config import JobConfig

RESTORE = "headrace_restore"
_EXPLANATION = """
Makes the state of checkpoint `checkpoint` the newest one, as a checkpoint of its own: nothing is deleted, so this
can be undone by restoring again. The job's next run goes on from there and reads its input again from there.
`headrace checkpoints JOB` lists what there is. Pause the job's DAG first.
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
        # The values go in by the environment: text of a person must not become part of a command.
        command_task(
            "restore",
            *("restore", '"$JOB"', "--to", '"$CHECKPOINT"', "--why", '"$WHY"', "--yes"),
            home=home,
            timeout=timedelta(hours=1),
            environment={
                # The folder of the program `headrace` that belongs to the job's cluster.
                "PATH": f"{{{{ {_programs(jobs)!r}.get(params.job, '') }}}}{task_environment(home)['PATH']}",
                "JOB": "{{ params.job }}",
                "CHECKPOINT": "{{ params.checkpoint }}",
                "WHY": "{{ params.why }} (Airflow run {{ run_id }})",
            },
        )
    return dag


def _programs(jobs: Sequence[JobConfig]) -> dict[str, str]:
    """Return the beginning of PATH for jobs that run in a Python of their own, by job."""
    return {job.job: f"{Path(job.profile.python).parent}{os.pathsep}" for job in jobs if job.profile.python is not None}


def _params(jobs: Sequence[str]) -> dict[str, Param]:
    return {
        "job": Param(jobs[0] if jobs else None, enum=[*jobs] or [None], description="The job to take back."),
        "checkpoint": Param(type="integer", minimum=0, description="Its id, as `headrace checkpoints JOB` shows it."),
        "why": Param(
            type="string",
            minLength=3,
            maxLength=500,
            description="Is kept with the checkpoint, for those who come after.",
        ),
    }
