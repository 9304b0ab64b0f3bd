"""The demo's client of Airflow's API, and its backfill, while Airflow answers with errors, garbage, or not at all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.flights import demo_airflow
from pipelines.flights.airflow_api import PATIENCE, AirflowApi, ApiError
from pipelines.flights.demo_airflow import Airflow, StepFailedError
from tests.jobs.faulty_api import FOR_GOOD, all_faults, faulty_api, passing_faults
from tests.unit.support.fuzzing import examples

FIRST = datetime(2013, 1, 1, tzinfo=UTC)


class Thing(msgspec.Struct):
    name: str


class Time:
    """Passes when somebody sleeps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def monotonic(self) -> float:
        return self.seconds


def client(server, sentences, time=None, password="right"):  # noqa: S107
    time = time or Time()
    return AirflowApi(server.url, password, say=sentences.append, sleep=time.sleep, now=time.monotonic)


@given(st.lists(passing_faults, max_size=6))
@examples(25)
def test_passing_faults_are_waited_out(faults):
    sentences = []
    with faulty_api(lambda *_: (200, {"name": "x"})) as server:
        server.faults = list(faults)
        assert client(server, sentences).get("/things", Thing) == Thing("x")

    assert len(sentences) <= 1


@given(st.lists(all_faults, max_size=40), st.sampled_from(["get", "patch", "post", "post_once"]))
@examples(38)
def test_every_fault_ends_in_one_kind_of_error(faults, method):
    arguments = {"get": ("/things", Thing)}.get(method, ("/things", {"a": 1}, Thing))
    with faulty_api(lambda *_: (200, {"name": "x"})) as server:
        server.faults = list(faults)
        try:
            outcome = getattr(client(server, []), method)(*arguments)
        except ApiError as error:
            outcome = Thing(str(error))
    assert isinstance(outcome.name, str)


@pytest.mark.parametrize("status", FOR_GOOD)
def test_refusal_for_good_is_not_repeated(status):
    with faulty_api(lambda *_: (status, {"detail": "No such DAG. Look again."})) as server:
        with pytest.raises(ApiError, match=f"Airflow refuses GET /api/v2/things: {status} No such DAG$") as error:
            client(server, []).get("/things", Thing)
        assert (error.value.status, len(server.requests)) == (status, 2)


def test_patience_ends_with_a_sentence():
    time = Time()
    busy = "has not answered for 180 s. GET /api/v2/things: 503 Database is locked"
    locked = (503, {"detail": "Database is locked."})
    with faulty_api(lambda *_: locked) as server, pytest.raises(ApiError, match=busy):
        client(server, [], time).get("/things", Thing)
    assert PATIENCE - 10 < time.seconds <= PATIENCE


def test_wrong_password_is_refused_at_once():
    with faulty_api(lambda *_: (200, {"name": "x"})) as server:
        with pytest.raises(ApiError, match="POST /auth/token: 401 Invalid credentials"):
            client(server, [], password="wrong").get("/things", Thing)  # noqa: S106
        assert len(server.requests) == 1


def test_expired_token_is_renewed():
    answers = iter([(401, {"detail": "expired"}), (200, {"name": "x"})])
    with faulty_api(lambda *_: next(answers)) as server:
        assert client(server, []).get("/things", Thing) == Thing("x")
        assert [path for _, path, _ in server.requests].count("/auth/token") == 2


def test_no_proxy_is_asked(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with faulty_api(lambda *_: (200, {"name": "x"})) as server:
        assert client(server, []).get("/things", Thing) == Thing("x")


class Scheduler:
    """Backfills and runs as Airflow keeps them. `mishaps` are what becomes of the next requests for a backfill."""

    def __init__(self, mishaps):
        self.mishaps = list(mishaps)
        self.backfills, self.runs, self.looks = [], {}, 0

    def answer(self, method, path, body):
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        match (method, parts.path.removeprefix("/api/v2")):
            case ("POST", "/backfills"):
                return self._create(body)
            case ("GET", "/backfills"):
                self._tick()
                return 200, {"backfills": self.backfills}
            case ("GET", "/dags/flights/dagRuns") if "state" in query:
                return 200, {"dag_runs": [run for run in self.runs.values() if run["state"] == query["state"]]}
            case ("GET", "/dags/flights/dagRuns"):
                run = self.runs.get(datetime.fromisoformat(query["logical_date_gte"]))
                return 200, {"dag_runs": [run] if run else []}
            case ("PATCH", "/dags/flights"):
                return 200, {"dag_id": "flights"}
        return 200, {}

    def _create(self, body):
        if any(backfill["completed_at"] is None for backfill in self.backfills):
            return 409, {"detail": "There is already a running backfill for dag flights"}
        mishap, days = self.mishaps.pop(0) if self.mishaps else ("none", 0)
        backfill = {"id": len(self.backfills), "completed_at": None}
        first, last = (datetime.fromisoformat(body[name]) for name in ("from_date", "to_date"))
        wanted = [first + timedelta(days=n) for n in range((last - first).days + 1)]
        if mishap != "refused":
            self.backfills.append(backfill)
            for day in wanted[: days if mishap != "none" else None]:
                self.runs.setdefault(day, {"dag_run_id": f"backfill__{day:%Y-%m-%d}", "state": "queued"})
        return (200, backfill) if mishap == "none" else (503, {"detail": "Database is locked."})

    def _tick(self):
        """Let a run end, and close a backfill without unfinished runs, as the scheduler does now and then."""
        self.looks += 1
        unfinished = [run for run in self.runs.values() if run["state"] != "success"]
        if unfinished and self.looks % 3 == 0:
            unfinished[0]["state"] = "success"
        elif not unfinished and self.looks % 4 == 0:
            for backfill in self.backfills:
                backfill["completed_at"] = "2026-01-01T00:00:00Z"


mishaps = st.tuples(st.sampled_from(["refused", "half done"]), st.integers(0, 2))


@given(st.lists(mishaps, max_size=4), st.lists(st.one_of(st.just(("works",)), passing_faults), max_size=25))
@examples(31)
def test_each_day_gets_a_run_despite_losses(kept_mishaps, faults):
    time, scheduler, sentences = Time(), Scheduler(kept_mishaps), []
    days = [FIRST + timedelta(days=n) for n in range(3)]
    with pytest.MonkeyPatch.context() as patch, faulty_api(scheduler.answer) as server:
        patch.setattr(demo_airflow, "time", time)
        server.faults = list(faults)
        airflow = Airflow(SimpleNamespace(poll=lambda: None), Path("none.log"), Path("none.url"), sentences.append)
        airflow.__dict__["_api"] = client(server, sentences, time)
        airflow.start_backfill("flights", days[0], days[-1])
        runs = [airflow._run_of("flights", day, days[-1]) for day in days]

    assert runs == [f"backfill__{day:%Y-%m-%d}" for day in days]


def test_dead_airflow_is_reported_at_once():
    with faulty_api(lambda *_: (503, {})) as server:
        airflow = Airflow(SimpleNamespace(poll=lambda: 1), Path("none.log"), Path("none.url"), print)
        airflow.__dict__["_api"] = AirflowApi(server.url, "right", say=print, check=airflow._check_runs)
        with pytest.raises(StepFailedError, match="Airflow ended"):
            airflow.start_backfill("flights", FIRST, FIRST)


def test_unknown_dag_is_no_failure_and_refusals_are():
    answers = iter([(404, {"detail": "no"}), (403, {"detail": "not allowed"})])
    with faulty_api(lambda *_: next(answers)) as server:
        airflow = Airflow(SimpleNamespace(poll=lambda: None), Path("none.log"), Path("none.url"), print)
        airflow.__dict__["_api"] = client(server, [])
        assert not airflow._knows("flights")
        with pytest.raises(StepFailedError, match="403 not allowed"):
            airflow._knows("flights")
