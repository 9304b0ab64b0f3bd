"""Intervals that Airflow starts again: retried, cleared, backfilled, with a deleted run, DAG or database. The engine runs in this process."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import msgspec
import pytest
from airflow.sdk import DAG
from airflow.sdk.execution_time.context import OutletEventAccessor

from headrace.airflow import HeadraceRunOperator, _run_operator
from headrace.airflow._driver_operator import CommandFailed, DriverOperator
from headrace.airflow._words import plain_words, value_of
from headrace.cli.run import plain_report
from headrace.errors import IntervalError
from tests.airflow.test_run_operator import FakeInstance
from tests.unit.support.backfilled_job import BackfilledJob, day_name, days

RETRIES = 2


class Airflow:
    """Runs the task of a job for a day, with the run id that Airflow gives to every run of that day."""

    def __init__(self, job):
        self.job, self.notes = job, []
        self.events = {}

    def day(self, number, *, run_type="scheduled", started=None, try_number=1, cleared_after=0, mode="interval"):
        """Run the task: `started` is when Airflow started the DAG run, `cleared_after` the tries before the task was cleared."""
        interval = days(number)
        start, end = (datetime.fromtimestamp(timestamp / 1000, UTC) for timestamp in (interval.start, interval.end))
        task = self._task(start, end, mode)
        now = self.now
        instance = FakeInstance(
            max_tries=RETRIES + cleared_after, try_number=cleared_after + try_number, start_date=now
        )
        run = SimpleNamespace(
            conf=None, run_type=run_type, logical_date=start, data_interval_start=start, data_interval_end=end
        )
        run.start_date = started or now
        self.events = {outlet: OutletEventAccessor(key=None) for outlet in task.outlets}
        run_id = f"scheduled__{start.isoformat()}"
        return task.execute(
            {"ti": instance, "task": task, "run_id": run_id, "dag_run": run, "outlet_events": self.events}
        )

    @property
    def now(self):
        return datetime.fromtimestamp(self.job.harness.clock.now() / 1000, UTC)

    def wait(self):
        self.job.harness.clock.advance(60_000)

    @property
    def requested(self):
        return [event.extra for asset, event in self.events.items() if asset.name.endswith("_replay") and event.extra]

    def _task(self, start, end, mode):
        with DAG("mine", schedule=None):
            task = HeadraceRunOperator(
                task_id="run", job=self.job.config, mode=mode, interval_start=start.isoformat(),
                interval_end=end.isoformat(), run_id="scheduled", register_replay=True, runner="local", retries=RETRIES,
            )  # fmt: skip
        task.allow_nested_operators = True
        return task


@pytest.fixture(scope="module")
def three_days():
    """Return a snapshot of a job that has taken in three days."""
    job = BackfilledJob()
    for number in range(3):
        job.write(number, ("ann", 1))
        start, end = days(number).start, days(number).end
        job.harness.run(mode="interval", interval_start=start, interval_end=end)
        job.harness.clock.advance(60_000)
    return job.harness.snapshot()


@pytest.fixture
def airflow(home, monkeypatch, three_days):
    actual = Airflow(BackfilledJob.restored(three_days))
    monkeypatch.setattr(_run_operator, "write_note", lambda _, text, __: actual.notes.append(text))
    monkeypatch.setattr("headrace.airflow._results._last_told", lambda *_: None)

    def report(task, _context):
        words = plain_words(task.application_args)
        timestamps = {name: value_of(name, words) for name in ("interval-start", "interval-end", "recompute")}
        options = {
            name.replace("-", "_"): round(datetime.fromisoformat(text).timestamp() * 1000)
            for name, text in timestamps.items()
            if text is not None
        }
        try:
            content = plain_report(actual.job.harness.run(mode=value_of("mode", words), **options))
            return msgspec.json.decode(msgspec.json.encode(content, enc_hook=str))
        except IntervalError as error:
            content = {"is_taken_in": error.is_taken_in, "changes": list(error.changes), "message": str(error)}
            raise CommandFailed(error.exit_code, {"error": "IntervalError", **content}) from None

    monkeypatch.setattr(DriverOperator, "report", report)
    return actual


@pytest.mark.parametrize("number", [0, 2])
@pytest.mark.parametrize("run_type", ["backfill", "scheduled"])
def test_corrected_day_is_registered_for_replay(airflow, number, run_type):
    """Somebody has deleted the DAG run, the DAG or the database: Airflow gives the new run the same id."""
    for correction in range(2):
        airflow.job.write(number, ("ann", 1), ("bob", correction))
        result = airflow.day(number, run_type=run_type)
        assert (result["registered"], len(airflow.requested)) == (True, 1)
        assert airflow.notes[-1].startswith("input changed (file ")
        assert "registered for replay" in airflow.notes[-1]


def test_backfill_of_a_done_day_is_registered(airflow):
    assert airflow.day(1, run_type="backfill")["registered"]
    assert airflow.notes[-1].startswith("asked for again, registered for replay")


def test_cleared_day_is_registered(airflow):
    assert airflow.day(1, cleared_after=1)["registered"]
    assert airflow.day(1, cleared_after=3)["registered"]


def test_clear_while_the_dag_run_runs_is_registered(airflow):
    """Airflow leaves the start of a DAG run as it is if a task of it is cleared before it has ended."""
    started = airflow.now
    airflow.job.write(3, ("ann", 1))
    airflow.wait()
    airflow.day(3, started=started)
    airflow.wait()
    assert airflow.day(3, started=started, cleared_after=1)["registered"]


@pytest.mark.parametrize("run_type", ["scheduled", "backfill", "manual"])
def test_retry_behind_its_commit_goes_on(airflow, run_type):
    started = airflow.now
    airflow.job.write(3, ("ann", 1))
    airflow.wait()
    airflow.day(3, run_type=run_type, started=started)
    airflow.wait()
    retry = airflow.day(3, run_type=run_type, started=started, try_number=2)
    assert (retry["stopped_because"], retry["rows_in"]) == ("done", 0)
    assert [timestamp[:10] for timestamp in retry["interval"]] == [day_name(3), day_name(4)]
    assert "its input is the same" in airflow.notes[-1]


@pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
def test_retry_finds_a_correction(airflow, run_type):
    started = airflow.now
    airflow.job.write(3, ("ann", 1))
    airflow.wait()
    airflow.day(3, run_type=run_type, started=started)
    airflow.job.write(3, ("ann", 1), ("bob", 2))
    assert airflow.day(3, run_type=run_type, started=started, try_number=2)["registered"]


def test_new_database_finds_done_days(airflow):
    """The scheduler starts the last day again, with the same run id."""
    assert airflow.day(2)["stopped_because"] == "done"


def test_manual_run_for_the_same_date_is_registered(airflow):
    assert airflow.day(1, run_type="manual")["registered"]


def test_promoted_correction_is_done_for_the_scheduler(airflow):
    airflow.job.write(1, ("ann", 1), ("bob", 2))
    asked = airflow.now
    assert airflow.day(1, run_type="backfill", started=asked)["registered"]
    airflow.wait()
    airflow.job.backfill(days(1), promote="automatic")
    assert airflow.day(1)["stopped_because"] == "done"
    assert airflow.day(1, run_type="backfill", started=asked, try_number=2)["stopped_because"] == "done"
    airflow.wait()
    assert airflow.day(1, run_type="backfill", started=airflow.now + timedelta(seconds=1))["registered"]
