"""Timetable of a job whose runs start by hand alone: it has data intervals, and starts none of them by itself.

Airflow plugin of Headrace: makes its timetable known to all services. The entry point `airflow.plugins` names it.
"""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin
from airflow.timetables.base import DagRunInfo, DataInterval, TimeRestriction
from airflow.timetables.interval import CronDataIntervalTimetable


class IntervalsOnDemand(CronDataIntervalTimetable):
    """Data intervals of a cron expression for backfills, and for runs by hand. The scheduler starts no run.

    Use it with `catchup=False`: by that, the timetable tells the scheduler from a backfill, for which Airflow catches up.
    """

    def next_dagrun_info(
        self, *, last_automated_data_interval: DataInterval | None, restriction: TimeRestriction
    ) -> DagRunInfo | None:
        """Return the next interval of a backfill; None for the scheduler."""
        if not restriction.catchup:
            return None
        return super().next_dagrun_info(
            last_automated_data_interval=last_automated_data_interval, restriction=restriction
        )


class HeadracePlugin(AirflowPlugin):
    """Register the timetable of jobs whose runs start by hand alone."""

    name = "headrace"
    timetables = [IntervalsOnDemand]  # noqa: RUF012  Airflow wants a list
