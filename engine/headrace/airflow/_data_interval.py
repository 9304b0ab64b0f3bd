"""Refuse a backfill of a DAG run whose data interval is not the one of its logical date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context


def refuse_foreign_interval(context: Context) -> None:
    """Raise `AirflowFailException` for a backfill that has taken over a DAG run that was made by hand.

    Airflow gives a run that is started for a logical date, by a trigger or by `airflow dags test`, the interval before that
    date. A backfill of the date clears that run and starts it again, with the interval that it has. Those that the scheduler
    or a backfill has made begin at their logical date.
    """
    run = context["dag_run"]
    date, start, end = run.logical_date, run.data_interval_start, run.data_interval_end
    if run.run_type != "backfill" or None in {date, start} or date == start:
        return
    raise AirflowFailException(
        f"IntervalError: this backfill is for the interval that starts at {date:%Y-%m-%d %H:%M}, and has taken over the DAG run "
        f"'{context['run_id']}', which was made by hand ('airflow dags test', or a trigger for a logical date) and has the "
        f"interval {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}. Nothing was done. Delete that DAG run, in the UI or with the API, "
        "and make the backfill again."
    )
