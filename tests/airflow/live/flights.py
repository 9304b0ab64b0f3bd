"""Flights in a Delta table: a day was delivered half, and somebody corrects it by MERGE. Their job, and its scenarios."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from tests.airflow.live.browser import chromium, new_page
from tests.airflow.live.runs import Runs
from tests.airflow.live.services import Airflow
from tests.jobs.flight_days import FIRST_DAY, compare_with_raw_tables, write_flights
from tests.jobs.home import FLIGHTS, Home, merged

_DAYS: Final = 2
_HALF: Final = datetime(2013, 1, 1, tzinfo=UTC)
_WHOLE: Final = _HALF + timedelta(days=1)
Approve = Callable[[Runs, str], None]
"""Approves the result of a run of the replay DAG."""


class FlightsJob(Home):
    """The flights from a table with a partition for each day. The first day lacks the afternoon of an airline."""

    def __init__(self, folder: Path, name: str, weather: str) -> None:
        self.table = str(folder / "lake" / f"{name}_input")
        interval = {"by": "partition", "column": "day"}
        own = {
            "job": name,
            "schedule": {"cron": "0 0 * * *", "start": FIRST_DAY, "timezone": "UTC", "automatic": False},
            "run": {"budget": "5m", "grace": "1m", "retries": 1, "retry_delay": "2s"},
            "replay": {"promote": "approval", "show_rows": 10},
            "compaction": {"every": None},
            "sources": {
                "flight_events": {"format": "delta", "path": self.table, "interval": interval, "on_change": "skip"}
            },
            "sinks": {sink: {"path": f"lake/{name}/{sink}"} for sink in FLIGHTS["sinks"]},
            "services": {"weather": {"url": weather}},
        }
        super().__init__(folder, merged(FLIGHTS, own))
        self._files = folder / "input" / name

    def deliver(self) -> None:
        """Append a partition for each day: the first without what one airline has sent since noon."""
        write_flights(self._files, _DAYS)
        for file in sorted(self._files.iterdir()):
            rows = _of_day(file)
            noon = pa.scalar(_HALF + timedelta(hours=12), rows["emitted_at"].type)
            is_lost = pc.and_(pc.equal(rows["carrier"], "B6"), pc.greater_equal(rows["emitted_at"], noon))
            part = rows.filter(pc.invert(is_lost)) if file.stem == f"{_HALF:%Y-%m-%d}" else rows
            write_deltalake(self.table, part, mode="append", partition_by=["day"])

    def correct(self) -> None:
        """Merge the whole first day into the table: rows that are there are written again, the others added."""
        rows = _of_day(self._files / f"{_HALF:%Y-%m-%d}.parquet")
        rows = rows.take(np.unique(rows["seq"].to_numpy(), return_index=True)[1])
        same = f"t.day = '{_HALF:%Y-%m-%d}' AND t.seq = s.seq"
        merge = DeltaTable(self.table).merge(rows, same, source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()

    def differences(self) -> Any:
        """Compare the sinks with a computation from the raw tables of flights."""
        return compare_with_raw_tables(self.config(), _DAYS)


def _of_day(file: Path) -> Any:
    """Return the rows of a file, with the day of its name."""
    rows = pq.read_table(file)
    return rows.append_column("day", pa.repeat(pa.scalar(file.stem), len(rows)))


def flights_corrected_by_merge(airflow: Airflow, jobs: dict[str, Any]) -> None:
    """A day of flights is corrected by MERGE, cleared and approved: the tables then equal a computation from the raw data."""
    _corrected_flights(airflow, jobs["flights"], lambda replay, run: replay.answer(run, "approve", "Approve"))


def flights_approved_in_a_browser(airflow: Airflow, jobs: dict[str, Any]) -> None:
    """The same, where a person logs in, reads the page of the question and clicks its button."""
    program = chromium()

    def approve(replay: Runs, run: str) -> None:
        with new_page(airflow, program) as page:
            page.log_in()
            page.open(f"/dags/seen_flights_replay/runs/{quote(run)}/tasks/approve/required_actions")
            shown = page.read("Approve makes the result live")
            for text in ("2013-01-01 to 2013-01-02 and all later", "flight_board (sink)", "rewrite/MERGE of source"):
                assert text in shown
            page.picture("airflow-replay-approve", 1280, 1800)
            # Airflow repeats a question whose answer came too early: then there is a button again.
            airflow.wait_for("an answer", lambda: page.click("Approve") or replay.has_ended(run, "approve"), 60)
            page.read("Response received")
            replay.wait_for_task(run, "approve", "success")

    _corrected_flights(airflow, jobs["seen_flights"], approve)


def _corrected_flights(airflow: Airflow, job: FlightsJob, approve: Approve) -> None:
    runs, replay = Runs(airflow, job.name), Runs(airflow, f"{job.name}_replay")
    runs.unpause()
    runs.backfill_dates(_HALF, _WHOLE)
    days = [runs.of(day) for day in (_HALF, _WHOLE)]
    runs.assert_succeeds(*days)
    assert job.differences().total > 0

    job.correct()
    runs.clear(days[0], "run")
    runs.assert_succeeds(days[0])
    assert "rewrite/MERGE of source 'flight_events'" in runs.result(days[0])["changes"][0]
    run = replay.latest("asset_triggered")
    replay.question(run, "approve")
    approve(replay, run)
    replay.assert_succeeds(run)
    assert runs.note(days[0]).startswith("2013-01-01 to 2013-01-02: replayed and live: ")
    assert job.differences().total == 0, job.differences()
