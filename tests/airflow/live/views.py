"""A person looks at jobs in Airflow's UI: all of them, one beside its DAG, and a checkpoint beside its run."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from tests.airflow.live.browser import chromium, new_page
from tests.airflow.live.jobs import DailyJob, intervals, start_of
from tests.airflow.live.runs import Runs
from tests.airflow.live.services import Airflow

_WIDTHS: Final = (1280, 820, 390)


def jobs_looked_at_in_a_browser(airflow: Airflow, jobs: dict[str, DailyJob]) -> None:
    """Headrace is an entry of the menu, and a tab of each DAG, run and task; a foreign DAG gets one line."""
    program, runs = chromium(), Runs(airflow, jobs["looked"].name)
    runs.backfill(3, 2)
    runs.unpause()
    first, second = (runs.of(start_of(ago)) for ago in intervals(3, 2))
    runs.assert_succeeds(first, second, runs.of(start_of(1)))
    run = f"/dags/looked/runs/{quote(first)}"
    views = {
        "list": ("/plugin/headrace", "Jobs of Headrace"),
        "job": ("/dags/looked/plugin/headrace-job", "Job looked"),
        "run": (f"{run}/plugin/headrace-run", first),
        "task": (f"{run}/tasks/run/plugin/headrace-task", first),
        "foreign": ("/dags/sensor/plugin/headrace-job", "'sensor' is not a DAG of Headrace"),
    }
    with new_page(airflow, program) as page:
        page.log_in()
        for width in _WIDTHS:
            for name, (path, text) in views.items():
                page.resize(width)
                page.open(path)
                page.read_frame(text)
                assert not page.frame_is_too_wide(), (name, width)
                page.picture(f"airflow-view-{name}-{width}", width, 800)
        page.open(views["task"][0])
        page.read_frame(first)
        page.picture("airflow-view-task", 1100, 640)
        page.resize(1280)
        page.open(f"{run}/tasks/run")
        page.read("alert: job 'looked': lag is")
        page.picture("airflow-alert", 1280, 400)
        page.open("/plugin/headrace")
        page.read_frame("looked")
        page.follow_in_frame("looked")
        page.read_frame("Where the job is")
