"""Held jobs: a task that finds its job held by another run waits, as long as a run may take."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowRescheduleException

from headrace import clock

if TYPE_CHECKING:
    from airflow.sdk import Context

LOOK_EVERY: Final = timedelta(minutes=1)


def wait_for_holder(context: Context, longest: timedelta, message: str, log: Any) -> None:
    """Reschedule the task for a minute later, unless it has waited for `longest` already.

    Raises `AirflowRescheduleException`, which uses up no retry.
    """
    now = datetime.fromtimestamp(clock.now() / 1000, UTC)
    first = context["ti"].get_first_reschedule_date(context)
    if first is not None and now - first > longest:
        return
    log.warning("%s The task looks again in %.0f s, and uses up no retry.", message, LOOK_EVERY.total_seconds())
    raise AirflowRescheduleException(now + LOOK_EVERY)  # type: ignore[no-untyped-call]  # Airflow gives it no types
