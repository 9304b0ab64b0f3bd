"""DAGs of jobs: the runs of one job, the maintenance of all jobs, and the restore of a job.

The DAG of a job runs it, with its check and its verification, and compacts its state when that is due. A person starts the DAG
`headrace_restore` by hand.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import (
    DAG,
    Asset,
    AssetAll,
    BaseOperator,
    CronDataIntervalTimetable,
    CronTriggerTimetable,
    Param,
    PartitionedAssetTimetable,
    TaskGroup,
)
from airflow.sdk.exceptions import DownstreamTasksSkipped

from headrace.airflow._command import CommandTask
from headrace.airflow._order_of_runs import EndTask, RefusedTask
from headrace.airflow._replay_requests import has_replay_dag
from headrace.airflow._results import Result
from headrace.airflow._run_operator import HeadraceRunOperator
from headrace.airflow._settings import deadline_of, job_params, run_settings, task_settings
from headrace.config import JobConfig, ScheduleConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


_OF_JOB = """
Runs the job `{name}` of `conf/jobs/{name}.yaml`.

- **run**: takes in what is new, on cluster `{cluster}`, for at most {budget}. It checks the job first, and verifies afterwards that checkpoint, state
  tables and sinks name the same versions: both are steps of its report. Runs follow one another; a run that failed holds up those after it
  until it is cleared (or retried with success).
- **compact**: rewrites the state tables, once in a number of runs; skipped by the others.
- **refused**: skipped, unless the run was refused (a param with a typo, an interval that cannot be taken in, a cancelled backfill).
  Then the other tasks are skipped, which holds up no run, and this one fails with the reason.
- **end**: nothing, without a process. It fails with `run` and `compact`, so that the DAG run does.

A backfill runs its data interval, whatever the job's mode. {taken_in} To go back to an earlier checkpoint: `headrace_restore`.
"""
_REGISTERED = (
    "An interval that was taken in already is done if its input is the same. If its input has changed, or if you asked for it again (cleared "
    "task, backfill), it is registered with the DAG `{name}_replay`, which computes it again on a branch."
)
_REFUSED = "An interval that was taken in already is refused if its input has changed, or if you asked for it again (cleared task, backfill)."
MOST_ACTIVE_RUNS = 100
"""Highest number of active runs. With one, runs that wait for a failed run would keep it from starting again when cleared."""

_UNSCHEDULED_START = datetime(2020, 1, 1, tzinfo=UTC)


def job_dag(job: JobConfig) -> DAG:
    """Return the DAG of a job, whose profile was loaded with `keep_references`."""
    schedule, params = job.schedule, job_params(job)
    with DAG(
        dag_id=job.job,
        description=job.description,
        doc_md=_explanation(job),
        schedule=_timetable(schedule) if schedule else None,
        start_date=schedule.starts_at() if schedule else _UNSCHEDULED_START,
        catchup=False,
        max_active_runs=MOST_ACTIVE_RUNS,
        default_args=task_settings(job),
        tags=["headrace", *job.tags],
        params=params,
        deadline=deadline_of(job),
        auto_register=False,
    ) as dag:
        run, after = _run(job, params.keys()), _after_run(job)
        run >> after >> RefusedTask()
        # A DAG run fails if one of its last tasks fails, and `refused` is skipped where a task before it failed.
        [run, after] >> EndTask(task_id="end", trigger_rule="none_failed")
    return dag


def _timetable(schedule: ScheduleConfig) -> Any:
    if schedule.after:
        return PartitionedAssetTimetable(assets=AssetAll(*(Asset.ref(name=name) for name in schedule.after)))
    if schedule.automatic:
        return CronDataIntervalTimetable(schedule.cron, timezone=schedule.timezone)
    # It imports Airflow's core, which other jobs' DAG files need not import.
    from headrace.airflow._timetable import IntervalsOnDemand

    return IntervalsOnDemand(schedule.cron, timezone=schedule.timezone)


def _explanation(job: JobConfig) -> str:
    taken_in = _REGISTERED.format(name=job.job) if has_replay_dag(job) else _REFUSED
    return _OF_JOB.format(name=job.job, cluster=job.cluster, budget=job.run.budget, taken_in=taken_in)


def _after_run(job: JobConfig) -> BaseOperator:
    """Return the task between `run` and `refused`. The next run waits for it (wait_for_downstream): it and a compaction both hold the job."""
    if not job.compaction.every:
        return EndTask(task_id="uncompacted")
    return CommandTask(
        task_id="compact",
        words=["maintain", job.job, "--state", f"--every={job.compaction.every}"],
        home=job.home,
        python=job.profile.python,
        execution_timeout=job.run.budget + job.run.grace,
        skip_if_held=True,
    )


def leave_out_idle_tasks(context: Context, result: Result | None) -> None:
    """Skip the tasks behind a run that have nothing to do, before Airflow starts a process for them.

    Raises `DownstreamTasksSkipped`, which ends the task with success; but not where the driver is elsewhere: then `compact` looks by itself.
    """
    if result is None:
        return
    task = context["task"]
    context["ti"].xcom_push(key="return_value", value=result)  # Airflow does that behind this function
    idle = {"refused"} if result.get("compaction_due") else {"refused", *task.downstream_task_ids} - {"end"}
    raise DownstreamTasksSkipped(tasks=sorted(idle))  # type: ignore[no-untyped-call]  # Airflow gives it no types


def _run(job: JobConfig, params: Collection[str]) -> HeadraceRunOperator:
    return HeadraceRunOperator(
        task_id="run",
        job=job,
        mode="{{ 'interval' if dag_run.run_type == 'backfill' else params.mode }}",
        budget="{{ params.budget or '' }}",
        max_batches="{{ params.max_batches or '' }}",
        parallelism="{{ params.parallelism or '' }}",
        finish="{{ params.finish }}",
        end_of_input="{{ params.end_of_input }}",
        known_params=params,
        skip_refused=True,
        check=True,
        verify=True,
        post_execute=leave_out_idle_tasks,
        # One run after another, in the order of logical dates, each with its compaction.
        max_active_tis_per_dag=1,
        depends_on_past=True,
        wait_for_downstream=True,
        # Airflow compares logical dates, and not every run has one.
        hold_after_failure=True,
        register_replay=has_replay_dag(job),
        **run_settings(job),
    )


MAINTENANCE = "headrace_maintenance"
_OF_MAINTENANCE = """
For each job: `headrace maintain --state` rewrites the state tables to one row per live entry, and
`headrace maintain --files` then removes the files that no checkpoint within the job's retention needs. Waits for a run of the job to end: both
take the job's lease.
"""
_TIMEOUT = timedelta(hours=2)


def maintenance_dag(jobs: Iterable[JobConfig]) -> DAG:
    """Return the DAG that compacts and vacuums `jobs`, one after the other."""
    with DAG(
        dag_id=MAINTENANCE,
        description="Compact and vacuum the tables of all jobs",
        doc_md=_OF_MAINTENANCE,
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
                        task_id=task_id,
                        words=["maintain", job.job, part],
                        home=job.home,
                        python=python,
                        execution_timeout=_TIMEOUT,
                    )
                    for task_id, part in (("compact", "--state"), ("vacuum", "--files"))
                )
                compact >> vacuum
    return dag


RESTORE = "headrace_restore"
_OF_RESTORE = """
Makes the state of checkpoint `checkpoint` the newest one, as a checkpoint of its own: nothing is deleted, so this
can be undone by restoring again. The job's next run continues from there, and reads later input again.
`headrace checkpoints JOB` lists the checkpoints. Pause the job's DAG first.
"""


def restore_dag(jobs: Sequence[JobConfig], home: Path) -> DAG:
    """Return the DAG that restores one of `jobs`."""
    with DAG(
        dag_id=RESTORE,
        description="Take a job back to one of its checkpoints",
        doc_md=_OF_RESTORE,
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
