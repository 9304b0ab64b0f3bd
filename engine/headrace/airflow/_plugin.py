"""Airflow plugin of Headrace: makes its timetable known to all services. The entry point `airflow.plugins` names it."""

from __future__ import annotations

from airflow.plugins_manager import AirflowPlugin

from headrace.airflow._timetable import IntervalsOnDemand


class HeadracePlugin(AirflowPlugin):
    """Register the timetable of jobs whose runs start by hand alone."""

    name = "headrace"
    timetables = [IntervalsOnDemand]  # noqa: RUF012  Airflow wants a list
