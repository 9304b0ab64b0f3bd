"""Refused DAG runs: they end as failed, and hold up no other run.

Airflow's `depends_on_past` lets a run start if the same task of the run before was skipped. So a task that is refused skips
itself, and by that all tasks after it; then the last task of the DAG, `refused`, fails with the reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from headrace.airflow._notes import write_note

if TYPE_CHECKING:
    from airflow.sdk import Context

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
        reasons = context["ti"].xcom_pull(task_ids=["check", "run"], key=REASON)
        for reason in reasons or ():
            if reason is not None:
                raise AirflowFailException(
                    f"{reason}\n(The other tasks are skipped, so that no run waits for this one.)"
                )
        raise AirflowSkipException("the tasks of this run were skipped by hand")


class EndTask(BaseOperator):
    """Do nothing. A DAG run fails if one of its last tasks fails, and `refused` does not fail with `verify`: this task does."""

    inherits_from_empty_operator = True

    def execute(self, context: Context) -> None:
        """Do nothing. Airflow doesn't even start a process for it."""
