"""Data intervals of DAG runs: of a trigger timetable, of a backfill that has taken over another run, and of time zones."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pendulum
from airflow.sdk import CronTriggerTimetable
from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import DAG, Context

    from headrace.config import JobConfig


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


def refuse_unknown_zone(dag: DAG, job: JobConfig) -> None:
    """Raise `AirflowFailException` if a DAG cuts time in a zone other than UTC, and a source does not say in which zone its files do.

    For a job with a `schedule`, the check of the job's file asks for the zone. A DAG of one's own has a schedule that the file does not
    know.
    """
    zone = str(getattr(dag.timetable, "timezone", dag.timezone))
    unknown = [name for name, source in job.sources.items() if source.interval is not None and source.timezone is None]
    if not unknown or ZoneInfo(zone).utcoffset(None) == timedelta(0):
        return
    raise AirflowFailException(
        f"ConfigError: the DAG is in {zone}, and source '{unknown[0]}' of job '{job.job}' does not say in which zone the times in its file names "
        f"are. Nothing was done. In {job.where(f'sources.{unknown[0]}')} write timezone: {zone}, or timezone: UTC."
    )


def interval_of_trigger(context: Context) -> tuple[str, str] | None:
    """Return the interval that ends with a run of a trigger timetable: from the previous trigger to this one. Else None.

    Airflow 3 makes a trigger timetable of a cron expression such as "@daily", and gives its runs an interval without length,
    in which no file is. The day of such a run is the one that a run of `CronDataIntervalTimetable` at this moment has.
    """
    start, end = context["dag_run"].data_interval_start, context["dag_run"].data_interval_end
    if end is None or start != end:
        return None
    timetable = context["dag"].timetable
    if not isinstance(timetable, CronTriggerTimetable):
        return None
    from airflow.timetables.interval import CronDataIntervalTimetable

    intervals = CronDataIntervalTimetable(timetable.expression, timetable.timezone)
    interval = intervals.infer_manual_data_interval(run_after=pendulum.instance(end))
    return interval.start.isoformat(), interval.end.isoformat()
