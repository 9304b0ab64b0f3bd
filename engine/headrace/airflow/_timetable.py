"""Timetable of a job whose runs start by hand alone: it has data intervals, and starts none of them by itself.

Airflow plugin of Headrace: makes its timetable known to all services, and its view to the API server. The entry point
`airflow.plugins` names it.
"""

from __future__ import annotations

import logging
from functools import cached_property
from typing import Any

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


_log = logging.getLogger(__name__)


def _external_view(route: str, destination: str, path: str) -> dict[str, Any]:
    """Return a tab, or an entry of the menu. Airflow's page resolves the relative address against its own base, and fills in ids, quoted."""
    return {"name": "Headrace", "url_route": route, "destination": destination, "href": f"headrace/{path}"}


class HeadracePlugin(AirflowPlugin):
    """Register the timetable of jobs whose runs start by hand alone, and the view of jobs in Airflow's UI."""

    name = "headrace"
    timetables = [IntervalsOnDemand]  # noqa: RUF012  Airflow wants a list
    external_views = [  # noqa: RUF012  the same
        _external_view("headrace", "nav", ""),
        _external_view("headrace-job", "dag", "dags/{DAG_ID}"),
        _external_view("headrace-run", "dag_run", "dags/{DAG_ID}/runs/{RUN_ID}"),
        _external_view("headrace-task", "task_instance", "dags/{DAG_ID}/runs/{RUN_ID}"),
    ]

    @cached_property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """Return the application of the view. Only the API server asks: other services don't import what it needs."""
        try:
            from headrace.airflow._view import view
        except ImportError:  # the API server of another release of Airflow has to start, too
            _log.exception("the view of Headrace is left out: it does not fit this Airflow")
            return []
        return [{"app": view(), "url_prefix": "/headrace", "name": "Headrace"}]
