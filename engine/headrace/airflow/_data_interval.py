"""Check that a backfill's DAG run has the data interval of its logical date."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context


def refuse_foreign_interval(context: Context) -> None:
    """Raise `AirflowFailException` for a backfill that has taken over a manual DAG run.

    If a trigger or `airflow dags test` starts a run for a logical date, the run's interval ends at that date. A backfill of the same
    date clears that run and starts it again, with the same interval. If the scheduler or a backfill makes a run, its interval begins
    at the logical date.
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
