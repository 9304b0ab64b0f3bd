"""`headrace backfill-dag` against an Airflow that refuses for the moment, loses answers, and refuses for good."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace import clock
from headrace.airflow_api import AirflowApi
from headrace.cli.backfill_dag import DagBackfills, Days
from tests.jobs.faulty_api import faulty_api, passing_faults

SCHEDULE = 'mode: interval\nschedule: {cron: "@daily", start: 2013-01-01, timezone: Europe/Berlin}\n'
FIRST, END = datetime.fromisoformat("2013-01-10T00:00:00+01:00"), datetime.fromisoformat("2013-01-13T00:00:00+01:00")
NOW, EARLIER = "2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z"
OTHER = {"id": 7, "from_date": "2013-01-01T00:00:00Z", "to_date": "2013-01-02T00:00:00Z", "completed_at": None}


class Scheduler:
    """Backfills and their runs as Airflow keeps them. Each look lets a run go on; `refusals` answer the next requests for a backfill."""

    def __init__(self, *refusals, failing=(), others=(), looks_of_others=0):
        self.refusals, self.failing = list(refusals), failing
        self.backfills, self.runs, self.made = [*others], {}, []
        self.looks, self.looks_of_others, self.is_paused = 0, looks_of_others, False

    def __call__(self, method, path, body):
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match (method, parts.path.removeprefix("/api/v2").split("/")[1:]):
            case ("POST", ["backfills"]):
                return self._create(body)
            case ("PUT", ["backfills", number, "cancel"]):
                return self._cancel(int(number))
            case ("GET", ["backfills"]):
                self._tick()
                return 200, {"backfills": self.backfills[::-1]}
            case ("GET", ["backfills", number]):
                self._tick()
                return 200, next(own for own in self.backfills if own["id"] == int(number))
            case ("GET", ["dags", "demo"]):
                return 200, {"is_paused": self.is_paused}
            case ("GET", ["dags", "demo", "dagRuns"]):
                return 200, {"dag_runs": self._listed(query)}
            case ("GET", ["dags", "demo", "dagRuns", "~", "taskInstances"]):
                assert query["task_id"] == "run"
                return 200, {
                    "task_instances": [{**run, "note": f"note of {run['dag_run_id']}"} for run in self._listed(query)]
                }
        return 404, {"detail": f"no {method} {path}"}

    def _listed(self, query):
        first, last = (datetime.fromisoformat(query[f"logical_date_{bound}"]) for bound in ("gte", "lte"))
        own = [run for day, run in sorted(self.runs.items()) if first <= day <= last]
        return own[int(query["offset"]) :][: int(query["limit"])]

    def _create(self, body):
        if any(own["completed_at"] is None for own in self.backfills):
            return 409, {"detail": "There is already a running backfill for dag demo"}
        if self.refusals and (status := self.refusals.pop(0)):
            return status, {"detail": "Database is locked. Use PostgreSQL."}
        self.made.append(body)
        self.backfills.append(
            {
                "id": 11,
                "completed_at": None,
                "created_at": NOW,
                **{name: body[name] for name in ("from_date", "to_date")},
            }
        )
        day, last = (datetime.fromisoformat(body[name]) for name in ("from_date", "to_date"))
        while day <= last:
            name = f"backfill__{day:%Y-%m-%d}"
            self.runs[day] = {"dag_run_id": name, "logical_date": day.isoformat(), "state": "queued", "queued_at": NOW}
            day += timedelta(days=1)
        return 200, self.backfills[-1]

    def _cancel(self, number):
        (own,) = [backfill for backfill in self.backfills if backfill["id"] == number]
        if own["completed_at"] is not None:
            return 409, {"detail": "Backfill is already completed."}
        own["completed_at"] = "2026-01-01T00:00:00Z"
        return 200, own

    def _tick(self):
        self.looks += 1
        for run in self.runs.values():
            if run["state"] in {"queued", "running"}:
                is_bad = run["dag_run_id"] in self.failing
                run["state"] = "running" if run["state"] == "queued" else "failed" if is_bad else "success"
                return
        for own in self.backfills:
            if own is not OTHER or self.looks > self.looks_of_others:
                own["completed_at"] = own["completed_at"] or "2026-01-01T00:00:00Z"


@pytest.fixture
def airflow(home, monkeypatch):
    """Return a function that runs the command, split at blanks, against a scheduler."""
    from tests.unit.support.demo_job import JOB

    interval = JOB.replace("{path: events}", '{path: events, interval: "%Y-%m-%d", timezone: Europe/Berlin}')
    (home / "conf" / "jobs" / "demo.yaml").write_text(interval + SCHEDULE)

    def serve(headrace, words, scheduler, faults=()):
        with clock.installed(clock.VirtualClock()), faulty_api(scheduler) as server:
            monkeypatch.setenv("AIRFLOW_CONN_HEADRACE_AIRFLOW_API", f"http://bot:right@127.0.0.1:{server.server_port}")
            server.faults = list(faults)
            return headrace(words)

    return serve


def test_backfill_shows_each_day(airflow, headrace):
    scheduler = Scheduler()
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-13 --max-active-runs 2 --json", scheduler)
    (body,) = scheduler.made
    assert (body["dag_id"], body["max_active_runs"], body["reprocess_behavior"]) == ("demo", 2, "completed")
    assert (body["from_date"], body["to_date"]) == ("2013-01-10T00:00:00+01:00", "2013-01-12T23:59:59.999000+01:00")
    report = json.loads(result.stdout)
    assert (result.exit_code, report["outcome"], report["backfill"]) == (0, "done", 11)
    assert [(day["run_id"], day["state"], day["note"]) for day in report["days"]] == [
        (f"backfill__2013-01-{day}", "success", f"note of backfill__2013-01-{day}") for day in (10, 11, 12)
    ]
    shown = result.stderr.splitlines()
    assert [line.split()[-1] for line in shown if "2013-01-11" in line] == ["queued", "running", "success"]


def test_runs_of_earlier_backfills_are_left_out(airflow, headrace):
    scheduler = Scheduler()
    old = {"dag_run_id": "old", "logical_date": "2013-01-10T12:00:00+01:00", "state": "failed", "queued_at": EARLIER}
    scheduler.runs[datetime.fromisoformat(old["logical_date"])] = old
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-12 --json", scheduler)
    assert [day["run_id"] for day in json.loads(result.stdout)["days"]] == [
        "backfill__2013-01-10",
        "backfill__2013-01-11",
    ]


def test_failed_day_is_a_failed_check(airflow, headrace):
    scheduler = Scheduler(failing=["backfill__2013-01-11"])
    result = airflow(headrace, "backfill-dag 2013-01-10..2013-01-13", scheduler)
    assert result.exit_code == 1
    assert "backfill 11 of DAG 'demo' is over: 3 days, 1 of them failed" in result.stdout
    assert "headrace backfill-dag demo 2013-01-10..2013-01-13 --reprocess failed" in result.stdout


@pytest.mark.slow
@given(
    st.lists(st.sampled_from([429, 503, None]), max_size=4),
    st.lists(st.one_of(st.just(("works",)), passing_faults), max_size=20),
)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_one_backfill_despite_lost_answers(refusals, faults):
    scheduler, days = Scheduler(*refusals), Days(FIRST, END)
    with clock.installed(clock.VirtualClock()), faulty_api(scheduler) as server:
        server.faults = list(faults)
        backfills = DagBackfills(AirflowApi(server.url, "bot", "right"), "demo", 3600)
        runs = backfills.watched(backfills.make(days, 16, "completed"), days)
    assert len(scheduler.made) <= 1 + sum(fault[0] in {"closes after the work", "breaks off"} for fault in faults)
    assert [run["state"] for run in runs] == ["success"] * 3


def test_other_backfill_is_waited_for(airflow, headrace):
    scheduler = Scheduler(others=[dict(OTHER)])
    scheduler.backfills[0]["completed_at"] = None
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11", scheduler)
    assert (result.exit_code, len(scheduler.made)) == (0, 1)


def test_patience_with_another_backfill_ends(airflow, headrace):
    scheduler = Scheduler(others=[OTHER], looks_of_others=10**6)
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11 --patience 2m", scheduler)
    assert (result.exit_code, scheduler.made) == (3, [])
    assert "another backfill of DAG 'demo' is running, also after 120 s" in result.stderr


def test_same_command_goes_on_with_its_backfill(airflow, headrace):
    scheduler = Scheduler()
    detached = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-12 --detach", scheduler)
    assert (detached.exit_code, len(scheduler.made)) == (0, 1)
    again = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-12", scheduler)
    assert (again.exit_code, len(scheduler.made)) == (0, 1)


@pytest.mark.parametrize(("words", "outcome"), [("", "cancelled"), ("2013-01-10..2013-01-13", "cancelled")])
def test_running_backfill_is_cancelled(airflow, headrace, words, outcome):
    scheduler = Scheduler()
    airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-13 --detach", scheduler)
    result = airflow(headrace, f"backfill-dag demo {words} --cancel --json", scheduler)
    assert (json.loads(result.stdout)["outcome"], scheduler.backfills[0]["completed_at"] is None) == (outcome, False)
    assert (
        json.loads(airflow(headrace, "backfill-dag --cancel --json", scheduler).stdout)["outcome"] == "nothing_running"
    )


def test_backfill_of_other_days_is_not_cancelled(airflow, headrace):
    scheduler = Scheduler()
    airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-13 --detach", scheduler)
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-12 --cancel", scheduler)
    assert (result.exit_code, scheduler.backfills[0]["completed_at"]) == (2, None)
    assert "is not of 2013-01-10..2013-01-12" in result.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("demo", "the days are missing: FROM..TO"),
        ("demo 2013-01-10", "'2013-01-10' are no days"),
        ("demo 2013-01-10..2013-01-10", "TO is the day after the last one"),
        ("demo 2013-01-10..2013-01-09", "TO is the day after the last one"),
        ("demo monday..friday", "write FROM..TO"),
        ("demo 1..2..3", "write FROM..TO"),
        ("demo 2013-01-10..2013-01-11 --reprocess none", "(allowed: completed, failed)"),
        ("demo 2013-01-10..2013-01-11 --patience soon", "--patience"),
    ],
)
def test_bad_words_ask_airflow_nothing(airflow, headrace, words, reason):
    scheduler = Scheduler()
    result = airflow(headrace, f"backfill-dag {words}", scheduler)
    assert (result.exit_code, scheduler.looks) == (2, 0)
    assert reason in result.stderr


def test_paused_dag_is_refused(airflow, headrace):
    scheduler = Scheduler()
    scheduler.is_paused = True
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11", scheduler)
    assert (result.exit_code, scheduler.made) == (2, [])
    assert "airflow dags unpause demo" in result.stderr


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_refusal_for_good_is_said_once(airflow, headrace, status):
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11", Scheduler(status))
    assert result.exit_code == 2
    assert "Airflow refuses the backfill: POST http://127.0.0.1" in result.stderr
    assert "Database is locked. Use PostgreSQL." in result.stderr


def test_silent_airflow_is_a_service_that_is_down(airflow, headrace):
    faults = [("closes",)] * 10_000
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11 --patience 1m", Scheduler(), faults)
    assert result.exit_code == 4
    assert "Airflow has not answered as it should, also after 60 s" in result.stderr


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("", "has no schedule"),
        ('schedule: {cron: "@daily", start: 2013-01-01, after: [a.b]}', "has no backfills of such DAGs"),
    ],
)
def test_dag_without_days_is_refused(airflow, headrace, home, schedule, reason):
    from tests.unit.support.demo_job import JOB

    interval = JOB.replace("{path: events}", '{path: events, interval: "%Y-%m-%d"}')
    (home / "conf" / "jobs" / "demo.yaml").write_text(f"{interval}mode: interval\n{schedule}\n")
    result = airflow(headrace, "backfill-dag demo 2013-01-10..2013-01-11", Scheduler())
    assert result.exit_code == 2
    assert reason in result.stderr


@pytest.mark.parametrize("connection", [None, "", "{", "[]", '{"port": []}', "http://bot:pw@host:port"])
def test_bad_connection_is_named(headrace, home, monkeypatch, connection):
    job = home / "conf" / "jobs" / "demo.yaml"
    job.write_text(job.read_text() + SCHEDULE.removeprefix("mode: interval\n"))
    monkeypatch.delenv("AIRFLOW_CONN_HEADRACE_AIRFLOW_API", raising=False)
    if connection is not None:
        monkeypatch.setenv("AIRFLOW_CONN_HEADRACE_AIRFLOW_API", connection)
    with clock.installed(clock.VirtualClock()):
        result = headrace("backfill-dag demo 2013-01-10..2013-01-11 --patience 1s")
    assert result.exit_code in ({2} if connection != '{"port": []}' else {2, 4})
    assert "pw" not in result.stderr
