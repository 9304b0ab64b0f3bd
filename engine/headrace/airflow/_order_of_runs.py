"""Order of a DAG's runs: which one waits, which one is cancelled, and which one is refused.

A failed run blocks later ones, also where Airflow's `depends_on_past` does not check. A task that finds its job held by
another run waits, as long as a run may take. Airflow stops only the queued DAG runs of a cancelled backfill, so the
running ones ask here.

A refused DAG run ends as failed, and holds up no other run. `depends_on_past` lets a run start if the same task of the
run before was skipped. So a refused task skips itself, and with itself all tasks after it; then the last task of the
DAG, `refused`, fails with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRescheduleException, AirflowSkipException

from headrace import clock
from headrace.airflow._notes import write_note
from headrace.airflow._rest import AirflowApi, ApiError, run_path

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


LOOK_FOR_JOB_EVERY: Final = timedelta(minutes=1)


def wait_for_holder(context: Context, longest: timedelta, message: str, log: Any) -> None:
    """Reschedule the task for a minute later, unless it has waited for `longest` already.

    Raises `AirflowRescheduleException`, which uses up no retry.
    """
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    first = context["ti"].get_first_reschedule_date(context)
    if first is not None and now - first > longest:
        return
    log.warning("%s The task looks again in %.0f s, and uses up no retry.", message, LOOK_FOR_JOB_EVERY.total_seconds())
    raise AirflowRescheduleException(now + LOOK_FOR_JOB_EVERY)  # type: ignore[no-untyped-call]  # Airflow gives it no types


def wait_until(text: str, message: str, log: Any) -> None:
    """Reschedule a task for the time at which its interval ends for good; a minute later at least, since clocks differ.

    Raises `AirflowRescheduleException`, which uses up no retry.
    """
    soon = datetime.fromtimestamp(clock.now() / 1000, UTC) + LOOK_FOR_JOB_EVERY
    time = max(soon, datetime.fromisoformat(text))
    log.warning("%s The task waits until %s, and uses up no retry.", message, time.isoformat(timespec="seconds"))
    raise AirflowRescheduleException(time)  # type: ignore[no-untyped-call]  # Airflow gives it no types


def wait_for_earlier(context: Context, message: str, log: Any) -> None:
    """Reschedule a task for a partition before which others are missing, for a minute later: assets tell of partitions in any order.

    Other runs do not wait: nobody may ever run what they lack. Raises `AirflowRescheduleException`, which uses up no retry.
    """
    if not is_of_partition(context):
        return
    seconds = LOOK_FOR_JOB_EVERY.total_seconds()
    log.warning(
        "%s The task waits for the earlier partitions, looks again in %.0f s, and uses up no retry.", message, seconds
    )
    raise AirflowRescheduleException(datetime.fromtimestamp(clock.now() / 1000, UTC) + LOOK_FOR_JOB_EVERY)  # type: ignore[no-untyped-call]  # Airflow gives it no types


def is_of_partition(context: Context) -> bool:
    """Return whether a DAG run is for a partition, and by that for an interval."""
    return getattr(context["dag_run"], "partition_key", None) is not None


def is_cancelled(context: Context, log: Any) -> bool:
    """Return whether the backfill of this DAG run was cancelled. False without the connection `headrace_airflow_api`.

    Airflow closes a backfill when all its runs have ended, or when somebody cancels it. So a backfill that was closed after
    this run was queued, and that has the run's date, was cancelled. A run that was cleared later was queued later: it runs.
    An error of the API is only logged as a warning.
    """
    run = context["dag_run"]
    if run.run_type != "backfill" or run.logical_date is None or (api := AirflowApi.connected()) is None:
        return False
    try:
        queued = _timestamp(api.get(run_path(context["ti"])).get("queued_at"))
        backfills = api.get("/backfills", dag_id=context["ti"].dag_id, order_by="-id").get("backfills")
        return queued is not None and any(
            _has_ended(backfill, run.logical_date, queued) for backfill in _mappings(backfills)
        )
    except ApiError as error:
        log.warning("whether the backfill was cancelled is unknown, the run goes on: %s", error)
        return False


def _has_ended(backfill: Mapping[str, Any], date: datetime, after: datetime) -> bool:
    """Return whether a backfill with this date was closed `after` a timestamp."""
    first, last, closed = (_timestamp(backfill.get(name)) for name in ("from_date", "to_date", "completed_at"))
    return first is not None and last is not None and closed is not None and first <= date <= last and closed > after


def _mappings(content: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in content if isinstance(entry, Mapping)] if isinstance(content, list) else []


def _timestamp(text: Any) -> datetime | None:
    """Return an aware timestamp; None for anything else than one in ISO 8601."""
    try:
        timestamp = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return timestamp if timestamp.tzinfo else timestamp.replace(tzinfo=UTC)


REASON: Final = "refused"
"""Key of the XCom with the reason."""

_BY_AIRFLOW: Final = frozenset({"scheduled", "backfill"})


def refuse(context: Context, reason: str, log: Any) -> NoReturn:
    """Refuse the DAG run: skip the task and those after it, with the reason in log and note. Raises `AirflowSkipException`."""
    log.error(reason)
    context["ti"].xcom_push(key=REASON, value=reason)
    write_note(context, reason, log)
    raise AirflowSkipException(reason)


def is_triggered(context: Context) -> bool:
    """Return whether a person, another DAG or an asset started this run: no schedule and no backfill."""
    return context["dag_run"].run_type not in _BY_AIRFLOW


class RefusedTask(BaseOperator):
    """Fail with the reason for which the DAG run was refused. Airflow skips it in all other runs, without a process."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"task_id": "refused", "trigger_rule": "all_skipped", "retries": 0, **kwargs})

    def execute(self, context: Context) -> None:
        """Raise `AirflowFailException` with the reason; `AirflowSkipException` if a person has skipped the tasks."""
        reasons = context["ti"].xcom_pull(task_ids=["run"], key=REASON)
        for reason in reasons or ():
            if reason is not None:
                raise AirflowFailException(
                    f"{reason}\n(The other tasks are skipped, so that no run waits for this one.)"
                )
        raise AirflowSkipException("the tasks of this run were skipped by hand")


class EndTask(BaseOperator):
    """Do nothing, after all other tasks or in the place of one that the job's file leaves out."""

    inherits_from_empty_operator = True

    def execute(self, context: Context) -> None:
        """Do nothing. Airflow doesn't even start a process for it."""
