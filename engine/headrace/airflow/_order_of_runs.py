"""Order of runs: a failed run blocks later ones, also where Airflow's `depends_on_past` does not check."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowRescheduleException

from headrace import clock

if TYPE_CHECKING:
    from airflow.sdk import Context

FAILED = ["failed", "upstream_failed"]
LOOK_EVERY = timedelta(minutes=1)


def hold_behind_failed_run(context: Context, log: Any) -> None:
    """Reschedule the task for a minute later, repeatedly, while the same task of another run of the DAG has failed.

    With `wait_for_downstream`, a failed task right after that one counts as well, as it does for Airflow.

    `depends_on_past` compares logical dates, so it ignores runs without one: as the failed run and as the waiting one. Runs that a
    person starts to repair something do not wait: a backfill, a cleared task, a manual run for a logical date (Airflow's own rule
    applies to these). A failed task that is cleared, or marked as success, blocks no more: so a run that occupies the DAG's only
    place never waits for one that cannot start.

    Raises `AirflowRescheduleException`, which uses up no retry.
    """
    if mends(context):
        return
    task_instance = context["ti"]
    dag, tasks = task_instance.dag_id, _watched(context["task"])
    if not task_instance.get_ti_count(dag_id=dag, task_ids=tasks, states=FAILED):
        return
    states = task_instance.get_task_states(dag_id=dag, task_ids=tasks)
    others = sorted(run for run in states if run != task_instance.run_id)
    failed = [(run, task) for run in others for task in tasks if states[run].get(task) in FAILED]
    if failed:
        log.warning(_sentence(failed))
        # Airflow gives this class no types.
        raise AirflowRescheduleException(datetime.fromtimestamp(clock.now() / 1000, UTC) + LOOK_EVERY)  # type: ignore[no-untyped-call]


def _watched(task: Any) -> list[str]:
    """Return the tasks of another run whose failure blocks this one."""
    return [task.task_id, *(sorted(task.downstream_task_ids) if task.wait_for_downstream else ())]


def _sentence(failed: list[tuple[str, str]]) -> str:
    run, task = failed[0]
    more = len({run for run, _ in failed}) - 1
    others = f" (and of {more} more)" if more else ""
    return (
        f"task {task} of run {run}{others} failed, and holds up the runs after it. Clear it, or mark it as success, "
        f"and this run goes on within {LOOK_EVERY.total_seconds():.0f} s."
    )


def mends(context: Context) -> bool:
    """Return whether a person started this run to repair something: a backfill, a cleared task, a manual run for a logical date."""
    run = context["dag_run"]
    is_dated = run.run_type == "manual" and run.logical_date is not None
    return is_cleared(context) or is_dated or run.run_type == "backfill"


def is_cleared(context: Context) -> bool:
    """Return whether a person has cleared the task: that raises the number of its tries."""
    return bool(context["ti"].max_tries > (context["task"].retries or 0))


def asked_at(context: Context) -> datetime | None:
    """Return when a person asked to compute this run's interval again; None if nobody did, and the run came by itself.

    A cleared task is asked for by its first try after the clear. A retry belongs to the request of its DAG run, so that it goes on with
    what an earlier try has committed.
    """
    if not mends(context):
        return None
    task_instance = context["ti"]
    first_try = task_instance.max_tries - (context["task"].retries or 0) + 1
    is_first = first_try > 1 and task_instance.try_number <= first_try
    return task_instance.start_date if is_first else context["dag_run"].start_date
